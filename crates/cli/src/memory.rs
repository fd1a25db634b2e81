//! How much memory this process may take.
//!
//! Only processes that run what others wrote have a limit. It is kept by the allocator and not by the system, since not
//! every system has such limits; so it is on what Rust code takes, which in those processes is all there is.

use std::alloc::System;

use cap::Cap;

/// Counts what is taken: two additions for each piece of memory.
#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, usize::MAX);

/// This process would have to give back memory first.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("it holds more than {most} bytes already")]
pub(crate) struct HoldsMore {
    most: usize,
}

/// Ends this process as soon as it would take more than `most` bytes. Leaves no image of it on the disk.
pub(crate) fn limit(most: usize) -> Result<(), HoldsMore> {
    without_image();
    ALLOCATOR.set_limit(most).map_err(|()| HoldsMore { most })
}

#[cfg(unix)]
fn without_image() {
    use rustix::process::{Resource, Rlimit, setrlimit};
    // Less is always allowed.
    let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
}

#[cfg(not(unix))]
fn without_image() {}
