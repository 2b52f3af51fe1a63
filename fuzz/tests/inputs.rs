//! What the fuzz targets run, on inputs that need no fuzzer: numbers drawn from a seed, and logs and
//! texts of stacks that are nearly right.

use aquifer_fuzz::{heap_operations, read_log, stack_text};

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn bytes(&mut self, most: u64) -> Vec<u8> {
        (0..self.next() % most).map(|_| self.next() as u8).collect()
    }
}

#[test]
fn a_heap_keeps_its_promises_over_random_operations() {
    let mut random = Random(1);
    (0..300).for_each(|_| heap_operations(&random.bytes(4000)));
}

#[test]
fn readers_survive_logs_that_are_nearly_right() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../replay/tests/logs");
    let mut random = Random(2);
    let mut logs = 0;
    for entry in folder.read_dir().unwrap() {
        let mut log = vec![0];
        log.extend(std::fs::read(entry.unwrap().path()).unwrap());
        log.truncate(64 << 10);
        logs += 1;
        for round in 0..100 {
            let mut wrong = log.clone();
            for _ in 0..round % 8 {
                let at = random.next() as usize % wrong.len();
                wrong[at] = random.next() as u8;
            }
            if round % 5 == 0 {
                wrong.truncate(random.next() as usize % wrong.len() + 1);
            }
            read_log(&wrong);
        }
    }
    assert!(logs > 5, "{logs} logs");
    (0..100).for_each(|_| read_log(&random.bytes(2000)));
}

#[test]
fn texts_of_stacks_read_build_or_are_errors() {
    let mut random = Random(3);
    (0..20_000).for_each(|_| {
        let mut words = random.bytes(24);
        words.insert(0, 1);
        stack_text(&words);
    });
    (0..2000).for_each(|_| stack_text(&random.bytes(200)));
    let right = "\0pool(fixed_size(cuda | limiting(8MiB), block_size=64KiB), initial=1MiB, max=50%) | \
                 statistics | tracking | aligned(4KiB, 1MiB) | checked(poison=0xdd) | thread_safe";
    stack_text(right.as_bytes());
    for _ in 0..2000 {
        let mut wrong = right.as_bytes().to_vec();
        for _ in 0..=random.next() % 3 {
            let at = 1 + random.next() as usize % (wrong.len() - 1);
            match random.next() % 3 {
                0 => wrong[at] = b" (),|=\"\\0aM%"[random.next() as usize % 12],
                1 => drop(wrong.remove(at)),
                _ => {
                    let from = 1 + random.next() as usize % at;
                    let part = wrong[from..=at].to_vec();
                    wrong.splice(at..at, part);
                }
            }
        }
        stack_text(&wrong);
    }
}
