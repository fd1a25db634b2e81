//! Bodies of HTTP requests, on every route that takes one, over a line that has a short answer to everything.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| fuzz::http_body(data));
