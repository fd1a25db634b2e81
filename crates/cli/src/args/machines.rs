//! Which machines compute, and where the model is cut for them.

use std::path::Path;

use anyhow::Context as _;

use super::{Cut, MAX_STAGES, Place, stage_address, usage, within};
use crate::line_file::{LineFile, LineMachines};

/// The machines of a line that were named.
pub(super) struct Named {
    pub(super) place: Place,
    pub(super) cut: Cut,
    /// Those that stand by, as `--spare` has them.
    pub(super) spares: Vec<String>,
}

/// The line over several machines: named by flags, or by a file that may also say who computes which layers.
pub(super) fn machines(
    line: Option<&Path>,
    named: Vec<String>,
    front_only: bool,
    cuts: Option<Vec<u32>>,
) -> anyhow::Result<Named> {
    let LineMachines { addresses: named, cuts: file_cuts, spares } = match line {
        Some(path) => {
            LineFile::read(path)?.resolve(front_only).with_context(|| path.display().to_string())?
        }
        None => LineMachines { addresses: named, ..LineMachines::default() },
    };
    let addresses = named.iter().map(|given| stage_address(given)).collect::<anyhow::Result<Vec<_>>>()?;
    let n_stages = addresses.len() + usize::from(!front_only);
    let stages = u16::try_from(n_stages).ok().filter(|n| *n <= MAX_STAGES);
    let Some(stages) = stages.filter(|_| !addresses.is_empty()) else {
        return usage(format!("a line has 1 to {MAX_STAGES} machines, not {n_stages}"));
    };
    if cuts.is_some() && file_cuts.is_some() {
        return usage("--cuts and the line file both say who computes which layers: leave one of them out");
    }
    let cut = match cut(None, cuts.or(file_cuts))? {
        Some(cut) if cut.n_stages() != n_stages => {
            return usage(format!("{n_stages} machines compute, so --cuts needs {} layers", n_stages - 1));
        }
        Some(cut) => cut,
        None => Cut::Stages(stages),
    };
    Ok(Named { place: Place::Machines { addresses, front_only }, cut, spares })
}

/// Where to cut, from `--stages` and `--cuts`, which must agree when both are given.
pub(super) fn cut(stages: Option<u16>, cuts: Option<Vec<u32>>) -> anyhow::Result<Option<Cut>> {
    let stages = within("--stages", stages, MAX_STAGES)?;
    let Some(cuts) = cuts else { return Ok(stages.map(Cut::Stages)) };
    if cuts.first() == Some(&0) || cuts.windows(2).any(|pair| pair[0] >= pair[1]) {
        return usage("--cuts must be layers after 0 in ascending order, for example 10,20");
    }
    if cuts.len() >= usize::from(MAX_STAGES) {
        return usage(format!("--cuts makes more than {MAX_STAGES} stages: give fewer layers"));
    }
    match stages {
        Some(n) if usize::from(n) != cuts.len() + 1 => usage(format!(
            "--cuts makes {} stages but --stages says {n}: leave one of them out",
            cuts.len() + 1
        )),
        _ => Ok(Some(Cut::Before(cuts))),
    }
}
