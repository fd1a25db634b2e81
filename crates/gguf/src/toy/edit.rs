//! Copies of a model that differ in one way: over several files, with layers swapped or
//! repeated, or without a tensor.

use std::io;
use std::path::{Path, PathBuf};

use crate::model::shard_suffix;
use crate::slice::copy;
use crate::write::{NewTensor, write_file};
use crate::{Metadata, Model, Tensor};

/// An edit that could not be made.
#[derive(Debug, thiserror::Error)]
pub enum EditError {
    /// Reading or writing failed.
    #[error("cannot write {path}")]
    Io {
        /// Which file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The layers differ in their tensors, so they cannot change places.
    #[error("layers {0} and {1} are not alike")]
    Unlike(u32, u32),
    /// More files than tensors, or none.
    #[error("{0} files cannot hold {1} tensors")]
    Shards(u16, usize),
}

/// Writes the model as `n` files `<stem>-0000i-of-0000n.gguf` in `folder` and returns the first; with `empty_first`
/// that one holds only metadata.
///
/// # Errors
/// If there are not enough tensors, or a file cannot be written.
pub fn shard(
    model: &Model,
    n: u16,
    empty_first: bool,
    folder: &Path,
    stem: &str,
) -> Result<PathBuf, EditError> {
    let tensors = model.tensors();
    let holders = usize::from(n) - usize::from(empty_first && n > 0);
    if holders == 0 || holders > tensors.len() {
        return Err(EditError::Shards(n, tensors.len()));
    }
    let path = |i: u16| folder.join(format!("{stem}{}", shard_suffix(u64::from(i) + 1, u64::from(n))));
    for i in 0..n {
        let mut metadata = if i == 0 { model.metadata().clone() } else { Metadata::default() };
        metadata.set("split.no", i);
        metadata.set("split.count", n);
        metadata.set("split.tensors.count", tensors.len() as i32);
        let part = match usize::from(i).checked_sub(usize::from(empty_first)) {
            Some(part) => &tensors[part * tensors.len() / holders..(part + 1) * tensors.len() / holders],
            None => &[],
        };
        let pairs: Vec<_> = part.iter().map(|tensor| (tensor, tensor)).collect();
        write(model, &path(i), &metadata, &pairs)?;
    }
    Ok(path(0))
}

/// Writes the model with layers `a` and `b` in each other's place: the same shapes, another function.
///
/// # Errors
/// If the layers are not alike, or the file cannot be written.
pub fn swap_layers(model: &Model, a: u32, b: u32, path: &Path) -> Result<(), EditError> {
    let mut pairs = vec![];
    for tensor in model.tensors() {
        let from = match tensor.layer() {
            Some((layer, rest)) if layer == a || layer == b => {
                let other = if layer == a { b } else { a };
                let from = model.tensor(&format!("blk.{other}.{rest}"));
                from.filter(|from| (&from.dims, from.ty) == (&tensor.dims, tensor.ty))
                    .ok_or(EditError::Unlike(a, b))?
            }
            _ => tensor,
        };
        pairs.push((tensor, from));
    }
    write(model, path, model.metadata(), &pairs)
}

/// Writes the model with what layer `from` holds in the layers `to` as well.
///
/// # Errors
/// If the layers are not alike, or the file cannot be written.
pub fn repeat_layer(model: &Model, from: u32, to: &[u32], path: &Path) -> Result<(), EditError> {
    let mut pairs = vec![];
    for tensor in model.tensors() {
        let source = match tensor.layer() {
            Some((layer, rest)) if to.contains(&layer) => {
                let source = model.tensor(&format!("blk.{from}.{rest}"));
                let alike = source.filter(|source| (&source.dims, source.ty) == (&tensor.dims, tensor.ty));
                alike.ok_or(EditError::Unlike(from, layer))?
            }
            _ => tensor,
        };
        pairs.push((tensor, source));
    }
    write(model, path, model.metadata(), &pairs)
}

/// Writes the model with its first blocks only, of which one drafts.
///
/// # Errors
/// If the file cannot be written.
///
/// # Panics
/// If the model has fewer blocks.
pub fn fewer_blocks(model: &Model, n_blocks: u32, path: &Path) -> Result<(), EditError> {
    let mut metadata = model.metadata().clone();
    for (key, value) in model.metadata().iter() {
        if let Some(array) =
            value.as_array().filter(|array| array.len() == u64::from(model.n_blocks()) as usize)
        {
            let own = array.select(0..n_blocks as usize).expect("the model has so many blocks");
            metadata.set(key, own);
        }
    }
    metadata.set(format!("{}.block_count", model.arch()), n_blocks);
    metadata.set(format!("{}.nextn_predict_layers", model.arch()), 1_u32);
    let kept = |tensor: &&Tensor| tensor.layer().is_none_or(|(layer, _)| layer < n_blocks);
    let pairs: Vec<_> = model.tensors().iter().filter(kept).map(|tensor| (tensor, tensor)).collect();
    write(model, path, &metadata, &pairs)
}

/// Writes the model without a tensor.
///
/// # Errors
/// If the file cannot be written.
pub fn without(model: &Model, name: &str, path: &Path) -> Result<(), EditError> {
    let rest = model.tensors().iter().filter(|tensor| tensor.name != name);
    let pairs: Vec<_> = rest.map(|tensor| (tensor, tensor)).collect();
    write(model, path, model.metadata(), &pairs)
}

/// Writes tensors, each with the data of another.
fn write(
    model: &Model,
    path: &Path,
    metadata: &Metadata,
    pairs: &[(&Tensor, &Tensor)],
) -> Result<(), EditError> {
    let new: Vec<_> = pairs.iter().map(|(tensor, _)| NewTensor::like(tensor)).collect();
    let fill = |at: usize, out: &mut crate::write::Output<'_>| copy(model, pairs[at].1, out);
    write_file(path, metadata, &new, fill, &mut |_, _| {})
        .map(drop)
        .map_err(|source| EditError::Io { path: path.to_owned(), source })
}
