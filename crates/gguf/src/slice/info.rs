//! What the engine must know about a slice, and reading it back.

use std::ops::Range;
use std::path::PathBuf;

use super::SLICE_VERSION;
use crate::{Identity, Model};

/// What the engine must know about a slice, all of it in the file.
#[derive(Clone, Debug, PartialEq)]
pub struct SliceInfo {
    /// The model it was cut from.
    pub model_id: Identity,
    /// Its layers, counted in the whole model.
    pub range: Range<u32>,
    /// Layers of the whole model.
    pub n_layers: u32,
    /// Layers in the file, pass-through ones included; blocks that draft are none.
    pub n_file_layers: u32,
    /// The model's own blocks that draft (NextN), if this is its tail.
    pub nextn: Option<SliceNextN>,
    /// Factor on its input: on embedding rows in the first stage, on hidden rows in the others.
    pub input_scale: f32,
    /// Graph tensor that holds the hidden rows to pass on.
    pub capture: String,
    /// What its last norm's tensors are called, without `.weight`; none if the graph does not name what that gives.
    pub final_norm: Option<String>,
    /// Largest logit difference to the unsplit model that this cut is known to cause; 0 where it is bit-equal.
    pub tolerance: f32,
}

/// Blocks that draft (NextN) with a tail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SliceNextN {
    /// How many, at least one.
    pub n_blocks: u32,
    /// Whether they are in the file at [`crate::nextn_path`] rather than in the slice, behind its layers.
    pub is_apart: bool,
}

/// A file that is not a slice this build can use.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SliceError {
    /// An ordinary model, or another file.
    #[error("{0} is not a slice; cut the model with `paceline split`")]
    NotSlice(PathBuf),
    /// Written by another version.
    #[error(
        "{path} is a slice of version {version}, not {SLICE_VERSION}; cut the model again with `paceline split`"
    )]
    Version {
        /// Which file.
        path: PathBuf,
        /// Its version.
        version: u32,
    },
    /// A key is missing or impossible.
    #[error("{path}: {key} is missing or wrong; cut the model again with `paceline split`")]
    Key {
        /// Which file.
        path: PathBuf,
        /// Which key.
        key: &'static str,
    },
}

impl SliceInfo {
    /// Reads it from an opened slice.
    ///
    /// # Errors
    /// If the file is no slice, or one of another version.
    pub fn read(slice: &Model) -> Result<Self, SliceError> {
        let metadata = slice.metadata();
        let path = || slice.path().to_owned();
        let version = metadata.get_u32("paceline.version").ok_or_else(|| SliceError::NotSlice(path()))?;
        if version != SLICE_VERSION {
            return Err(SliceError::Version { path: path(), version });
        }
        let bad = |key| SliceError::Key { path: path(), key };
        let count = |key| metadata.get_u32(key).ok_or_else(|| bad(key));
        let number = |key| metadata.get_f32(key).filter(|v| v.is_finite()).ok_or_else(|| bad(key));
        let text = |key| metadata.get_str(key).ok_or_else(|| bad(key));
        let range = count("paceline.layer_start")?..count("paceline.layer_end")?;
        let n_layers = count("paceline.n_layers")?;
        if range.is_empty() || range.end > n_layers {
            return Err(bad("paceline.layer_end"));
        }
        let n_nextn = count("paceline.nextn")?;
        let is_apart =
            metadata.get_bool("paceline.nextn_apart").ok_or_else(|| bad("paceline.nextn_apart"))?;
        Ok(Self {
            model_id: text("paceline.model_id")?.parse().map_err(|_| bad("paceline.model_id"))?,
            range,
            n_layers,
            n_file_layers: slice.n_layers(),
            nextn: (n_nextn > 0).then_some(SliceNextN { n_blocks: n_nextn, is_apart }),
            input_scale: number("paceline.input_scale")?,
            capture: text("paceline.capture")?.to_owned(),
            final_norm: Some(text("paceline.final_norm")?.to_owned()).filter(|name| !name.is_empty()),
            tolerance: number("paceline.tolerance")?,
        })
    }

    /// Whether it looks up embeddings.
    #[must_use]
    pub const fn is_first(&self) -> bool {
        self.range.start == 0
    }

    /// Whether it has the output head.
    #[must_use]
    pub const fn is_tail(&self) -> bool {
        self.range.end == self.n_layers
    }
}
