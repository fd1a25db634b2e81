//! `paceline.toml`: the settings of each command under its name. Unknown keys are errors that name the key.

use std::path::Path;

use anyhow::Context as _;
use serde::Deserialize;
use serde::de::DeserializeOwned;

use crate::args::Usage;
use crate::flags::{BenchFlags, ServeFlags, SimulateFlags, SplitFlags, StageFlags, VerifyFlags};

/// The whole file.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Config {
    /// As `--log`.
    pub(crate) log: Option<String>,
    /// As `--log-format`.
    #[serde(rename = "log-format")]
    pub(crate) log_format: Option<String>,
    pub(crate) serve: ServeFlags,
    pub(crate) stage: StageFlags,
    pub(crate) split: SplitFlags,
    pub(crate) verify: VerifyFlags,
    pub(crate) simulate: SimulateFlags,
    pub(crate) bench: BenchFlags,
}

impl Config {
    /// Reads the file, or nothing if none is named.
    pub(crate) fn read(path: Option<&Path>) -> anyhow::Result<Self> {
        let Some(path) = path else { return Ok(Self::default()) };
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("could not read the configuration {}", path.display()))?;
        parse(&text, path)
    }
}

/// Parses TOML; an error is one sentence with the line.
pub(crate) fn parse<T: DeserializeOwned>(text: &str, path: &Path) -> anyhow::Result<T> {
    toml::from_str(text).map_err(|error| {
        let start = error.span().map_or(0, |span| span.start);
        let line = text.get(..start).map_or(1, |before| before.matches('\n').count() + 1);
        let why = error.message().replace('\n', " ");
        Usage(format!("{}, line {line}: {}", path.display(), why.trim())).into()
    })
}
