//! Writing a range of layers as a model of its own that stock llama.cpp loads; what it says of itself is in `info.rs`.
//!
//! Owns the slice file, the embedding file beside the first one, the file of drafting blocks beside the tail's where
//! they need one, and the vocabulary file. What a slice must hold is decided in `layout.rs`.

mod info;

use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use half::f16;

use crate::arch::{Absent, FinalNorm};
use crate::layout::{Kept, Layout, Reorder};
use crate::source::{CutError, OUTPUT, OUTPUT_BIAS, Source, TOKEN_EMBD};
use crate::write::{NewTensor, Output, Progress, chunks, write_file};
use crate::{FileDigest, Identity, Metadata, Model, Tensor, TensorType, Value};

pub use info::{SliceError, SliceInfo, SliceNextN};

/// Raised when a slice's content changes for the same model and range, so that old ones are written again.
pub const SLICE_VERSION: u32 = 4;

/// A slice that could not be written.
#[derive(Debug, thiserror::Error)]
pub enum WriteError {
    /// The model cannot be cut there.
    #[error(transparent)]
    Cut(#[from] CutError),
    /// Reading the model or writing the file failed.
    #[error("cannot write {path}: check free space and permissions")]
    Io {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
}

/// A file that was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Written {
    /// Its length.
    pub bytes: u64,
    /// Its content.
    pub digest: FileDigest,
}

/// What [`write_slice`] wrote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WrittenSlice {
    /// The slice.
    pub slice: Written,
    /// The embedding rows beside it, at [`embeddings_path`]: only for the first stage, unless it is also the tail.
    pub embeddings: Option<Written>,
    /// The blocks that draft, at [`nextn_path`]: only beside the tail, of an architecture that needs it.
    pub nextn: Option<Written>,
}

/// Where the embedding rows of the first slice are: `x.gguf` has them in `x.embd.gguf`.
#[must_use]
pub fn embeddings_path(slice: &Path) -> PathBuf {
    slice.with_extension("embd.gguf")
}

/// Where the blocks that draft (NextN) are if they are not in the tail's slice: `x.gguf` has them in `x.mtp.gguf`, a
/// model without layers that has the embeddings and the head.
#[must_use]
pub fn nextn_path(slice: &Path) -> PathBuf {
    slice.with_extension("mtp.gguf")
}

/// Writes layers `range` of a model to `path`, atomically; for the first stage of several, the embedding rows to
/// [`embeddings_path`]; for the tail of some architectures, the blocks that draft to [`nextn_path`]. All depend only on
/// the model, the range and [`SLICE_VERSION`].
///
/// # Errors
/// If the range cannot be a stage, the model cannot be read, or the files cannot be written.
pub fn write_slice(
    source: &Source<'_>,
    model_id: Identity,
    range: Range<u32>,
    path: &Path,
    progress: Progress<'_>,
) -> Result<WrittenSlice, WriteError> {
    let layout = Layout::new(source, range)?;
    let model = source.model();
    let file = FilePlan::new(source, &layout, slice_metadata(source, &layout, model_id))?;
    let nextn = match Layout::nextn(source).filter(|_| layout.is_tail) {
        Some(layout) => Some(FilePlan::new(source, &layout, nextn_metadata(source, &layout, model_id))?),
        None => None,
    };
    let embd = model.tensor(TOKEN_EMBD).filter(|_| layout.is_first && !layout.is_tail);
    let total = file.bytes() + nextn.as_ref().map_or(0, FilePlan::bytes) + embd.map_or(0, |embd| embd.bytes);
    let mut before = 0;
    let embeddings = match embd {
        Some(embd) => {
            let new = [NewTensor::like(embd)];
            let metadata = embeddings_metadata(model_id);
            let fill = |_, out: &mut Output<'_>| copy(model, embd, out);
            let mut progress = |done, _| progress(before + done, total);
            Some(write_to(&embeddings_path(path), &metadata, &new, fill, &mut progress)?)
        }
        None => None,
    };
    before += embd.map_or(0, |embd| embd.bytes);
    let nextn = match nextn {
        Some(file) => {
            let written =
                file.write(model, &nextn_path(path), &mut |done, _| progress(before + done, total))?;
            before += file.bytes();
            Some(written)
        }
        None => None,
    };
    let slice = file.write(model, path, &mut |done, _| progress(before + done, total))?;
    Ok(WrittenSlice { slice, embeddings, nextn })
}

/// Writes the first layers of a model with its head to `path`, atomically: an ordinary model with the same vocabulary,
/// a cheap and poor one, which can draft for the whole.
///
/// # Errors
/// If the model has not so many layers or cannot be cut there, cannot be read, or the file cannot be written.
pub fn write_shallow(
    source: &Source<'_>,
    n_layers: u32,
    path: &Path,
    progress: Progress<'_>,
) -> Result<Written, WriteError> {
    let layout = Layout::shallow(source, n_layers)?;
    FilePlan::new(source, &layout, layout.metadata(source))?.write(source.model(), path, progress)
}

/// Writes a model's metadata without tensors: enough for llama.cpp to tokenise (`vocab_only`) and for templates.
///
/// # Errors
/// If the file cannot be written.
pub fn write_vocab(model: &Model, path: &Path) -> Result<Written, WriteError> {
    let mut metadata = Metadata::default();
    let own = |key: &str| key.starts_with("split.") || key == "general.alignment";
    model
        .metadata()
        .iter()
        .filter(|(key, _)| !own(key))
        .for_each(|(key, value)| metadata.set(key, value.clone()));
    write_to(path, &metadata, &[], |_, _| Ok(()), &mut |_, _| {})
}

fn write_to(
    path: &Path,
    metadata: &Metadata,
    tensors: &[NewTensor],
    fill: impl FnMut(usize, &mut Output<'_>) -> io::Result<()>,
    progress: Progress<'_>,
) -> Result<Written, WriteError> {
    write_file(path, metadata, tensors, fill, progress)
        .map(|(bytes, digest)| Written { bytes, digest })
        .map_err(|source| WriteError::Io { path: path.to_owned(), source })
}

/// A file of a model's layers that is about to be written.
struct FilePlan<'m> {
    metadata: Metadata,
    pieces: Vec<Piece<'m>>,
}

impl<'m> FilePlan<'m> {
    fn new(source: &Source<'m>, layout: &Layout, metadata: Metadata) -> Result<Self, CutError> {
        Ok(Self { metadata, pieces: pieces(source, layout)? })
    }

    /// Bytes of its tensors.
    fn bytes(&self) -> u64 {
        self.pieces.iter().map(|piece| piece.new.bytes).sum()
    }

    fn write(&self, model: &Model, path: &Path, progress: Progress<'_>) -> Result<Written, WriteError> {
        let new: Vec<_> = self.pieces.iter().map(|piece| piece.new.clone()).collect();
        let fill = |at: usize, out: &mut Output<'_>| self.pieces[at].fill(model, out);
        write_to(path, &self.metadata, &new, fill, progress)
    }
}

/// Positions that a token is taken to look back at: a chat with a few answers.
const LOOKED_BACK_AT: u64 = 512;

const ATTENTION_OUTPUT: &str = "attn_output.weight";

/// What a stage computes with for a token.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Load {
    /// Multiplications: one for each weight, and two for each value of the attention heads and position looked back at.
    pub(crate) products: u64,
    /// Bytes of the weights.
    pub(crate) bytes: u64,
}

impl Load {
    fn and(self, tensor: &Tensor) -> Self {
        let n = tensor.dims.iter().fold(1_u64, |n, &dim| n.saturating_mul(dim));
        let attends = tensor.layer().is_some_and(|(_, rest)| rest == ATTENTION_OUTPUT);
        let looks = if attends { tensor.row_elements().saturating_mul(2 * LOOKED_BACK_AT) } else { 0 };
        Self {
            products: self.products.saturating_add(n).saturating_add(looks),
            bytes: self.bytes.saturating_add(tensor.bytes),
        }
    }
}

/// The load of a stage's layers, and of the output head if it is the tail.
pub(crate) fn load(source: &Source<'_>, layout: &Layout) -> Load {
    let tensors = source.model().tensors();
    let layers = layout.kept.iter().flat_map(|kept| source.layer(kept.layer)).map(|&at| &tensors[at]);
    let head = source.model().tensor(OUTPUT).or_else(|| source.model().tensor(TOKEN_EMBD));
    layers.chain(head.filter(|_| layout.is_tail)).fold(Load::default(), Load::and)
}

/// A tensor of a slice and where its data comes from.
struct Piece<'m> {
    new: NewTensor,
    data: Data<'m>,
}

#[derive(Clone, Copy)]
enum Data<'m> {
    Copy(&'m Tensor),
    Zero,
    One,
    Reordered(&'m Tensor, Reorder),
    Scaled(&'m Tensor, f32),
}

fn pieces<'m>(source: &Source<'m>, layout: &Layout) -> Result<Vec<Piece<'m>>, CutError> {
    let tensors = source.model().tensors();
    let mut pieces: Vec<_> =
        source.globals().iter().filter_map(|&at| global_piece(source, layout, &tensors[at])).collect();
    for (number, kept) in layout.blocks().enumerate() {
        for &at in source.layer(kept.layer) {
            let (_, rest) = tensors[at].layer().expect("it is listed as a layer's");
            let mut piece = layer_piece(layout, &tensors[at], rest, kept)?;
            piece.new.name = format!("blk.{number}.{rest}");
            pieces.push(piece);
        }
    }
    Ok(pieces)
}

/// Tensors of the whole model go into every slice; those as large as the vocabulary only where they are used.
fn global_piece<'m>(source: &Source<'m>, layout: &Layout, tensor: &'m Tensor) -> Option<Piece<'m>> {
    let dummy = |ty: TensorType, dims: Vec<u64>| {
        let bytes = crate::header::tensor_bytes(ty, &dims).expect("a shape of the model, or one row of it");
        Piece { new: NewTensor { name: tensor.name.clone(), dims, ty, bytes }, data: Data::Zero }
    };
    let absent = layout.absent.iter().find(|(name, _)| *name == tensor.name);
    Some(match tensor.name.as_str() {
        _ if absent.is_some_and(|(_, instead)| *instead == Absent::LeftOut) => return None,
        _ if absent.is_some() => dummy(tensor.ty, tensor.dims.clone()),
        TOKEN_EMBD | OUTPUT if !layout.is_tail => dummy(TensorType::F32, vec![tensor.row_elements(), 1]),
        OUTPUT_BIAS if !layout.is_tail => dummy(TensorType::F32, vec![1]),
        // A tail with its own head reads embeddings only to draft, but they must have their shape: the smallest type does.
        TOKEN_EMBD
            if !layout.is_first
                && layout.nextn.is_empty()
                && source.model().tensor(OUTPUT).is_some()
                && TensorType::Q4_0.row_bytes(tensor.row_elements()).is_some() =>
        {
            dummy(TensorType::Q4_0, tensor.dims.clone())
        }
        _ => Piece { new: NewTensor::like(tensor), data: Data::Copy(tensor) },
    })
}

fn layer_piece<'m>(
    layout: &Layout,
    tensor: &'m Tensor,
    rest: &str,
    kept: Kept,
) -> Result<Piece<'m>, CutError> {
    let bad = |problem| CutError::Tensor { name: tensor.name.clone(), problem };
    let factor = layout.scaled.iter().find(|(name, _)| *name == rest).map(|(_, factor)| *factor);
    let data = match (layout.reorder, factor) {
        // What multiplies all of the residual stream rather than what the layer adds to it.
        _ if kept.pass_through && rest.starts_with("layer_output_scale") => {
            if tensor.ty != TensorType::F32 {
                return Err(bad("must hold 32-bit floats"));
            }
            Data::One
        }
        _ if kept.pass_through => Data::Zero,
        (Some(reorder), _) if moves(rest) => {
            let rows = if tensor.dims.len() == 1 { tensor.row_elements() } else { tensor.n_rows() };
            let expected = match rest.split_once('.').map(|(name, _)| name) {
                Some("attn_q") => rows == u64::from(reorder.query_rows),
                Some("attn_k") => rows == u64::from(reorder.key_rows),
                _ => rows > u64::from(reorder.query_rows) + u64::from(reorder.key_rows),
            };
            if !expected || (tensor.dims.len() == 1 && tensor.ty.block_elements() != 1) {
                return Err(bad("does not fit the model's head counts"));
            }
            Data::Reordered(tensor, reorder)
        }
        (_, Some(factor)) => {
            if !matches!(tensor.ty, TensorType::F32 | TensorType::F16) {
                return Err(bad("must hold 32-bit or 16-bit floats"));
            }
            Data::Scaled(tensor, factor)
        }
        _ => Data::Copy(tensor),
    };
    Ok(Piece { new: NewTensor::like(tensor), data })
}

/// Whether this is a query or key projection, or both and the values in one.
fn moves(rest: &str) -> bool {
    ["attn_q", "attn_k", "attn_qkv"]
        .iter()
        .any(|name| rest.strip_prefix(name).is_some_and(|suffix| suffix == ".weight" || suffix == ".bias"))
}

impl Piece<'_> {
    fn fill(&self, model: &Model, out: &mut Output<'_>) -> io::Result<()> {
        match self.data {
            Data::Zero => out.zeros(self.new.bytes),
            Data::One => chunks(self.new.bytes)
                .try_for_each(|(_, len)| out.data(&1_f32.to_le_bytes().repeat(len / size_of::<f32>()))),
            Data::Copy(tensor) => copy(model, tensor, out),
            Data::Reordered(tensor, reorder) => copy_reordered(model, tensor, reorder, out),
            Data::Scaled(tensor, factor) => copy_scaled(model, tensor, factor, out),
        }
    }
}

pub(crate) fn copy(model: &Model, tensor: &Tensor, out: &mut Output<'_>) -> io::Result<()> {
    let mut buffer = Vec::new();
    chunks(tensor.bytes).try_for_each(|(start, len)| {
        buffer.resize(len, 0);
        model.read_at(tensor, start, &mut buffer)?;
        out.data(&buffer)
    })
}

fn copy_reordered(model: &Model, tensor: &Tensor, reorder: Reorder, out: &mut Output<'_>) -> io::Result<()> {
    // A bias is a column: its rows are single elements.
    let (rows, row_bytes) = match tensor.dims.len() {
        1 => (tensor.row_elements(), tensor.ty.block_bytes()),
        _ => (tensor.n_rows(), tensor.row_bytes()),
    };
    // In a tensor of query, key and values, the values stay.
    let moved = u64::from(reorder.query_rows) + u64::from(reorder.key_rows);
    let mut row_data = vec![0; usize::try_from(row_bytes).map_err(|_| io::ErrorKind::OutOfMemory)?];
    for row in 0..rows {
        let from = if row < moved { reorder.source_row(row) } else { row };
        model.read_at(tensor, from * row_bytes, &mut row_data)?;
        out.data(&row_data)?;
    }
    Ok(())
}

fn copy_scaled(model: &Model, tensor: &Tensor, factor: f32, out: &mut Output<'_>) -> io::Result<()> {
    let mut buffer = Vec::new();
    chunks(tensor.bytes).try_for_each(|(start, len)| {
        buffer.resize(len, 0);
        model.read_at(tensor, start, &mut buffer)?;
        if tensor.ty == TensorType::F16 {
            for element in buffer.as_chunks_mut::<2>().0 {
                *element = f16::from_f32(f16::from_le_bytes(*element).to_f32() * factor).to_le_bytes();
            }
        } else {
            for element in buffer.as_chunks_mut::<4>().0 {
                *element = (f32::from_le_bytes(*element) * factor).to_le_bytes();
            }
        }
        out.data(&buffer)
    })
}

fn embeddings_metadata(model_id: Identity) -> Metadata {
    let mut out = Metadata::default();
    out.set("general.architecture", Value::string("paceline-embeddings"));
    out.set("paceline.model_id", Value::string(&model_id.to_string()));
    out
}

fn nextn_metadata(source: &Source<'_>, layout: &Layout, model_id: Identity) -> Metadata {
    let mut out = layout.metadata(source);
    out.set("paceline.model_id", Value::string(&model_id.to_string()));
    out
}

fn slice_metadata(source: &Source<'_>, layout: &Layout, model_id: Identity) -> Metadata {
    let arch = source.arch();
    let scale = if layout.is_first { arch.token_scale } else { arch.hidden_scale };
    let mut out = layout.metadata(source);
    out.set("paceline.version", SLICE_VERSION);
    out.set("paceline.model_id", Value::string(&model_id.to_string()));
    out.set("paceline.layer_start", layout.range.start);
    out.set("paceline.layer_end", layout.range.end);
    out.set("paceline.n_layers", source.n_layers());
    out.set("paceline.input_scale", scale.factor(source.model().n_embd()));
    out.set("paceline.capture", Value::string(&arch.capture.name(layout.kept.len())));
    let norm = match arch.final_norm {
        FinalNorm::Called(name) => name,
        FinalNorm::Unnamed => "",
    };
    out.set("paceline.final_norm", Value::string(norm));
    out.set("paceline.tolerance", layout.tolerance);
    let nextn = if layout.is_tail { source.nextn() } else { 0..0 };
    out.set("paceline.nextn", nextn.len() as u32);
    out.set("paceline.nextn_apart", layout.nextn.is_empty() && !nextn.is_empty());
    out
}
