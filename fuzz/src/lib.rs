//! What several targets check.

// The server's own tests have the line that has a short answer to everything, and what must hold of it; they use more of
// both than the targets do.
#[allow(dead_code)]
#[path = "../../crates/server/tests/api/fake.rs"]
mod fake;
#[allow(dead_code)]
#[path = "../../crates/server/tests/api/hostile.rs"]
mod hostile;

use bytes::Bytes;
use protocol::Wire;

/// Whatever can be read is written and read again as the same; nothing else is read. Compared by its bytes: floats that
/// are no numbers differ from themselves.
pub fn same_again<M: Wire>(data: &Bytes) {
    let Ok(message) = M::decode(data) else { return };
    let (mut written, mut twice) = (Vec::new(), Vec::new());
    message.encode(&mut written);
    M::decode(&Bytes::from(written.clone())).expect("what was written can be read").encode(&mut twice);
    assert_eq!(written, twice);
}

/// A request with this body behind the byte that says where it goes.
pub fn http_body(input: &[u8]) {
    wait_for(hostile::body(&fake::Harness::answering(fake::model_info()), input));
}

/// Conversations written by this chat template.
pub fn chat_template(source: &str) {
    wait_for(hostile::template(source));
}

/// Does what waits, on this thread.
pub fn wait_for<T>(work: impl Future<Output = T>) -> T {
    thread_local! {
        static RUNTIME: tokio::runtime::Runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a process has a runtime");
    }
    RUNTIME.with(|runtime| runtime.block_on(work))
}
