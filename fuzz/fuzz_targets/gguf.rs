#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| gpt2_fuzz::run("gguf", data));
