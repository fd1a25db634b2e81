//! What can go wrong while an engine or a vocabulary is loaded.

use std::path::PathBuf;

/// Why a model was not loaded.
#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    /// The file could not be opened or read.
    #[error("cannot read {path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// llama.cpp refused the file.
    #[error("llama.cpp cannot load {path}: {reason}")]
    Model {
        /// The file.
        path: PathBuf,
        /// llama.cpp's last error line.
        reason: String,
    },
    /// llama.cpp refused the context.
    #[error("llama.cpp cannot make a context for {path}: {reason}")]
    Context {
        /// The file.
        path: PathBuf,
        /// llama.cpp's last error line.
        reason: String,
    },
    /// The file is no slice that this engine can run.
    #[error("{path} cannot be a stage: {reason}")]
    Unsuitable {
        /// The file.
        path: PathBuf,
        /// What is missing or contradictory.
        reason: String,
    },
    /// Drafts are wanted of a model that gives none.
    #[error("{path} cannot draft for itself: {reason}")]
    NoDrafts {
        /// The file.
        path: PathBuf,
        /// Why not.
        reason: String,
    },
    /// A parameter is out of range or not available here.
    #[error("{0}")]
    Config(String),
    /// Not enough memory, found before anything was loaded.
    #[error(
        "{path} needs {} ({} weights, {} keys and values), but {} are free: \
         give this machine fewer layers, or a smaller context",
        gib(*.weights + *.kv), gib(*.weights), gib(*.kv), gib(*.free)
    )]
    Memory {
        /// The file.
        path: PathBuf,
        /// Bytes of weights.
        weights: u64,
        /// Bytes of keys and values.
        kv: u64,
        /// Bytes that are free on the device.
        free: u64,
    },
}

fn gib(bytes: u64) -> String {
    format!("{:.2} GiB", bytes as f64 / f64::from(1 << 30))
}

impl LoadError {
    pub(crate) fn io(path: &std::path::Path, source: std::io::Error) -> Self {
        Self::Io { path: path.to_path_buf(), source }
    }

    pub(crate) fn unsuitable(path: &std::path::Path, reason: impl Into<String>) -> Self {
        Self::Unsuitable { path: path.to_path_buf(), reason: reason.into() }
    }
}
