//! What clients of the API meet: the name of the model, and how connections are encrypted.

use std::path::{Path, PathBuf};

use super::{file_stem, usage};

/// The files for HTTPS: a certificate's and its key's, or neither.
pub(super) fn tls(
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
) -> anyhow::Result<Option<(PathBuf, PathBuf)>> {
    match (certificate, key) {
        (Some(certificate), Some(key)) => Ok(Some((certificate, key))),
        (None, None) => Ok(None),
        (Some(_), None) => usage("--tls-cert needs the certificate's private key: add --tls-key FILE"),
        (None, Some(_)) => usage("--tls-key needs its certificate: add --tls-cert FILE"),
    }
}

/// The name that a model answers to: the one given, or its file's.
pub(super) fn model_id(given: Option<String>, model: &Path) -> anyhow::Result<String> {
    match given {
        Some(id) if id.trim().is_empty() => usage("--model-id must not be empty"),
        Some(id) => Ok(id),
        None => Ok(file_stem(model)),
    }
}
