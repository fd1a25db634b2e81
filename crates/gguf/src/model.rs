//! A model on disk: one GGUF file, or several shards read as one.
//!
//! Owns opening, the shard rules, and reading tensor data by position. Does not map files into memory.

use std::fs::File;
use std::io::{self, BufReader};
use std::path::{Path, PathBuf};

use crate::header::{self, Entry, HeaderError, Index};
use crate::{Metadata, TensorType};

/// A tensor of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tensor {
    /// As llama.cpp names it.
    pub name: String,
    /// Elements per dimension, fastest first; at least one dimension, none is 0.
    pub dims: Vec<u64>,
    /// How its elements are stored.
    pub ty: TensorType,
    /// Which of the model's files holds it.
    pub shard: usize,
    /// Where its data starts in that file, in bytes.
    pub offset: u64,
    /// Bytes of its data.
    pub bytes: u64,
}

impl Tensor {
    /// Elements in a row.
    #[must_use]
    pub fn row_elements(&self) -> u64 {
        self.dims[0]
    }

    /// Bytes in a row.
    #[must_use]
    pub fn row_bytes(&self) -> u64 {
        self.ty.row_bytes(self.dims[0]).expect("checked when the file was opened")
    }

    /// Number of rows.
    #[must_use]
    pub fn n_rows(&self) -> u64 {
        self.dims[1..].iter().product()
    }

    /// The layer it belongs to (`blk.N.`) and the rest of its name; none for tensors of the whole model.
    #[must_use]
    pub fn layer(&self) -> Option<(u32, &str)> {
        let (layer, rest) = self.name.strip_prefix("blk.")?.split_once('.')?;
        // Only as llama.cpp writes it: "07" is another name than "7".
        let number: u32 = layer.parse().ok()?;
        (number.to_string() == layer).then_some((number, rest))
    }
}

/// A model that cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The file is missing or may not be read.
    #[error("cannot open {path}: check the path and its permissions")]
    Io {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The file is not usable.
    #[error("{path}: {source}")]
    Header {
        /// Which file.
        path: PathBuf,
        /// What is wrong with it.
        source: HeaderError,
    },
    /// A shard other than the first was named.
    #[error("{path} is part {number} of {count}; give the first part instead")]
    NotFirstShard {
        /// Which file.
        path: PathBuf,
        /// Its place, from 1.
        number: u64,
        /// How many there are.
        count: u64,
    },
    /// The first shard's name does not say how the others are called.
    #[error(
        "{path} is the first of {count} parts, so its name must end in -00001-of-{count:05}.gguf; rename it back"
    )]
    ShardName {
        /// Which file.
        path: PathBuf,
        /// How many there are.
        count: u64,
    },
    /// A shard is not there.
    #[error("{path} is missing; put all {count} parts of the model into one folder")]
    MissingShard {
        /// Where it should be.
        path: PathBuf,
        /// How many there are.
        count: u64,
    },
    /// A shard belongs to another model or place.
    #[error("{path} is not part {number} of the same {count}; download that part again")]
    WrongShard {
        /// Which file.
        path: PathBuf,
        /// The place it should have, from 1.
        number: u64,
        /// How many there are.
        count: u64,
    },
    /// The same tensor in two shards.
    #[error("{path} repeats tensor {tensor} of an earlier part; download the model again")]
    DuplicateTensor {
        /// The later file.
        path: PathBuf,
        /// Which tensor.
        tensor: String,
    },
    /// The shards hold fewer or more tensors than the first one announces.
    #[error("{path}: its parts hold {found} tensors instead of {expected}; download the model again")]
    TensorCount {
        /// The first file.
        path: PathBuf,
        /// Announced.
        expected: u64,
        /// There.
        found: u64,
    },
}

/// A model on disk, opened: its files stay open and are read by position, so it can be shared between threads.
#[derive(Debug)]
pub struct Model {
    shards: Vec<(PathBuf, File)>,
    metadata: Metadata,
    tensors: Vec<Tensor>,
    index: Index,
}

impl Model {
    /// Opens a GGUF file; if it is the first of several parts, all of them.
    ///
    /// # Errors
    /// If a file is missing, damaged, of another format, or does not belong to the others.
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        let (file, head) = open_one(path)?;
        let number = head.metadata.get("split.no").and_then(crate::Value::as_u64).unwrap_or(0);
        let count = head.metadata.get("split.count").and_then(crate::Value::as_u64).unwrap_or(1);
        if number != 0 {
            return Err(OpenError::NotFirstShard {
                path: path.to_owned(),
                number: number.saturating_add(1),
                count,
            });
        }
        let mut model =
            Self { shards: vec![], metadata: head.metadata, tensors: vec![], index: Index::default() };
        model.add_shard(path.to_owned(), file, head.tensors)?;
        if count > 1 {
            model.open_others(path, count)?;
        }
        Ok(model)
    }

    fn open_others(&mut self, first: &Path, count: u64) -> Result<(), OpenError> {
        let stem = first
            .file_name()
            .and_then(|name| name.to_str())
            .and_then(|name| name.strip_suffix(&shard_suffix(1, count)))
            .ok_or_else(|| OpenError::ShardName { path: first.to_owned(), count })?;
        for number in 2..=count {
            let path = first.with_file_name(format!("{stem}{}", shard_suffix(number, count)));
            if !path.exists() {
                return Err(OpenError::MissingShard { path, count });
            }
            let (file, head) = open_one(&path)?;
            let has = |key, value| head.metadata.get(key).and_then(crate::Value::as_u64) == Some(value);
            if !has("split.no", number - 1) || !has("split.count", count) {
                return Err(OpenError::WrongShard { path, number, count });
            }
            self.add_shard(path, file, head.tensors)?;
        }
        let found = self.tensors.len() as u64;
        match self.metadata.get("split.tensors.count").and_then(crate::Value::as_u64) {
            Some(expected) if expected != found => {
                Err(OpenError::TensorCount { path: first.to_owned(), expected, found })
            }
            _ => Ok(()),
        }
    }

    fn add_shard(&mut self, path: PathBuf, file: File, entries: Vec<Entry>) -> Result<(), OpenError> {
        for Entry { name, dims, ty, offset, bytes } in entries {
            if !self.index.insert(&name, self.tensors.len()) {
                return Err(OpenError::DuplicateTensor { path, tensor: name });
            }
            self.tensors.push(Tensor { name, dims, ty, shard: self.shards.len(), offset, bytes });
        }
        self.shards.push((path, file));
        Ok(())
    }

    /// The file given to [`Model::open`].
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.shards[0].0
    }

    /// All files, the first one first.
    pub fn files(&self) -> impl ExactSizeIterator<Item = &Path> {
        self.shards.iter().map(|(path, _)| path.as_path())
    }

    /// The file that holds a tensor.
    #[must_use]
    pub fn file_of(&self, tensor: &Tensor) -> &Path {
        &self.shards[tensor.shard].0
    }

    pub(crate) fn handles(&self) -> impl ExactSizeIterator<Item = (&Path, &File)> {
        self.shards.iter().map(|(path, file)| (path.as_path(), file))
    }

    /// The first file's metadata.
    #[must_use]
    pub const fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// All tensors in file order.
    #[must_use]
    pub fn tensors(&self) -> &[Tensor] {
        &self.tensors
    }

    /// The tensor of this name.
    #[must_use]
    pub fn tensor(&self, name: &str) -> Option<&Tensor> {
        self.index.get(name).map(|at| &self.tensors[at])
    }

    /// `general.architecture`; empty if the file does not say.
    #[must_use]
    pub fn arch(&self) -> &str {
        self.metadata.get_str("general.architecture").unwrap_or_default()
    }

    /// A value under the architecture's own prefix, such as `block_count`.
    #[must_use]
    pub fn arch_value(&self, key: &str) -> Option<&crate::Value> {
        self.metadata.get(&format!("{}.{key}", self.arch()))
    }

    /// A count under the architecture's own prefix.
    #[must_use]
    pub fn arch_u32(&self, key: &str) -> Option<u32> {
        self.arch_value(key)?.as_u64()?.try_into().ok()
    }

    /// Values in a hidden row; 0 if the file does not say.
    #[must_use]
    pub fn n_embd(&self) -> u32 {
        self.arch_u32("embedding_length").unwrap_or(0)
    }

    /// Blocks in the file, those that only draft (NextN) included; 0 if the file does not say.
    #[must_use]
    pub fn n_blocks(&self) -> u32 {
        self.arch_u32("block_count").unwrap_or(0)
    }

    /// Layers that every token passes: blocks without the drafting ones at the end.
    #[must_use]
    pub fn n_layers(&self) -> u32 {
        self.n_blocks().saturating_sub(self.arch_u32("nextn_predict_layers").unwrap_or(0))
    }

    /// Reads tensor data from byte `at` of the tensor on, filling `out`.
    ///
    /// # Errors
    /// If the system cannot read, or the file has become shorter.
    ///
    /// # Panics
    /// If the range ends outside the tensor.
    pub fn read_at(&self, tensor: &Tensor, at: u64, out: &mut [u8]) -> io::Result<()> {
        let end = at.checked_add(out.len() as u64).expect("lengths in memory are small");
        assert!(end <= tensor.bytes, "{} has {} bytes, not {end}", tensor.name, tensor.bytes);
        read_exact_at(&self.shards[tensor.shard].1, tensor.offset + at, out)
    }

    /// Reads a whole tensor's data.
    ///
    /// # Errors
    /// As [`Model::read_at`].
    pub fn read_tensor(&self, tensor: &Tensor) -> io::Result<Vec<u8>> {
        let len = usize::try_from(tensor.bytes).map_err(|_| io::ErrorKind::OutOfMemory)?;
        let mut out = vec![0; len];
        self.read_at(tensor, 0, &mut out)?;
        Ok(out)
    }
}

pub(crate) fn shard_suffix(number: u64, count: u64) -> String {
    format!("-{number:05}-of-{count:05}.gguf")
}

fn open_one(path: &Path) -> Result<(File, header::Header), OpenError> {
    let io = |source| OpenError::Io { path: path.to_owned(), source };
    let file = File::open(path).map_err(io)?;
    let meta = file.metadata().map_err(io)?;
    if !meta.is_file() {
        return Err(io(io::Error::new(io::ErrorKind::InvalidInput, "it is not a file")));
    }
    let head = header::parse(BufReader::with_capacity(1 << 20, &file), meta.len())
        .map_err(|source| OpenError::Header { path: path.to_owned(), source })?;
    Ok((file, head))
}

#[cfg(unix)]
fn read_exact_at(file: &File, at: u64, out: &mut [u8]) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, out, at)
}

#[cfg(windows)]
fn read_exact_at(file: &File, mut at: u64, mut out: &mut [u8]) -> io::Result<()> {
    while !out.is_empty() {
        match std::os::windows::fs::FileExt::seek_read(file, out, at)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            n => (at, out) = (at + n as u64, &mut out[n..]),
        }
    }
    Ok(())
}
