//! compute-sanitizer's memcheck on what pools hand out, on a GPU. Each test runs itself as a child under
//! the tool, and prints what it said.

#![cfg(all(feature = "nvtx", target_os = "linux"))]

mod support;

use aquifer::{
    CudaResource, Device, DeviceBlock, DeviceLayout, DeviceResource, DeviceVec, Kernel,
    LaunchConfig, PoolResource, Stream,
    mr::{FixedSizeResource, VirtualResource},
};
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Arc, Mutex, PoisonError};

const CHILD: &str = "AQUIFER_TEST_SANITIZER";
/// One tool at a time: each waits for its process by a port, and not for long.
static ONE: Mutex<()> = Mutex::new(());
const MIB: usize = 1 << 20;
/// Words in a block of the size that most tests use.
const WORDS: u32 = (MIB / 4) as u32;

/// Waits for so many nanoseconds, then writes its index to each of `n` words.
static WRITE_LATE: Kernel = Kernel::new(
    "write_late",
    r#"
    .version 6.4
    .target sm_50
    .address_size 64
    .visible .entry write_late(.param .u64 data, .param .u32 n, .param .u64 wait) {
        .reg .pred %p<3>; .reg .u32 %r<5>; .reg .u64 %rd<6>;
        ld.param.u64 %rd1, [data];
        ld.param.u32 %r1, [n];
        ld.param.u64 %rd3, [wait];
        mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x;
        mad.lo.u32 %r2, %r2, %r3, %r4;
        setp.ge.u32 %p1, %r2, %r1;
        @%p1 bra done;
        mov.u64 %rd4, %globaltimer;
    again:
        mov.u64 %rd5, %globaltimer;
        sub.u64 %rd5, %rd5, %rd4;
        setp.lt.u64 %p2, %rd5, %rd3;
        @%p2 bra again;
        cvta.to.global.u64 %rd1, %rd1;
        mul.wide.u32 %rd2, %r2, 4;
        add.u64 %rd1, %rd1, %rd2;
        st.global.u32 [%rd1], %r2;
    done:
        ret;
    }"#,
    |_, _| Ok(()),
);

/// Writes `words` words from `address` on, a while later.
fn write(stream: &Stream, address: u64, words: u32, milliseconds: u64) {
    let wait = milliseconds * 1_000_000;
    let launched = stream.launch(&WRITE_LATE).scalar(address).and_then(|launch| {
        let launch = launch.scalar(words)?.scalar(wait)?;
        // SAFETY: the tests give it live blocks, but where they mean not to: inside of the pool, then,
        // where nothing else is.
        unsafe { launch.launch(LaunchConfig::for_elements(words as usize)) }
    });
    launched.unwrap();
}

fn take(from: &impl DeviceResource, stream: &Stream) -> DeviceBlock {
    from.allocate(stream, DeviceLayout::new(MIB).unwrap()).unwrap()
}

fn give(to: &impl DeviceResource, stream: &Stream, block: DeviceBlock) {
    // SAFETY: allocated from the resource, with its last use on this stream.
    unsafe { to.deallocate(stream, block) };
}

/// A block, with free memory of the same chunk behind it.
fn before_a_hole(from: &impl DeviceResource, stream: &Stream) -> DeviceBlock {
    let mut blocks: Vec<DeviceBlock> = (0..4).map(|_| take(from, stream)).collect();
    blocks.sort_by_key(DeviceBlock::address);
    let adjacent =
        blocks.windows(2).position(|pair| pair[0].address() + MIB as u64 == pair[1].address());
    let found = blocks.swap_remove(adjacent.expect("no two blocks lie side by side"));
    blocks.into_iter().for_each(|block| give(from, stream, block));
    found
}

fn pool(device: &Device) -> PoolResource {
    let pool = PoolResource::builder(CudaResource::new(device));
    pool.growth_step(16 * MIB).initial_size(16 * MIB).build().unwrap()
}

fn sanitizer() -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain([PathBuf::from("/usr/local/cuda/bin")]);
    folders.map(|folder| folder.join("compute-sanitizer")).find(|file| file.is_file())
}

/// Runs `body` in a child under memcheck, and gives what the tool said. `None` in the child, and where
/// there is no such tool.
fn under_memcheck(name: &str, nvtx: &str, body: impl FnOnce(Device)) -> Option<String> {
    if std::env::var_os(CHILD).is_some() {
        let device = Device::open(0).unwrap();
        // compute-sanitizer's library sets the variable itself, when CUDA starts.
        println!("tool: {:?}", std::env::var_os("NVTX_INJECTION64_PATH"));
        body(device);
        println!("the body is through");
        return None;
    }
    if !support::on_gpu() {
        support::skipped(name, "no GPU");
        return None;
    }
    let Some(tool) = sanitizer() else {
        support::skipped(name, "no compute-sanitizer");
        return None;
    };
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    // A tool that hangs takes the process that it watches with it.
    let output = Command::new("timeout")
        .args(["--kill-after=5", "120"])
        .arg(tool)
        .args(["--tool=memcheck", &format!("--nvtx={nvtx}"), "--error-exitcode=9"])
        // An access that is reported leaves the context whole.
        .args(["--destroy-on-device-error=kernel", "--print-limit=3"])
        // Of accesses alone: a question to the driver may be answered by an error, too.
        .args(["--report-api-errors=no", "--leak-check=no"])
        .arg(std::env::current_exe().unwrap())
        .args(["--exact", name, "--nocapture", "--test-threads=1"])
        .env(CHILD, "1")
        .output()
        .unwrap();
    let [out, err] = [&output.stdout, &output.stderr].map(|text| String::from_utf8_lossy(text));
    let said = format!("{out}\n{err}");
    println!("{name}, --nvtx {nvtx}: {}\n{said}", output.status);
    if said.contains("Device not supported") {
        support::skipped(name, "compute-sanitizer does not support the device");
        return None;
    }
    assert!(said.contains("ERROR SUMMARY: "), "the tool did not come to its end\n{said}");
    Some(said)
}

fn assert_clean(said: &str) {
    assert!(said.contains("ERROR SUMMARY: 0 errors"), "{said}");
    assert!(said.contains("the body is through") && said.contains("1 passed"), "{said}");
}

fn assert_reported(said: &str) {
    assert!(!said.contains("ERROR SUMMARY: 0 errors"), "{said}");
    assert!(said.contains("write_late") && said.contains("Invalid __global__ write"), "{said}");
}

fn one_past_the_end(device: Device) {
    let stream = device.new_stream().unwrap();
    let pool = pool(&device);
    let block = before_a_hole(&pool, &stream);
    write(&stream, block.address(), WORDS + 1, 0);
    // The tool may have ended the kernel by an error.
    println!("synchronized: {:?}", stream.synchronize());
    give(&pool, &stream, block);
}

#[test]
fn a_write_past_the_end_of_a_block_is_reported() {
    let name = "a_write_past_the_end_of_a_block_is_reported";
    if let Some(said) = under_memcheck(name, "yes", one_past_the_end) {
        assert_reported(&said);
    }
}

/// That it is the registration that the other tests see.
#[test]
fn without_registration_nothing_is_reported() {
    let name = "without_registration_nothing_is_reported";
    if let Some(said) = under_memcheck(name, "no", one_past_the_end) {
        assert_clean(&said);
    }
}

#[test]
fn a_write_after_the_free_is_reported() {
    let name = "a_write_after_the_free_is_reported";
    let said = under_memcheck(name, "yes", |device| {
        let stream = device.new_stream().unwrap();
        let pool = pool(&device);
        let block = take(&pool, &stream);
        let address = block.address();
        give(&pool, &stream, block);
        write(&stream, address, WORDS, 0);
        println!("synchronized: {:?}", stream.synchronize());
    });
    if let Some(said) = said {
        assert_reported(&said);
    }
}

#[test]
fn a_write_past_the_end_of_a_block_of_a_pool_over_a_pool_is_reported() {
    let name = "a_write_past_the_end_of_a_block_of_a_pool_over_a_pool_is_reported";
    let said = under_memcheck(name, "yes", |device| {
        let stream = device.new_stream().unwrap();
        let outer = PoolResource::builder(pool(&device)).growth_step(8 * MIB).build().unwrap();
        let block = before_a_hole(&outer, &stream);
        write(&stream, block.address(), WORDS + 1, 0);
        println!("synchronized: {:?}", stream.synchronize());
        give(&outer, &stream, block);
    });
    if let Some(said) = said {
        assert_reported(&said);
    }
}

/// Frees behind running kernels, on memory that goes from stream to stream.
fn in_stream_order(from: &impl DeviceResource, device: &Device) {
    let streams: Vec<Stream> = (0..4).map(|_| device.new_stream().unwrap()).collect();
    for round in 0..40 {
        let stream = &streams[round % 4];
        let blocks: Vec<DeviceBlock> = (0..3).map(|_| take(from, stream)).collect();
        for block in &blocks {
            write(stream, block.address(), WORDS, 2);
        }
        blocks.into_iter().for_each(|block| give(from, stream, block));
    }
    device.synchronize().unwrap();
}

#[test]
fn blocks_that_are_freed_in_stream_order_are_no_errors() {
    let name = "blocks_that_are_freed_in_stream_order_are_no_errors";
    let said = under_memcheck(name, "yes", |device| {
        let pool = pool(&device);
        in_stream_order(&pool, &device);
        let memory = Arc::new(pool.clone());
        let stream = device.new_stream().unwrap();
        for length in [1, 1000, 100_000] {
            // Copies and fills, of the driver's.
            let mut vec = DeviceVec::<u32>::zeroed_in(&stream, length, memory.clone()).unwrap();
            vec.fill(7).unwrap();
            let other = vec.try_clone().unwrap();
            drop(vec);
            assert_eq!(other.to_vec().unwrap(), vec![7; length]);
        }
        pool.wait_and_trim(0).unwrap();
        in_stream_order(&pool, &device);
    });
    if let Some(said) = said {
        assert_clean(&said);
    }
}

#[test]
fn pools_of_other_kinds_are_no_errors() {
    let name = "pools_of_other_kinds_are_no_errors";
    let said = under_memcheck(name, "yes", |device| {
        let plain = CudaResource::new(&device);
        in_stream_order(
            &FixedSizeResource::builder(plain).block_size(MIB).build().unwrap(),
            &device,
        );
        let inner = pool(&device);
        let outer = PoolResource::builder(inner.clone()).growth_step(8 * MIB).build().unwrap();
        in_stream_order(&outer, &device);
        drop(outer);
        in_stream_order(&inner, &device);
        let mapped = PoolResource::new(VirtualResource::new(&device).unwrap()).unwrap();
        in_stream_order(&mapped, &device);
    });
    if let Some(said) = said {
        assert_clean(&said);
    }
}

#[test]
fn launches_of_graphs_are_no_errors() {
    let name = "launches_of_graphs_are_no_errors";
    let said = under_memcheck(name, "yes", |device| {
        let stream = device.new_stream().unwrap();
        let pool = pool(&device);
        let outside = take(&pool, &stream);
        // The kernel's code is loaded before the capture.
        write(&stream, outside.address(), WORDS, 0);
        let (graph, outliving) = stream
            .capture(&pool, |stream| {
                let block = take(&pool, stream);
                write(stream, block.address(), WORDS, 2);
                give(&pool, stream, block);
                write(stream, outside.address(), WORDS, 2);
                // Kept for the graph.
                give(&pool, stream, outside);
                let block = take(&pool, stream);
                write(stream, block.address(), WORDS, 2);
                Ok(block)
            })
            .unwrap();
        for _ in 0..3 {
            // SAFETY: what it touches is the graph's or `outliving`, on this stream alone.
            unsafe { graph.launch(&stream) }.unwrap();
            in_stream_order(&pool, &device);
        }
        give(&pool, &stream, outliving);
        // SAFETY: as above: what was a capture's is the graph's until it goes.
        unsafe { graph.launch(&stream) }.unwrap();
        drop(graph);
        in_stream_order(&pool, &device);
    });
    if let Some(said) = said {
        assert_clean(&said);
    }
}
