//! What several targets check.

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

/// Does what waits, on this thread.
pub fn wait_for(work: impl Future<Output = ()>) {
    thread_local! {
        static RUNTIME: tokio::runtime::Runtime =
            tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a process has a runtime");
    }
    RUNTIME.with(|runtime| runtime.block_on(work));
}
