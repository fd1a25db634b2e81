//! What a file is in a line: a whole model, or one of its slices.

use std::ffi::CString;

use gguf::{Model, SliceError, SliceInfo};
use protocol::LayerRange;

use crate::LoadError;
use crate::context::tensor_name;
use crate::embeddings::Embeddings;

/// A file's place in the line, from its metadata.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Role {
    pub(crate) layers: LayerRange,
    pub(crate) is_first: bool,
    pub(crate) is_tail: bool,
    /// Factor on embedding rows (first stage) or on hidden rows (the others).
    pub(crate) input_scale: f32,
    /// The tensor that leaves the stage; none for the tail.
    pub(crate) capture: Option<CString>,
    /// The tensors of the norm behind the last layer, if it can be checked.
    pub(crate) final_norm: Option<String>,
}

impl Role {
    /// A file without our keys is a whole model.
    pub(crate) fn read(file: &Model) -> Result<Self, LoadError> {
        let unsuitable = |reason: String| LoadError::unsuitable(file.path(), reason);
        let info = match SliceInfo::read(file) {
            Ok(info) => info,
            Err(SliceError::NotSlice(_)) => {
                let layers = LayerRange { start: 0, end: file.n_layers() };
                return Ok(Self {
                    layers,
                    is_first: true,
                    is_tail: true,
                    input_scale: 1.0,
                    capture: None,
                    final_norm: None,
                });
            }
            Err(other) => return Err(unsuitable(other.to_string())),
        };
        let capture = match info.is_tail() {
            true => None,
            false => {
                Some(tensor_name(&info.capture).ok_or_else(|| unsuitable("its capture name is bad".into()))?)
            }
        };
        Ok(Self {
            layers: LayerRange { start: info.range.start, end: info.range.end },
            is_first: info.is_first(),
            is_tail: info.is_tail(),
            input_scale: info.input_scale,
            capture,
            final_norm: info.final_norm,
        })
    }

    /// The embedding rows beside the first of several slices. Where first and tail are one, llama.cpp looks tokens up.
    pub(crate) fn embeddings(&self, file: &Model, width: usize) -> Result<Option<Embeddings>, LoadError> {
        if !self.is_first || self.is_tail {
            return Ok(None);
        }
        let path = gguf::embeddings_path(file.path());
        let embeddings = Embeddings::open(&path, self.input_scale)?;
        if embeddings.width() != width {
            let reason = format!("its rows have {} values, the model's {width}", embeddings.width());
            return Err(LoadError::unsuitable(&path, reason));
        }
        Ok(Some(embeddings))
    }
}
