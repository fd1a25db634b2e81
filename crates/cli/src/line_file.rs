//! The file of `serve --line`: the machines of a line, in order, optionally who computes which layers, and who stands by.
//!
//! ```toml
//! [[stage]]
//! address = "10.0.0.2:7411"
//! layers = [10, 20]        # 10 to 19; either every stage says its layers or none does
//!
//! [[spare]]
//! address = "10.0.0.9:7411"
//! stage = 1                # the only stage whose place it may take; any if none is said
//! ```

use std::path::Path;

use anyhow::Context as _;
use serde::Deserialize;

use crate::args::Usage;
use crate::config;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LineFile {
    #[serde(default)]
    stage: Vec<LineStage>,
    #[serde(default)]
    spare: Vec<LineSpare>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LineStage {
    address: String,
    layers: Option<[u32; 2]>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct LineSpare {
    address: String,
    stage: Option<u16>,
}

/// What the file says.
#[derive(Debug, Default)]
pub(crate) struct LineMachines {
    pub(crate) addresses: Vec<String>,
    /// The first layers of stages 1, 2, … if the file says them.
    pub(crate) cuts: Option<Vec<u32>>,
    /// Who stands by, as `--spare` has it.
    pub(crate) spares: Vec<String>,
}

impl LineFile {
    pub(crate) fn read(path: &Path) -> anyhow::Result<Self> {
        let text = std::fs::read_to_string(path)
            .with_context(|| format!("could not read the line file {}", path.display()))?;
        config::parse(&text, path)
    }

    /// Judges what goes together.
    pub(crate) fn resolve(self, front_only: bool) -> anyhow::Result<LineMachines> {
        let with_layers = self.stage.iter().filter(|stage| stage.layers.is_some()).count();
        if with_layers != 0 && with_layers != self.stage.len() {
            return Err(Usage("either every stage says its layers or none does".to_owned()).into());
        }
        let ranges: Vec<[u32; 2]> = self.stage.iter().filter_map(|stage| stage.layers).collect();
        if let Some(pair) = ranges.windows(2).find(|pair| pair[0][1] != pair[1][0]) {
            let (end, next) = (pair[0][1], pair[1][0]);
            return Err(Usage(format!(
                "layers must follow each other: one stage ends at {end}, the next begins at {next}"
            ))
            .into());
        }
        if let Some(range) = ranges.iter().find(|range| range[0] >= range[1]) {
            return Err(Usage(format!("layers [{}, {}] hold no layer", range[0], range[1])).into());
        }
        if front_only && ranges.first().is_some_and(|first| first[0] != 0) {
            return Err(Usage("with --front-only the first stage must begin at layer 0".to_owned()).into());
        }
        let cuts = (!ranges.is_empty())
            .then(|| ranges.iter().skip(usize::from(front_only)).map(|range| range[0]).collect());
        let spare = |LineSpare { address, stage }| match stage {
            Some(stage) => format!("{address}={stage}"),
            None => address,
        };
        let spares = self.spare.into_iter().map(spare).collect();
        Ok(LineMachines {
            addresses: self.stage.into_iter().map(|stage| stage.address).collect(),
            cuts,
            spares,
        })
    }
}
