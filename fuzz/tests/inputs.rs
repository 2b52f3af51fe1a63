//! What the fuzz targets run, on inputs that need no fuzzer: numbers drawn from a seed, and logs and
//! texts of stacks that are nearly right.

use aquifer_fuzz::{heap_operations, read_log, stack_text};
use fastrand::Rng;

/// Fewer bytes than `most`.
fn bytes(random: &mut Rng, most: usize) -> Vec<u8> {
    let length = random.usize(..most);
    std::iter::repeat_with(|| random.u8(..)).take(length).collect()
}

#[test]
fn a_heap_keeps_its_promises_over_random_operations() {
    let mut random = Rng::with_seed(1);
    (0..300).for_each(|_| heap_operations(&bytes(&mut random, 4000)));
}

#[test]
fn readers_survive_logs_that_are_nearly_right() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../replay/tests/logs");
    let mut random = Rng::with_seed(2);
    let mut logs = 0;
    for entry in folder.read_dir().unwrap() {
        let mut log = vec![0];
        log.extend(std::fs::read(entry.unwrap().path()).unwrap());
        log.truncate(64 << 10);
        logs += 1;
        for round in 0..100 {
            let mut wrong = log.clone();
            for _ in 0..round % 8 {
                let at = random.usize(..wrong.len());
                wrong[at] = random.u8(..);
            }
            if round % 5 == 0 {
                wrong.truncate(random.usize(1..=wrong.len()));
            }
            read_log(&wrong);
        }
    }
    assert!(logs > 5, "{logs} logs");
    (0..100).for_each(|_| read_log(&bytes(&mut random, 2000)));
}

#[test]
fn texts_of_stacks_read_build_or_are_errors() {
    let mut random = Rng::with_seed(3);
    (0..20_000).for_each(|_| {
        let mut words = bytes(&mut random, 24);
        words.insert(0, 1);
        stack_text(&words);
    });
    (0..2000).for_each(|_| stack_text(&bytes(&mut random, 200)));
    let right = "\0pool(fixed_size(cuda | limiting(8MiB), block_size=64KiB), initial=1MiB, max=50%) | \
                 statistics | tracking | aligned(4KiB, 1MiB) | checked(poison=0xdd) | thread_safe";
    stack_text(right.as_bytes());
    for _ in 0..2000 {
        let mut wrong = right.as_bytes().to_vec();
        for _ in 0..=random.u8(..3) {
            let at = random.usize(1..wrong.len());
            match random.u8(..3) {
                0 => wrong[at] = random.choice(*b" (),|=\"\\0aM%").unwrap(),
                1 => drop(wrong.remove(at)),
                _ => {
                    let from = random.usize(1..=at);
                    let part = wrong[from..=at].to_vec();
                    wrong.splice(at..at, part);
                }
            }
        }
        stack_text(&wrong);
    }
}
