#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| aquifer_fuzz::read_log(input));
