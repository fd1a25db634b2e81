//! How many files and connections this process may have open.

/// Enough for the API's connections, a line's links and a prompt store's files several times over.
#[cfg(unix)]
const ENOUGH: u64 = 8192;

/// Shells often allow 1,024 where the system would allow many more: takes what is there, up to what is enough. Children
/// inherit it. If it cannot be had the process goes on with what it has.
#[cfg(unix)]
pub(crate) fn raise() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    let wanted = maximum.map_or(ENOUGH, |most| most.min(ENOUGH));
    if current.is_some_and(|now| now < wanted) {
        match setrlimit(Resource::Nofile, Rlimit { current: Some(wanted), maximum }) {
            Ok(()) => tracing::debug!(from = current, to = wanted, "more open files"),
            Err(error) => tracing::debug!("no more open files than {current:?}: {error}"),
        }
    }
}

/// Here they are not limited like that.
#[cfg(not(unix))]
pub(crate) fn raise() {}
