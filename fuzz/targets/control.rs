//! Control messages, both ways.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use protocol::{ToFront, ToStage, Wire};

fn check<M: Wire>(data: &Bytes) {
    let Ok(message) = M::decode(data) else { return };
    let (mut written, mut twice) = (Vec::new(), Vec::new());
    message.encode(&mut written);
    M::decode(&Bytes::from(written.clone())).expect("what was written can be read").encode(&mut twice);
    assert_eq!(written, twice);
}

fuzz_target!(|data: &[u8]| {
    let data = Bytes::copy_from_slice(data);
    check::<ToStage>(&data);
    check::<ToFront>(&data);
});
