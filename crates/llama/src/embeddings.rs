//! Embedding rows for the first stage, looked up outside llama.cpp.
//!
//! Rows are read from the file when they are needed: the system's page cache keeps the frequent ones, and the table,
//! which can be the largest tensor of a model, takes no memory of ours.

use std::io;
use std::path::Path;

use gguf::{Model, Tensor};
use protocol::Token;

use crate::{LoadError, dequantize};

/// The tensor's name in every GGUF.
pub(crate) const TABLE: &str = "token_embd.weight";

/// An open table.
pub(crate) struct Embeddings {
    file: Model,
    table: Tensor,
    width: usize,
    n_tokens: usize,
    scale: f32,
    /// Scratch: one row as stored.
    row: Vec<u8>,
}

impl Embeddings {
    /// `scale` is the factor that llama.cpp would apply to the rows of tokens, but not to rows given as input.
    pub(crate) fn open(path: &Path, scale: f32) -> Result<Self, LoadError> {
        let file = Model::open(path)
            .map_err(|e| LoadError::Model { path: path.to_path_buf(), reason: e.to_string() })?;
        let missing = || LoadError::unsuitable(path, format!("it has no tensor {TABLE}"));
        let table = file.tensor(TABLE).ok_or_else(missing)?.clone();
        let size =
            |n: u64| usize::try_from(n).map_err(|_| LoadError::unsuitable(path, "its tensors are too large"));
        let (width, n_tokens, row_bytes) =
            (size(table.row_elements())?, size(table.n_rows())?, size(table.row_bytes())?);
        Ok(Self { file, table, width, n_tokens, scale, row: vec![0; row_bytes] })
    }

    pub(crate) fn width(&self) -> usize {
        self.width
    }

    pub(crate) fn n_tokens(&self) -> usize {
        self.n_tokens
    }

    /// Appends one row per token, ready as input of the first layer.
    pub(crate) fn look_up(&mut self, tokens: &[Token], out: &mut Vec<f32>) -> io::Result<()> {
        let start = out.len();
        out.reserve(tokens.len() * self.width);
        for token in tokens {
            let index = usize::try_from(token.0).ok().filter(|&index| index < self.n_tokens);
            let index =
                index.ok_or_else(|| io::Error::other(format!("token {token} is not in the vocabulary")))?;
            self.file.read_at(&self.table, index as u64 * self.row.len() as u64, &mut self.row)?;
            dequantize::append(self.table.ty, &self.row, self.width, out).map_err(io::Error::other)?;
        }
        if self.scale != 1.0 {
            out[start..].iter_mut().for_each(|value| *value *= self.scale);
        }
        Ok(())
    }
}
