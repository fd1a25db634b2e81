//! Frames.
#![no_main]

use bytes::Bytes;
use fuzz::same_again;
use libfuzzer_sys::fuzz_target;
use protocol::Frame;

fuzz_target!(|data: &[u8]| {
    let data = Bytes::copy_from_slice(data);
    same_again::<Frame>(&data);
});
