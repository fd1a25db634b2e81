//! Control messages, both ways.
#![no_main]

use bytes::Bytes;
use fuzz::same_again;
use libfuzzer_sys::fuzz_target;
use protocol::{ToFront, ToStage};

fuzz_target!(|data: &[u8]| {
    let data = Bytes::copy_from_slice(data);
    same_again::<ToFront>(&data);
    same_again::<ToStage>(&data);
});
