//! The folder on disk: opening, listing, reading, writing and removing files.
//!
//! Everything here may block; only the store's thread and the start of a process call it.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;

use crate::form::{self, Name};
use crate::room::{Entry, MAX_FILES, make_room};

/// Ends the names of files that are still being written.
const UNFINISHED: &str = ".part";
/// A file that was left unfinished so long ago has nobody who would finish it.
const ABANDONED: Duration = Duration::from_secs(3600);

/// Why a folder cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("the folder {} cannot be used for prefixes: {source}", path.display())]
pub struct OpenError {
    path: PathBuf,
    source: io::Error,
}

/// What became of a write.
#[derive(Debug)]
pub(crate) enum Wrote {
    Whole,
    TooLarge,
}

#[derive(Debug)]
pub(crate) struct Folder {
    path: PathBuf,
    budget: u64,
}

impl Folder {
    /// Makes the folder if need be, for its owner only.
    pub(crate) fn open(path: PathBuf, budget: u64) -> Result<Self, OpenError> {
        let opened = make_private(&path).and_then(|()| {
            let folder = Self { path: path.clone(), budget };
            folder.sweep()?;
            Ok(folder)
        });
        opened.map_err(|source| OpenError { path, source })
    }

    /// The bytes under a name, or under whatever name a listing gave. A file that is not what it should be is removed.
    pub(crate) fn read(&self, file: &str) -> Option<Bytes> {
        let path = self.path.join(file);
        let content = match fs::metadata(&path) {
            // One that never fitted was not written here.
            Ok(data) if data.len() > self.budget => None,
            Ok(_) => fs::read(&path).ok(),
            Err(_) => return None,
        };
        let bytes = content.and_then(|content| form::check(file, content));
        if bytes.is_none() {
            tracing::warn!("{} is spoiled and is removed", path.display());
            let _ = fs::remove_file(&path);
        }
        bytes
    }

    /// Notes that a file was used.
    pub(crate) fn touch(&self, file: &str) {
        // A read-only or vanished file is only forgotten sooner.
        let _ = OpenOptions::new()
            .append(true)
            .open(self.path.join(file))
            .and_then(|file| file.set_modified(now()));
    }

    /// Puts bytes under a name, and removes what has to go for them. What is there already only counts as used.
    pub(crate) fn write(&self, name: &Name, bytes: &[&[u8]]) -> io::Result<Wrote> {
        let file = name.file();
        let head = form::head(name, bytes);
        let size = bytes.iter().map(|bytes| bytes.len() as u64).sum::<u64>() + head.len() as u64;
        let here = self.list()?;
        if here.iter().any(|entry| entry.file == file && entry.bytes == size) {
            self.touch(&file);
            return Ok(Wrote::Whole);
        }
        let Some(gone) = make_room(here, size, self.budget) else { return Ok(Wrote::TooLarge) };
        for entry in gone {
            self.remove(&entry.file);
        }
        let place = self.path.join(&file);
        let beside = self.path.join(format!("{file}.{}{UNFINISHED}", std::process::id()));
        let written = write_all(&beside, &head, bytes).and_then(|()| fs::rename(&beside, &place));
        if written.is_err() {
            let _ = fs::remove_file(&beside);
        }
        written.map(|()| Wrote::Whole)
    }

    pub(crate) fn remove(&self, file: &str) {
        // What is gone already is gone.
        let _ = fs::remove_file(self.path.join(file));
    }

    /// Whole files with an ending, the one used last comes last.
    pub(crate) fn files(&self, ending: &str) -> io::Result<Vec<String>> {
        let mut files = self.list()?;
        files.retain(|entry| entry.file.rsplit_once('.').is_some_and(|(_, found)| found == ending));
        files.sort_unstable_by(|a, b| (a.used, &a.file).cmp(&(b.used, &b.file)));
        Ok(files.into_iter().map(|entry| entry.file).collect())
    }

    /// Every file that a store has made here, unfinished ones included, which take room, too. What else lies here is
    /// somebody's own.
    fn list(&self) -> io::Result<Vec<Entry>> {
        let mut files = Vec::new();
        for entry in fs::read_dir(&self.path)?.take(2 * MAX_FILES) {
            let entry = entry?;
            // Another process may have removed it meanwhile.
            let Ok(data) = entry.metadata() else { continue };
            let (Ok(file), true) = (entry.file_name().into_string(), data.is_file()) else { continue };
            if !is_ours(&file) {
                continue;
            }
            let used = data.modified().unwrap_or(UNIX_EPOCH);
            let used = used.duration_since(UNIX_EPOCH).unwrap_or_default();
            files.push(Entry { file, bytes: data.len(), used });
        }
        Ok(files)
    }

    /// Removes what processes that are gone have left unfinished.
    fn sweep(&self) -> io::Result<()> {
        let now = now().duration_since(UNIX_EPOCH).unwrap_or_default();
        for entry in self.list()? {
            if entry.file.ends_with(UNFINISHED) && now.saturating_sub(entry.used) > ABANDONED {
                self.remove(&entry.file);
            }
        }
        Ok(())
    }
}

/// Whether a name begins as [`Name::file`] does: a digest in hexadecimal digits and an ending.
fn is_ours(file: &str) -> bool {
    let digest = file.split_once('.').map_or("", |(digest, _)| digest);
    digest.len() == 64 && digest.bytes().all(|byte| byte.is_ascii_hexdigit())
}

fn now() -> SystemTime {
    #[expect(clippy::disallowed_methods, reason = "files carry the time when they were used")]
    SystemTime::now()
}

fn write_all(path: &Path, head: &[u8], bytes: &[&[u8]]) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file: File = options.open(path)?;
    file.write_all(head)?;
    bytes.iter().try_for_each(|bytes| file.write_all(bytes))
}

/// Prompts can be read from what is stored: nobody but the owner may look.
fn make_private(path: &Path) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::{DirBuilderExt as _, PermissionsExt as _};
        builder.mode(0o700).create(path)?;
        fs::set_permissions(path, fs::Permissions::from_mode(0o700))
    }
    #[cfg(not(unix))]
    builder.create(path)
}
