#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| aquifer_fuzz::stack_text(input));
