//! Pools that sleep on a GPU: graphs that run when they have woken, processes that take turns, and one that is killed.

#![cfg(all(unix, feature = "cuda"))]

#[path = "support/kernels.rs"]
mod kernels;
mod support;

use aquifer::mr::{Keep, VirtualResource};
use aquifer::{Device, DeviceVec, LaunchConfig, PoolResource, Stream};
use kernels::ADD_ONE;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};

const MIB: usize = 1 << 20;
const PART: &str = "AQUIFER_TEST_SLEEP_PART";

type Pool = PoolResource<VirtualResource>;

fn device() -> (Device, Stream, Pool) {
    let device = Device::open(0).unwrap();
    let stream = device.new_stream().unwrap();
    let pool = PoolResource::new(VirtualResource::new(&device).unwrap()).unwrap();
    (device, stream, pool)
}

/// What is free is the whole device's, so one test runs at a time.
fn alone() -> std::sync::MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

fn add_one(stream: &Stream, vec: &mut DeviceVec<u32>) -> aquifer::Result<()> {
    let count = vec.len();
    let launch = stream.launch(&ADD_ONE).in_out(vec)?.scalar(count as u32)?;
    // SAFETY: the kernel touches so many elements of the vector.
    unsafe { launch.launch(LaunchConfig::for_elements(count)) }
}

#[test]
fn a_graph_of_fifty_kernels_runs_right_after_twenty_rounds() {
    if !support::on_gpu() {
        return support::skipped("a graph after sleeps", "no GPU");
    }
    let _alone = alone();
    let (device, stream, pool) = device();
    let memory = Arc::new(pool.clone());
    let count = 16 * MIB / 4;
    let mut sums = DeviceVec::<u32>::zeroed_in(&stream, count, memory.clone()).unwrap();
    let (graph, ()) = stream
        .capture(&pool, |stream| {
            let mut own = DeviceVec::<u32>::zeroed_in(stream, count, memory.clone())?;
            for _ in 0..25 {
                add_one(stream, &mut sums)?;
                add_one(stream, &mut own)?;
            }
            // What the graph has of its own is in the sum.
            sums.copy_from(&own)?;
            for _ in 0..25 {
                add_one(stream, &mut sums)?;
            }
            Ok(())
        })
        .unwrap();
    for round in 0..20 {
        sums.fill(round).unwrap();
        let before = device.memory_info().unwrap().free;
        // SAFETY: no graph is launched while it sleeps, and there are no other pointers.
        let slept = unsafe { pool.sleep(Keep::PageLocked) }.unwrap();
        let free = device.memory_info().unwrap().free;
        assert!(free >= before + slept.bytes, "{slept:?}: {before} and {free}");
        // The card is another's meanwhile.
        let other = PoolResource::new(VirtualResource::new(&device).unwrap()).unwrap();
        let mut taken = DeviceVec::<u8>::zeroed_in(&stream, free / 2, other).unwrap();
        taken.fill(0xee).unwrap();
        drop(taken);
        stream.synchronize().unwrap();
        pool.wake().unwrap();
        assert_eq!(sums.get(count - 1).unwrap(), round);
        // SAFETY: all vectors are alive, and nothing else uses them.
        unsafe { graph.launch(&stream).unwrap() };
        let found = sums.to_vec().unwrap();
        assert!(found.iter().all(|sum| *sum == 50), "round {round}: {}", found[0]);
    }
    println!(
        "20 rounds of sleep, another's use of the card, wake and a graph of 75 kernels: all right"
    );
}

/// A process that has as much of the card as no two can have at once.
struct Part {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
}

impl Part {
    fn start(test: &str, number: usize) -> Self {
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", test, "--nocapture", "--test-threads=1"])
            .env(PART, number.to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (to, from) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        let mut part = Self { child, to, from: BufReader::new(from) };
        part.hear("asleep");
        part
    }

    fn tell(&mut self, what: &str) {
        writeln!(self.to, "{what}").unwrap();
    }

    /// Waits for a line that ends with these words.
    fn hear(&mut self, what: &str) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert!(
                self.from.read_line(&mut line).unwrap() > 0,
                "the process ended before {what:?}"
            );
            if line.trim_end().ends_with(what) {
                return line;
            }
        }
    }
}

/// The process: it fills its part of the card, and sleeps. For each line it wakes, looks, works and sleeps. Its weights are
/// kept, and its cache is dropped.
fn be_a_part(number: u32) {
    let (device, stream, weights) = device();
    let cache = PoolResource::new(VirtualResource::new(&device).unwrap()).unwrap();
    let bytes = device.memory_info().unwrap().total / 10 * 6;
    let kept = bytes / 8;
    let fill = |bytes: usize, pool: &Pool| {
        let sizes = (0..bytes).step_by(1024 * MIB).map(|at| (1024 * MIB).min(bytes - at));
        let make = |bytes| DeviceVec::zeroed_in(&stream, bytes / 4, pool.clone()).unwrap();
        sizes.map(make).collect::<Vec<DeviceVec<u32>>>()
    };
    let (mut vecs, mut caches) = (fill(kept, &weights), fill(bytes - kept, &cache));
    for (at, vec) in vecs.iter_mut().enumerate() {
        vec.fill(number * 1000 + at as u32).unwrap();
    }
    let sleep = || {
        // SAFETY: this process has no other pointers, and no graph.
        let slept = unsafe {
            [weights.sleep(Keep::PageLocked).unwrap(), cache.sleep(Keep::Nothing).unwrap()]
        };
        println!("{} MiB asleep", slept.iter().map(|it| it.bytes / MIB).sum::<usize>());
    };
    sleep();
    for (round, line) in std::io::stdin().lines().enumerate() {
        if line.unwrap() == "end" {
            break;
        }
        weights.wake().unwrap();
        cache.wake().unwrap();
        for (at, vec) in vecs.iter_mut().enumerate() {
            let wanted = number * 1000 + at as u32 + round as u32;
            for place in [0, vec.len() / 2, vec.len() - 1] {
                assert_eq!(vec.get(place).unwrap(), wanted, "vector {at} at {place}");
            }
            add_one(&stream, vec).unwrap();
        }
        for vec in &mut caches {
            assert_eq!([vec.get(0).unwrap(), vec.get(vec.len() - 1).unwrap()], [0; 2]);
            vec.fill(0xbad).unwrap();
        }
        sleep();
    }
}

#[test]
fn two_processes_take_turns_with_six_tenths_of_the_card_each() {
    const TEST: &str = "two_processes_take_turns_with_six_tenths_of_the_card_each";
    if !support::on_gpu() {
        return support::skipped(TEST, "no GPU");
    }
    if let Ok(number) = std::env::var(PART) {
        return be_a_part(number.parse().unwrap());
    }
    let _alone = alone();
    let mut parts = [1, 2].map(|number| Part::start(TEST, number));
    let begun = std::time::Instant::now();
    for _ in 0..20 {
        for part in &mut parts {
            part.tell("wake");
            part.hear("asleep");
        }
    }
    println!(
        "20 rounds of two processes with 60% of the card each: {:.1} s",
        begun.elapsed().as_secs_f64()
    );
    for mut part in parts {
        part.tell("end");
        assert!(part.child.wait().unwrap().success());
    }
}

#[test]
fn a_process_that_is_killed_asleep_leaves_nothing() {
    const TEST: &str = "a_process_that_is_killed_asleep_leaves_nothing";
    if !support::on_gpu() {
        return support::skipped(TEST, "no GPU");
    }
    if std::env::var_os(PART).is_some() {
        let (_device, stream, pool) = device();
        let vec = DeviceVec::<u8>::zeroed_in(&stream, 512 * MIB, pool.clone()).unwrap();
        let folder = std::env::temp_dir().join("aquifer-sleep-killed");
        // SAFETY: this process has no other pointers, and no graph.
        unsafe { pool.sleep(Keep::File(folder)) }.unwrap();
        println!("512 MiB asleep");
        loop {
            std::thread::park();
            assert!(!vec.is_empty());
        }
    }
    let _alone = alone();
    let folder = std::env::temp_dir().join("aquifer-sleep-killed");
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir(&folder).unwrap();
    let on_disk = || {
        // SAFETY: numbers, for which all zeros are valid; the call fills them, and the path ends in a zero.
        unsafe {
            let mut numbers: libc::statvfs = std::mem::zeroed();
            let path = std::ffi::CString::new(folder.to_str().unwrap()).unwrap();
            assert_eq!(libc::statvfs(path.as_ptr(), &raw mut numbers), 0);
            numbers.f_bfree * numbers.f_frsize
        }
    };
    let (device, _, _) = device();
    let (before, disk) = (device.memory_info().unwrap().free, on_disk());
    let mut part = Part::start(TEST, 1);
    let asleep = on_disk();
    assert!(disk - asleep >= 512 << 20, "{disk} and {asleep}");
    part.child.kill().unwrap();
    part.child.wait().unwrap();
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), 0, "a file has a name");
    // Others use the disk, too.
    assert!(on_disk() + (64 << 20) >= disk, "{} of {disk} are free", on_disk());
    let free = device.memory_info().unwrap().free;
    assert!(free + (64 << 20) >= before, "{free} of {before} are free");
    std::fs::remove_dir(&folder).unwrap();
    println!(
        "a process that was killed asleep left no file, no bytes on disk and no device memory"
    );
}
