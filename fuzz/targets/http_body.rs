//! Bodies of HTTP requests, on every route that takes one, over a line that has a short answer to everything.
#![no_main]

#[allow(dead_code)]
#[path = "../../crates/server/tests/api/fake.rs"]
mod fake;
#[allow(dead_code)]
#[path = "../../crates/server/tests/api/hostile.rs"]
mod hostile;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    fuzz::wait_for(async {
        hostile::body(&fake::Harness::answering(fake::model_info()), data).await;
    });
});
