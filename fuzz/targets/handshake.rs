//! Greetings and their answers.
#![no_main]

use bytes::Bytes;
use fuzz::same_again;
use libfuzzer_sys::fuzz_target;
use protocol::{Hello, HelloReply};

fuzz_target!(|data: &[u8]| {
    let data = Bytes::copy_from_slice(data);
    same_again::<Hello>(&data);
    same_again::<HelloReply>(&data);
});
