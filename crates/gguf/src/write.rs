//! Writing one GGUF file: whole or not at all, and digested on the way.
//!
//! Owns the file format's writing side and the temporary file. Does not know what the tensors mean.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::header::{ALIGNMENT_KEY, DEFAULT_ALIGNMENT, MAGIC};
use crate::{FileDigest, Metadata, Tensor, TensorType};

/// Bytes copied at a time: a bound on memory, large enough for a disk.
pub(crate) const CHUNK_BYTES: usize = 1 << 20;
const VERSION: u32 = 3;
static NEXT_TEMP: AtomicU64 = AtomicU64::new(0);

/// Called with bytes done and bytes in all.
pub type Progress<'a> = &'a mut dyn FnMut(u64, u64);

/// A tensor to be written.
#[derive(Clone, Debug)]
pub(crate) struct NewTensor {
    pub name: String,
    pub dims: Vec<u64>,
    pub ty: TensorType,
    pub bytes: u64,
}

impl NewTensor {
    /// One of the same name, shape and type.
    pub(crate) fn like(tensor: &Tensor) -> Self {
        Self { name: tensor.name.clone(), dims: tensor.dims.clone(), ty: tensor.ty, bytes: tensor.bytes }
    }
}

/// Writes a file of metadata and tensors; `fill` writes the data of the tensor at the given index. Nothing appears at
/// `path` before all of it is on disk.
pub(crate) fn write_file(
    path: &Path,
    metadata: &Metadata,
    tensors: &[NewTensor],
    mut fill: impl FnMut(usize, &mut Output<'_>) -> io::Result<()>,
    progress: Progress<'_>,
) -> io::Result<(u64, FileDigest)> {
    let temp = TempFile::create(path)?;
    let total = tensors.iter().map(|tensor| tensor.bytes).sum();
    let writer = BufWriter::with_capacity(CHUNK_BYTES, &temp.file);
    let mut out = Output { writer, hasher: blake3::Hasher::new(), written: 0, data: 0, total, progress };
    out.put(&head(metadata, tensors))?;
    if !tensors.is_empty() {
        out.pad()?;
    }
    for (at, tensor) in tensors.iter().enumerate() {
        let end = out.written + tensor.bytes;
        fill(at, &mut out)?;
        assert_eq!(out.written, end, "{} was filled with another length than announced", tensor.name);
        out.pad()?;
    }
    out.writer.flush()?;
    let (written, digest) = (out.written, out.hasher.finalize().into());
    drop(out);
    temp.persist()?;
    Ok((written, digest))
}

fn head(metadata: &Metadata, tensors: &[NewTensor]) -> Vec<u8> {
    let mut head = MAGIC.to_vec();
    let text = |head: &mut Vec<u8>, text: &str| {
        head.extend_from_slice(&(text.len() as u64).to_le_bytes());
        head.extend_from_slice(text.as_bytes());
    };
    head.extend_from_slice(&VERSION.to_le_bytes());
    head.extend_from_slice(&(tensors.len() as u64).to_le_bytes());
    // Data is always written with the default alignment.
    let entries: Vec<_> = metadata.iter().filter(|(key, _)| *key != ALIGNMENT_KEY).collect();
    head.extend_from_slice(&(entries.len() as u64).to_le_bytes());
    for (key, value) in entries {
        text(&mut head, key);
        head.extend_from_slice(&(value.value_type() as u32).to_le_bytes());
        head.extend_from_slice(value.raw());
    }
    let mut offset: u64 = 0;
    for NewTensor { name, dims, ty, bytes } in tensors {
        text(&mut head, name);
        head.extend_from_slice(&(dims.len() as u32).to_le_bytes());
        dims.iter().for_each(|dim| head.extend_from_slice(&dim.to_le_bytes()));
        head.extend_from_slice(&ty.id().to_le_bytes());
        head.extend_from_slice(&offset.to_le_bytes());
        offset += bytes.next_multiple_of(DEFAULT_ALIGNMENT);
    }
    head
}

/// Where tensor data goes.
pub(crate) struct Output<'a> {
    writer: BufWriter<&'a File>,
    hasher: blake3::Hasher,
    written: u64,
    data: u64,
    total: u64,
    progress: Progress<'a>,
}

impl Output<'_> {
    fn put(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.hasher.update(bytes);
        self.written += bytes.len() as u64;
        self.writer.write_all(bytes)
    }

    /// Writes tensor data.
    pub(crate) fn data(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.put(bytes)?;
        self.data += bytes.len() as u64;
        (self.progress)(self.data, self.total);
        Ok(())
    }

    /// Writes zero bytes.
    pub(crate) fn zeros(&mut self, n: u64) -> io::Result<()> {
        chunks(n).try_for_each(|(_, len)| self.data(&vec![0; len]))
    }

    fn pad(&mut self) -> io::Result<()> {
        let n = self.written.next_multiple_of(DEFAULT_ALIGNMENT) - self.written;
        self.put(&[0; DEFAULT_ALIGNMENT as usize][..n as usize])
    }
}

/// Start and length of the pieces of `n` bytes, each at most [`CHUNK_BYTES`] long.
pub(crate) fn chunks(n: u64) -> impl Iterator<Item = (u64, usize)> {
    (0..n).step_by(CHUNK_BYTES).map(move |start| (start, (n - start).min(CHUNK_BYTES as u64) as usize))
}

/// A file that takes its final name only when it is complete.
pub(crate) struct TempFile {
    file: File,
    temp: PathBuf,
    path: PathBuf,
    kept: bool,
}

impl TempFile {
    pub(crate) fn create(path: &Path) -> io::Result<Self> {
        let name =
            path.file_name().ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "no file name"))?;
        // Unique among the threads of all processes that may write the same file.
        let number = NEXT_TEMP.fetch_add(1, Ordering::Relaxed);
        let name = format!(".{}.{}-{number}.part", name.to_string_lossy(), std::process::id());
        let temp = path.with_file_name(name);
        let file = File::create(&temp)?;
        Ok(Self { file, temp, path: path.to_owned(), kept: false })
    }

    pub(crate) const fn file(&self) -> &File {
        &self.file
    }

    pub(crate) fn persist(mut self) -> io::Result<()> {
        self.file.sync_all()?;
        fs::rename(&self.temp, &self.path)?;
        self.kept = true;
        sync_folder(&self.path)
    }
}

impl Drop for TempFile {
    fn drop(&mut self) {
        if !self.kept {
            // Best effort: a left-over part file is only clutter.
            let _ = fs::remove_file(&self.temp);
        }
    }
}

/// A rename lasts only when its folder is on disk.
fn sync_folder(path: &Path) -> io::Result<()> {
    match path.parent() {
        Some(folder) if cfg!(unix) && !folder.as_os_str().is_empty() => File::open(folder)?.sync_all(),
        _ => Ok(()),
    }
}
