//! Upper bounds on what a client may send and on how long the API waits for it.

use std::time::Duration;
/// Bytes in an API key file: thousands of keys.
pub(crate) const MAX_KEY_FILE_BYTES: u64 = 1 << 20;
/// `Retry-After` of a full queue and of a line that is not ready, seconds: about the time of a short answer.
pub(crate) const RETRY_AFTER: u32 = 1;
