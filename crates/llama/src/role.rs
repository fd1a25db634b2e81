//! What a file is in a line: a whole model, or one of its slices.

use std::ffi::CString;
use std::path::PathBuf;

use gguf::arch::{self, Leaves};
use gguf::{CutError, Model, SliceError, SliceInfo, Source};
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

/// A model's own blocks that draft.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Drafting {
    /// The file that holds them.
    pub(crate) path: PathBuf,
    /// How many there are, one behind the other.
    pub(crate) n_blocks: usize,
    /// Which rows of a call they leave for their next step.
    pub(crate) leaves: Leaves,
}

impl Role {
    /// A file without our keys is a whole model.
    ///
    /// # Errors
    /// If it is neither, or a model on which llama.cpp would abort for want of a kind of layer.
    pub(crate) fn read(file: &Model) -> Result<Self, LoadError> {
        let unsuitable = |reason: String| LoadError::unsuitable(file.path(), reason);
        let info = match SliceInfo::read(file) {
            Ok(info) => info,
            Err(SliceError::NotSlice(_)) => {
                // Whatever else keeps it from being cut is no concern here.
                if let Err(error @ CutError::Kind { .. }) = Source::new(file) {
                    return Err(unsuitable(error.to_string()));
                }
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

    /// The file that holds the model's own blocks that draft: this one, or the one beside it.
    ///
    /// # Errors
    /// If it cannot draft. llama.cpp is not asked: it would abort.
    pub(crate) fn drafts(&self, file: &Model) -> Result<Drafting, LoadError> {
        let refused = |reason: String| LoadError::NoDrafts { path: file.path().to_path_buf(), reason };
        if !self.is_tail {
            return Err(refused("it is not the tail of its model".into()));
        }
        let own = file.path().to_path_buf();
        let (path, n_blocks) = match SliceInfo::read(file) {
            Ok(SliceInfo { nextn: Some(nextn), .. }) => {
                (if nextn.is_apart { gguf::nextn_path(file.path()) } else { own }, nextn.n_blocks as usize)
            }
            Ok(_) => {
                return Err(refused("the model that it was cut from has no block for that (NextN)".into()));
            }
            Err(_) => {
                let source = Source::new(file).map_err(|error| refused(error.to_string()))?;
                (own, source.drafts().map_err(|reason| refused(reason.to_string()))?.len())
            }
        };
        let arch = arch::find(file.arch()).map_err(|reason| refused(reason.to_string()))?;
        let wanted = arch.nextn.blocks().filter(|wanted| (1..=wanted.most as usize).contains(&n_blocks));
        let wanted =
            wanted.ok_or_else(|| refused("it was cut for another version of this program".into()))?;
        Ok(Drafting { path, n_blocks, leaves: wanted.leaves })
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
