//! Which model a file holds: a digest over metadata and tensor data, and a cache of it by file.
//!
//! Owns what counts as the same model. How it is spread over files, and how its data is aligned, does not count.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

use crate::header::ALIGNMENT_KEY;
use crate::write::{Progress, TempFile, chunks};
use crate::{Identity, Model};

/// Part of what is hashed: another scheme gives other identities.
const SCHEME: &[u8] = b"paceline model identity 1\0";
const CACHE_HEAD: &str = "paceline identity 1";

/// An identity that could not be computed.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// A file could not be read.
    #[error("cannot read {path}: check the disk")]
    Read {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file was written to meanwhile.
    #[error("{path} changed while it was read; wait until it is complete and try again")]
    Changed {
        /// Which model.
        path: PathBuf,
    },
    /// The cache folder cannot be written.
    #[error("cannot write {path}: check free space and permissions")]
    Cache {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// Reads the whole model and digests it: about a second per gigabyte from memory, else as fast as the disk.
///
/// Hashed are, each with its length: the keys in alphabetical order with type and value, without `split.*` and
/// `general.alignment`; then the tensors in file order with name, shape, type and data.
///
/// # Errors
/// If a file cannot be read, or changes meanwhile.
pub fn identity(model: &Model, progress: Progress<'_>) -> Result<Identity, IdentityError> {
    let before = fingerprint(model)?;
    let mut hasher = blake3::Hasher::new();
    hasher.update(SCHEME);
    hash_metadata(model, &mut hasher);
    hash_tensors(model, &mut hasher, progress)?;
    if fingerprint(model)? != before {
        return Err(IdentityError::Changed { path: model.path().to_owned() });
    }
    Ok(hasher.finalize().into())
}

fn hash_metadata(model: &Model, hasher: &mut blake3::Hasher) {
    let mut entries: Vec<_> = model
        .metadata()
        .iter()
        .filter(|(key, _)| !key.starts_with("split.") && *key != ALIGNMENT_KEY)
        .collect();
    entries.sort_unstable_by_key(|(key, _)| *key);
    hasher.update(&(entries.len() as u64).to_le_bytes());
    for (key, value) in entries {
        hash_sized(hasher, key.as_bytes());
        hasher.update(&(value.value_type() as u32).to_le_bytes());
        hash_sized(hasher, value.raw());
    }
}

fn hash_tensors(
    model: &Model,
    hasher: &mut blake3::Hasher,
    progress: Progress<'_>,
) -> Result<(), IdentityError> {
    let total = model.tensors().iter().map(|tensor| tensor.bytes).sum();
    let mut done = 0;
    let mut buffer = Vec::new();
    hasher.update(&(model.tensors().len() as u64).to_le_bytes());
    for tensor in model.tensors() {
        hash_sized(hasher, tensor.name.as_bytes());
        hasher.update(&(tensor.dims.len() as u64).to_le_bytes());
        for dim in &tensor.dims {
            hasher.update(&dim.to_le_bytes());
        }
        hasher.update(&tensor.ty.id().to_le_bytes());
        hasher.update(&tensor.bytes.to_le_bytes());
        for (start, len) in chunks(tensor.bytes) {
            buffer.resize(len, 0);
            model
                .read_at(tensor, start, &mut buffer)
                .map_err(|source| IdentityError::Read { path: model.file_of(tensor).to_owned(), source })?;
            hasher.update(&buffer);
            done += len as u64;
            progress(done, total);
        }
    }
    Ok(())
}

fn hash_sized(hasher: &mut blake3::Hasher, bytes: &[u8]) {
    hasher.update(&(bytes.len() as u64).to_le_bytes());
    hasher.update(bytes);
}

/// Paths, lengths and modification times of a model's files: changes when one of them does.
fn fingerprint(model: &Model) -> Result<blake3::Hash, IdentityError> {
    let mut hasher = blake3::Hasher::new();
    for (path, file) in model.handles() {
        let read = |source| IdentityError::Read { path: path.to_owned(), source };
        let path = fs::canonicalize(path).map_err(read)?;
        hash_sized(&mut hasher, path.as_os_str().as_encoded_bytes());
        hash_file_state(&mut hasher, file).map_err(read)?;
    }
    Ok(hasher.finalize())
}

fn hash_file_state(hasher: &mut blake3::Hasher, file: &File) -> io::Result<()> {
    let meta = file.metadata()?;
    hasher.update(&meta.len().to_le_bytes());
    let modified = match meta.modified()?.duration_since(UNIX_EPOCH) {
        Ok(after) => after.as_nanos().cast_signed(),
        Err(before) => -before.duration().as_nanos().cast_signed(),
    };
    hasher.update(&modified.to_le_bytes());
    // A file renamed over another within one tick of the clock is told apart by its number.
    #[cfg(unix)]
    hasher.update(&std::os::unix::fs::MetadataExt::ino(&meta).to_le_bytes());
    Ok(())
}

/// Identities that were computed before, in one small file per model.
#[derive(Clone, Debug)]
pub struct IdentityCache {
    folder: PathBuf,
}

impl IdentityCache {
    /// A cache in `folder`, which is made when needed.
    #[must_use]
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into() }
    }

    /// The model's identity: from the cache while path, lengths and modification times of its files are the same, else
    /// computed and remembered.
    ///
    /// # Errors
    /// As [`identity`], and if the cache cannot be written.
    pub fn identity(&self, model: &Model, progress: Progress<'_>) -> Result<Identity, IdentityError> {
        if let Some(known) = self.known(model)? {
            return Ok(known);
        }
        let state = fingerprint(model)?;
        let computed = identity(model, progress)?;
        if fingerprint(model)? != state {
            return Err(IdentityError::Changed { path: model.path().to_owned() });
        }
        let path = self.entry(model)?;
        let text = format!("{CACHE_HEAD}\n{}\n{computed}\n", state.to_hex());
        fs::create_dir_all(&self.folder)
            .and_then(|()| {
                let temp = TempFile::create(&path)?;
                temp.file().write_all(text.as_bytes())?;
                temp.persist()
            })
            .map_err(|source| IdentityError::Cache { path, source })?;
        Ok(computed)
    }

    /// The model's identity if it is in the cache and its files are as they were.
    ///
    /// # Errors
    /// If the model's files cannot be looked at.
    pub fn known(&self, model: &Model) -> Result<Option<Identity>, IdentityError> {
        let state = fingerprint(model)?.to_hex();
        // A missing or damaged entry only costs the computation.
        let Ok(text) = fs::read_to_string(self.entry(model)?) else { return Ok(None) };
        let mut lines = text.lines();
        let fits = lines.next() == Some(CACHE_HEAD) && lines.next() == Some(state.as_str());
        Ok(lines.next().filter(|_| fits).and_then(|line| line.parse().ok()))
    }

    /// The model with this identity in a folder (not in its subfolders): those whose identity is known are asked first,
    /// then the others are read, in order of their names. Files that are no models, later parts and slices are passed
    /// over.
    ///
    /// # Errors
    /// If the folder or a model cannot be read, or the cache cannot be written.
    pub fn find(
        &self,
        folder: &Path,
        wanted: Identity,
        progress: Progress<'_>,
    ) -> Result<Option<Model>, IdentityError> {
        let mut unknown = vec![];
        for path in
            files_in(folder).map_err(|source| IdentityError::Read { path: folder.to_owned(), source })?
        {
            let Ok(model) = Model::open(&path) else { continue };
            if model.tensors().is_empty() || model.metadata().get("paceline.model_id").is_some() {
                continue;
            }
            match self.known(&model)? {
                Some(known) if known == wanted => return Ok(Some(model)),
                Some(_) => {}
                // Not kept open: a folder may hold more models than a process may have files.
                None => unknown.push(path),
            }
        }
        for path in unknown {
            let Ok(model) = Model::open(&path) else { continue };
            if self.identity(&model, progress)? == wanted {
                return Ok(Some(model));
            }
        }
        Ok(None)
    }

    fn entry(&self, model: &Model) -> Result<PathBuf, IdentityError> {
        let path = model.path();
        let path =
            fs::canonicalize(path).map_err(|source| IdentityError::Read { path: path.to_owned(), source })?;
        Ok(self.folder.join(entry_name(&path)))
    }
}

fn files_in(folder: &Path) -> io::Result<Vec<PathBuf>> {
    let mut paths = fs::read_dir(folder)?
        .map(|entry| Ok(entry?.path()))
        .filter(|path| path.as_ref().map_or(true, |path| path.extension().is_some_and(|ext| ext == "gguf")))
        .collect::<io::Result<Vec<_>>>()?;
    paths.sort_unstable();
    Ok(paths)
}

fn entry_name(path: &Path) -> String {
    format!("{}.id", &blake3::hash(path.as_os_str().as_encoded_bytes()).to_hex()[..32])
}
