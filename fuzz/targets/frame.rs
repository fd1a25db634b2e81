//! Frames: whatever can be read is written and read again as the same; nothing else is read.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use protocol::{Frame, Wire};

fuzz_target!(|data: &[u8]| {
    let Ok(frame) = Frame::decode(&Bytes::copy_from_slice(data)) else { return };
    let mut written = Vec::new();
    frame.encode(&mut written);
    // Bit for bit: floats that are no numbers differ from themselves, their bytes do not.
    let again = Frame::decode(&Bytes::from(written.clone())).expect("what was written can be read");
    let mut twice = Vec::new();
    again.encode(&mut twice);
    assert_eq!(written, twice);
});
