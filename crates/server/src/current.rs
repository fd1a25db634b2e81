//! What files say now: read again by whoever needs it as soon as one of them has changed.
//!
//! The files are looked at when their content is used, which takes a microsecond. So a key that was struck out is refused
//! by the very next request, on network file systems too, and there is no watch that could miss a change.
//!
//! Does not know what is in the files.

use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

/// How files become a `T`, or a sentence that says why they do not.
type Read<T> = Box<dyn Fn() -> Result<T, String> + Send + Sync>;

/// The content of some files, as of their last change. Clones share it.
pub(crate) struct Current<T>(Arc<Inner<T>>);

struct Inner<T> {
    files: Vec<PathBuf>,
    read: Read<T>,
    state: Mutex<State<T>>,
}

struct State<T> {
    stamps: Vec<Option<Stamp>>,
    content: Arc<T>,
    /// Why the files cannot be used as they are, if they cannot; said once.
    failed: Option<String>,
}

/// What changes when a file does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Stamp {
    modified: Option<SystemTime>,
    bytes: u64,
    /// Another file under the same name, and when anything about it changed, rights included, in nanoseconds; 0 where the
    /// system does not say.
    node: (u64, i64, i64),
}

impl Stamp {
    fn of(file: &PathBuf) -> Option<Self> {
        let about = std::fs::metadata(file).ok()?;
        Some(Self { modified: about.modified().ok(), bytes: about.len(), node: node(&about) })
    }
}

#[cfg(unix)]
fn node(about: &std::fs::Metadata) -> (u64, i64, i64) {
    use std::os::unix::fs::MetadataExt as _;
    (about.ino(), about.ctime(), about.ctime_nsec())
}

#[cfg(not(unix))]
fn node(_about: &std::fs::Metadata) -> (u64, i64, i64) {
    (0, 0, 0)
}

impl<T> Current<T> {
    /// Reads the files, now and whenever they change.
    ///
    /// # Errors
    /// What `read` says. Later it is only logged, and the content stays as it was.
    pub(crate) fn new<E: fmt::Display>(
        files: Vec<PathBuf>,
        read: impl Fn() -> Result<T, E> + Send + Sync + 'static,
    ) -> Result<Self, E> {
        // Looked at before they are read: what changes meanwhile is read again.
        let stamps = files.iter().map(Stamp::of).collect();
        let content = Arc::new(read()?);
        let read: Read<T> = Box::new(move || read().map_err(|error| error.to_string()));
        Ok(Self(Arc::new(Inner { files, read, state: Mutex::new(State { stamps, content, failed: None }) })))
    }

    /// The content now. If the files cannot be used as they are, it is what they said last.
    pub(crate) fn get(&self) -> Arc<T> {
        let stamps: Vec<_> = self.0.files.iter().map(Stamp::of).collect();
        let mut state = self.0.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.stamps != stamps {
            match (self.0.read)() {
                Ok(content) => {
                    state.stamps = stamps;
                    state.content = Arc::new(content);
                    state.failed = None;
                    tracing::info!(files = ?self.0.files, "read again");
                }
                // Tried again at the next use: the reason may pass without a change of the files.
                Err(reason) => {
                    if state.failed.as_ref() != Some(&reason) {
                        let files = &self.0.files;
                        tracing::warn!(?files, reason, "changed, but what was read before stays in force");
                    }
                    state.failed = Some(reason);
                }
            }
        }
        state.content.clone()
    }
}

impl<T> Clone for Current<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> fmt::Debug for Current<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Current").field(&self.0.files).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_change_is_seen_by_the_next_use_and_what_cannot_be_used_is_not() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("number");
        let read = {
            let file = file.clone();
            move || {
                let text = std::fs::read_to_string(&file).map_err(|error| error.to_string())?;
                text.parse::<u32>().map_err(|error| error.to_string())
            }
        };
        assert!(Current::new(vec![file.clone()], read.clone()).is_err(), "there is no file yet");
        std::fs::write(&file, "1").unwrap();
        let number = Current::new(vec![file.clone()], read).unwrap();
        assert_eq!(*number.get(), 1);
        std::fs::write(&file, "22").unwrap();
        assert_eq!(*number.clone().get(), 22);
        std::fs::write(&file, "none").unwrap();
        assert_eq!(*number.get(), 22);
        std::fs::remove_file(&file).unwrap();
        assert_eq!(*number.get(), 22);
        // The way in which files should be replaced: in one step.
        let new = folder.path().join("new");
        std::fs::write(&new, "33").unwrap();
        std::fs::rename(&new, &file).unwrap();
        assert_eq!(*number.get(), 33);
    }
}
