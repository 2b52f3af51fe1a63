//! Texts of stacks: what is read prints and reads the same, and builds or is an error.

use aquifer::sim::SimConfig;
use aquifer::{Device, DeviceLayout, DeviceResource, mr::StackText};

/// Words and marks of texts, and some that are wrong.
const WORDS: &[&str] = &[
    "cuda",
    "async",
    "async_default",
    "managed",
    "system",
    "pinned",
    "pinned_pool",
    "pool",
    "fixed_size",
    "binning",
    "arena",
    "aligned",
    "checked",
    "limiting",
    "logging",
    "prefetch",
    "statistics",
    "thread_safe",
    "traced",
    "tracking",
    "(",
    ")",
    ",",
    "|",
    "=",
    "\"",
    "\\",
    " ",
    "initial",
    "max",
    "initial_size=",
    "maximum_size=",
    "soft_limit=",
    "growth_step=",
    "alignment=",
    "miss_policy=rmm",
    "magazine_entries=",
    "magazine_bytes=",
    "block_size=",
    "blocks_per_chunk=",
    "initial_blocks=",
    "min_exponent=",
    "max_exponent=",
    "arena_size=",
    "release_threshold=",
    "oversubscribe=",
    "headroom=",
    "require_same_stream=",
    "poison=",
    "limit=",
    "threshold_bytes=",
    "path=",
    "format=",
    "capture_backtraces=",
    "0",
    "1",
    "8",
    "9",
    "256",
    "4096",
    "1MiB",
    "1.5KiB",
    "2GiB",
    "64KB",
    "1TiB",
    "1e99GiB",
    "-1",
    "0.1GiB",
    "18446744073709551615",
    "80%",
    "0.5%",
    "100.1%",
    "true",
    "off",
    "0xdd",
    "NaN",
    "pool(",
    "pool(cuda,",
    "cuda)",
    " | statistics",
    " | limiting(",
    "ä",
    "\u{202e}",
];

/// Reads `input` as a text: as it is, or, where its first byte is odd, each further byte as a word.
pub fn stack_text(input: &[u8]) {
    let Some((choice, rest)) = input.split_first() else { return };
    match choice % 2 {
        0 => read(&String::from_utf8_lossy(rest)),
        _ => read(
            &rest.iter().map(|byte| WORDS[usize::from(*byte) % WORDS.len()]).collect::<String>(),
        ),
    }
}

fn read(text: &str) {
    let stack = match text.parse::<StackText>() {
        Ok(stack) => stack,
        Err(error) => {
            assert!(!error.to_string().is_empty() && error.advice().is_some());
            return;
        }
    };
    let canonical = stack.to_string();
    let again: StackText = canonical.parse().unwrap_or_else(|error| panic!("{canonical}: {error}"));
    assert_eq!(again, stack, "{text}");
    assert_eq!(again.to_string(), canonical);
    // No files; and memory of the host is as large as a text asks.
    let is_apart = ["logging", "dump_on_failure", "system", "pinned"];
    if !is_apart.iter().any(|name| canonical.contains(name)) {
        build(&stack);
    }
}

fn build(text: &StackText) {
    let config = SimConfig::default().capacity(16 << 20).without_poison();
    let device = Device::simulated(config);
    let Ok(stack) = text.build(&device) else { return };
    let Ok(stream) = device.new_stream() else { return };
    for bytes in [1000, 1 << 20, 0, 1 << 40] {
        let Ok(layout) = DeviceLayout::new(bytes) else { continue };
        if let Ok(block) = stack.allocate(&stream, layout) {
            // SAFETY: allocated above, and no work uses it.
            unsafe { stack.deallocate(&stream, block) };
        }
    }
    assert!(stack.counters().is_none_or(|counters| counters.allocations.current >= 0));
    let _ = (stack.pool_statistics(), stack.trim(0), stack.wait_and_trim(0), stack.flush());
    assert_eq!(stack.text(), Some(text));
}
