//! Ending the process while engines compute.

use std::ffi::c_int;
use std::io::Write as _;

unsafe extern "C" {
    fn _exit(status: c_int) -> !;
}

/// Ends the process with this status, at once. The usual end would first run llama.cpp's destructors, under the feet of
/// an engine that is still computing, which cannot be interrupted.
pub fn exit(status: u8) -> ! {
    // Nobody is left to tell if standard output is closed.
    drop(std::io::stdout().flush());
    // SAFETY: part of every C library, may be called at any time, and takes any status.
    unsafe { _exit(c_int::from(status)) }
}
