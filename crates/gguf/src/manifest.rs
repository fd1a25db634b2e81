//! A folder of slices of one model and the manifest that lists them with their digests.
//!
//! Owns the folder's layout, its locks, and checking files against the manifest.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::slice::{SLICE_VERSION, embeddings_path, nextn_path, write_slice, write_vocab};
use crate::write::{CHUNK_BYTES, Progress, TempFile};
use crate::{FileDigest, Identity, Plan, Source, WriteError, Written};

/// The manifest's name in its folder.
pub const MANIFEST_FILE: &str = "manifest.json";
/// Bytes of a manifest: a slice takes about 400, a model has at most [`crate::MAX_LAYERS`].
const MAX_MANIFEST_BYTES: u64 = 64 << 20;
const VOCAB_FILE: &str = "vocab.gguf";
const LOCK_FILE: &str = ".lock";

/// What a folder of slices holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// [`SLICE_VERSION`] of the slices.
    pub version: u32,
    /// The model they were cut from.
    pub model_id: Identity,
    /// `general.architecture` of the model.
    pub arch: String,
    /// Layers of the whole model.
    pub n_layers: u32,
    /// The model's metadata without tensors.
    pub vocab: FileRecord,
    /// By range; ranges may overlap, because a folder may hold several splits.
    pub slices: Vec<SliceRecord>,
}

/// A slice.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SliceRecord {
    /// First layer.
    pub start: u32,
    /// One past the last layer.
    pub end: u32,
    /// The model file.
    pub slice: FileRecord,
    /// The embedding rows, beside the slice of a first stage.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub embeddings: Option<FileRecord>,
    /// The blocks that draft, beside the slice of a tail that needs it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nextn: Option<FileRecord>,
}

impl SliceRecord {
    /// All its files.
    pub fn files(&self) -> impl Iterator<Item = &FileRecord> {
        [Some(&self.slice), self.embeddings.as_ref(), self.nextn.as_ref()].into_iter().flatten()
    }
}

/// A file of the folder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileRecord {
    /// Its name, without folders.
    pub file: String,
    /// Its length.
    pub bytes: u64,
    /// Its content.
    pub blake3: FileDigest,
}

/// A folder of slices that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FolderError {
    /// A slice could not be written.
    #[error(transparent)]
    Write(#[from] WriteError),
    /// A file of the folder could not be read or written.
    #[error("cannot use {path}: check that it is there, and its permissions")]
    Io {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The manifest is damaged.
    #[error("{path} is not a manifest of slices: {reason}; delete the folder and cut the model again")]
    Manifest {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        reason: String,
    },
    /// The folder holds slices of another model.
    #[error("{folder} holds slices of another model; choose another folder")]
    OtherModel {
        /// Which folder.
        folder: PathBuf,
    },
    /// No such slice.
    #[error("{folder} has no slice of layers {start}..{end}; cut the model with `paceline split`")]
    NoSlice {
        /// Which folder.
        folder: PathBuf,
        /// First layer.
        start: u32,
        /// One past the last layer.
        end: u32,
    },
    /// A file differs from what was written.
    #[error("{path} is damaged; delete it and cut the model again")]
    Damaged {
        /// Which file.
        path: PathBuf,
    },
}

impl Manifest {
    /// Reads a folder's manifest.
    ///
    /// # Errors
    /// If there is none, or it is damaged.
    pub fn read(folder: &Path) -> Result<Self, FolderError> {
        let path = folder.join(MANIFEST_FILE);
        let io = |source| FolderError::Io { path: path.clone(), source };
        let mut text = String::new();
        File::open(&path)
            .and_then(|file| file.take(MAX_MANIFEST_BYTES).read_to_string(&mut text))
            .map_err(io)?;
        let bad = |reason: String| FolderError::Manifest { path: path.clone(), reason };
        let manifest: Self = serde_json::from_str(&text).map_err(|error| bad(error.to_string()))?;
        for record in manifest.files() {
            // A name from a manifest never leads out of its folder.
            if Path::new(&record.file).file_name().is_none_or(|name| *name != *record.file) {
                return Err(bad(format!("{} is not a file name", record.file)));
            }
        }
        Ok(manifest)
    }

    /// All files that it lists.
    pub fn files(&self) -> impl Iterator<Item = &FileRecord> {
        std::iter::once(&self.vocab).chain(self.slices.iter().flat_map(SliceRecord::files))
    }

    /// The slice of these layers.
    #[must_use]
    pub fn slice(&self, range: &Range<u32>) -> Option<&SliceRecord> {
        self.slices.iter().find(|record| record.start == range.start && record.end == range.end)
    }

    fn write(&self, folder: &Path) -> Result<(), FolderError> {
        let path = folder.join(MANIFEST_FILE);
        let text = serde_json::to_string_pretty(self).expect("plain data has a JSON form");
        let write = || {
            let temp = TempFile::create(&path)?;
            temp.file().write_all(text.as_bytes())?;
            temp.persist()
        };
        write().map_err(|source| FolderError::Io { path: path.clone(), source })
    }
}

impl FileRecord {
    fn new(file: impl Into<String>, written: Written) -> Self {
        Self { file: file.into(), bytes: written.bytes, blake3: written.digest }
    }

    fn is_in(&self, folder: &Path) -> bool {
        fs::metadata(folder.join(&self.file)).is_ok_and(|meta| meta.len() == self.bytes)
    }

    /// Reads the file and compares its digest.
    ///
    /// # Errors
    /// If it is missing, cannot be read, or one byte differs.
    pub fn verify(&self, folder: &Path, progress: Progress<'_>) -> Result<(), FolderError> {
        let path = folder.join(&self.file);
        let io = |source| FolderError::Io { path: path.clone(), source };
        let mut file = File::open(&path).map_err(io)?;
        let mut hasher = blake3::Hasher::new();
        let mut buffer = vec![0; CHUNK_BYTES];
        let mut done = 0;
        loop {
            let n = file.read(&mut buffer).map_err(io)?;
            done += n as u64;
            if n == 0 || done > self.bytes {
                break;
            }
            hasher.update(&buffer[..n]);
            progress(done, self.bytes);
        }
        if done == self.bytes && FileDigest::from(hasher.finalize()) == self.blake3 {
            return Ok(());
        }
        Err(FolderError::Damaged { path })
    }
}

/// A folder of slices of one model. Several processes may use it at once.
#[derive(Debug)]
pub struct SliceFolder<'s, 'm> {
    folder: PathBuf,
    source: &'s Source<'m>,
    model_id: Identity,
}

impl<'s, 'm> SliceFolder<'s, 'm> {
    /// Uses `folder`, which is made if needed, for slices of this model.
    ///
    /// # Errors
    /// If it cannot be written, or holds another model's slices.
    pub fn open(folder: &Path, source: &'s Source<'m>, model_id: Identity) -> Result<Self, FolderError> {
        fs::create_dir_all(folder).map_err(|source| FolderError::Io { path: folder.to_owned(), source })?;
        let this = Self { folder: folder.to_owned(), source, model_id };
        let lock = this.lock(LOCK_FILE)?;
        this.current_manifest()?;
        drop(lock);
        Ok(this)
    }

    /// The manifest as it is now, made first if there is none; without slices of another version. Needs the lock.
    fn current_manifest(&self) -> Result<Manifest, FolderError> {
        let mut slices = vec![];
        if self.folder.join(MANIFEST_FILE).exists() {
            let manifest = Manifest::read(&self.folder)?;
            if manifest.model_id != self.model_id {
                return Err(FolderError::OtherModel { folder: self.folder.clone() });
            }
            if manifest.version == SLICE_VERSION {
                if manifest.vocab.is_in(&self.folder) {
                    return Ok(manifest);
                }
                slices = manifest.slices;
            }
        }
        let vocab = write_vocab(self.source.model(), &self.folder.join(VOCAB_FILE))?;
        let manifest = Manifest {
            version: SLICE_VERSION,
            model_id: self.model_id,
            arch: self.source.arch().name.to_owned(),
            n_layers: self.source.n_layers(),
            vocab: FileRecord::new(VOCAB_FILE, vocab),
            slices,
        };
        manifest.write(&self.folder)?;
        Ok(manifest)
    }

    /// The vocabulary file: the model's metadata without tensors.
    #[must_use]
    pub fn vocab_path(&self) -> PathBuf {
        self.folder.join(VOCAB_FILE)
    }

    /// The slice of these layers, written now unless it is there already (with its recorded length: its digest is
    /// checked only by [`FileRecord::verify`]).
    ///
    /// # Errors
    /// If the range cannot be a stage, or a file cannot be read or written.
    pub fn ensure(&self, range: Range<u32>, progress: Progress<'_>) -> Result<PathBuf, FolderError> {
        let name = slice_name(&range);
        let path = self.folder.join(&name);
        // One lock per slice, so that stages of one line cut at the same time; the manifest's is held only briefly.
        let _writing = self.lock(&format!(".{name}.lock"))?;
        if self.has(&range)? {
            return Ok(path);
        }
        let written = write_slice(self.source, self.model_id, range.clone(), &path, progress)?;
        let beside = |path: PathBuf, written| {
            FileRecord::new(path.file_name().expect("it has the slice's name").to_string_lossy(), written)
        };
        let embeddings = written.embeddings.map(|written| beside(embeddings_path(&path), written));
        let nextn = written.nextn.map(|written| beside(nextn_path(&path), written));
        let slice = FileRecord::new(name, written.slice);
        let record = SliceRecord { start: range.start, end: range.end, slice, embeddings, nextn };
        let _listing = self.lock(LOCK_FILE)?;
        let mut manifest = self.current_manifest()?;
        manifest.slices.retain(|other| (other.start, other.end) != (range.start, range.end));
        manifest.slices.push(record);
        manifest.slices.sort_by_key(|record| (record.start, record.end));
        manifest.write(&self.folder)?;
        Ok(path)
    }

    /// Writes all slices of a plan that are not there yet, and says where they are, first to tail.
    ///
    /// # Errors
    /// As [`SliceFolder::ensure`].
    pub fn ensure_all(&self, plan: &Plan, progress: Progress<'_>) -> Result<Vec<PathBuf>, FolderError> {
        let total: u64 = plan.stages.iter().map(|stage| stage.bytes).sum();
        let mut before = 0;
        let mut paths = vec![];
        for stage in &plan.stages {
            // A stage's own figure includes what balancing does not count, so it is scaled to the stage's share.
            let mut scaled = |done: u64, of: u64| {
                let share = u128::from(stage.bytes) * u128::from(done) / u128::from(of.max(1));
                progress(before + share as u64, total);
            };
            paths.push(self.ensure(stage.range.clone(), &mut scaled)?);
            before += stage.bytes;
            progress(before, total);
        }
        Ok(paths)
    }

    fn has(&self, range: &Range<u32>) -> Result<bool, FolderError> {
        let _listing = self.lock(LOCK_FILE)?;
        let manifest = self.current_manifest()?;
        let is_whole = |record: &SliceRecord| record.files().all(|file| file.is_in(&self.folder));
        Ok(manifest.slice(range).is_some_and(is_whole))
    }

    /// Waits for a lock that ends with the returned file.
    fn lock(&self, name: &str) -> Result<File, FolderError> {
        let path = self.folder.join(name);
        let lock = || {
            let file = File::options().create(true).truncate(false).write(true).open(&path)?;
            file.lock()?;
            Ok(file)
        };
        lock().map_err(|source| FolderError::Io { path: path.clone(), source })
    }
}

/// The file name of the slice of these layers.
#[must_use]
pub fn slice_name(range: &Range<u32>) -> String {
    format!("layers-{:03}-{:03}.gguf", range.start, range.end)
}

/// Reads a slice and what belongs to it, and compares with the manifest.
///
/// # Errors
/// If the manifest does not list it, a file is missing, or one byte differs.
pub fn verify_slice(
    folder: &Path,
    manifest: &Manifest,
    range: &Range<u32>,
    progress: Progress<'_>,
) -> Result<(), FolderError> {
    let record = manifest.slice(range).ok_or_else(|| FolderError::NoSlice {
        folder: folder.to_owned(),
        start: range.start,
        end: range.end,
    })?;
    record.files().try_for_each(|file| file.verify(folder, progress))
}
