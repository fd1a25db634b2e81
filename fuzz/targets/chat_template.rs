//! Chat templates, as they come with a model file, over some conversations.
#![no_main]

#[allow(dead_code)]
#[path = "../../crates/server/tests/api/fake.rs"]
mod fake;
#[allow(dead_code)]
#[path = "../../crates/server/tests/api/hostile.rs"]
mod hostile;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(source) = std::str::from_utf8(data) else { return };
    fuzz::wait_for(async {
        hostile::template(source).await;
    });
});
