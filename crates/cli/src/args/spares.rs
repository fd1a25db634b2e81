//! Who stands by, and for whom.

use std::collections::BTreeSet;

use super::{Cut, MAX_STAGES, Place, Spares, stage_address, usage};

/// Reads the machines that were named with `--spare` or in the line's file, and `--spares`; the line is cut so, and run
/// there.
pub(super) fn judged(
    machines: Vec<String>,
    children: Option<u16>,
    (cut, place): (&Cut, &Place),
) -> anyhow::Result<Option<Spares>> {
    let first = usize::from(!matches!(place, Place::Machines { front_only: true, .. }));
    let spares = match (machines, children.unwrap_or(0)) {
        (machines, 0) if machines.is_empty() => return Ok(None),
        (machines, 0) => {
            let read = machines.iter().map(|given| machine(given, first, cut.n_stages()));
            Spares::Machines(read.collect::<anyhow::Result<_>>()?)
        }
        (machines, n) if machines.is_empty() => Spares::Children(n),
        _ => {
            return usage("--spares is for one machine, --spare names other machines: leave one of them out");
        }
    };
    match (&spares, place) {
        (Spares::Children(_), Place::Machines { .. }) => {
            return usage("--spares is for a line on one machine: name other machines with --spare");
        }
        (Spares::Machines(_), Place::Local) => {
            return usage("--spare is for a line of several machines: on one machine use --spares N");
        }
        _ => {}
    }
    if let (Spares::Machines(machines), Place::Machines { addresses, .. }) = (&spares, place) {
        let mut named = addresses.iter().chain(machines.iter().map(|(address, _)| address));
        let mut seen = BTreeSet::new();
        if let Some(again) = named.find(|address| !seen.insert(*address)) {
            return usage(format!("{again} is named twice: a machine is one stage, or one spare"));
        }
    }
    let n_spares = match &spares {
        Spares::Children(n) => usize::from(*n),
        Spares::Machines(machines) => machines.len(),
    };
    if n_spares > usize::from(MAX_STAGES) {
        return usage(format!("a line has at most {MAX_STAGES} spares, not {n_spares}"));
    }
    if cut.n_stages() <= first {
        return usage("a spare takes the place of a stage in another process, and this line has none");
    }
    Ok(Some(spares))
}

fn machine(given: &str, first: usize, n_stages: usize) -> anyhow::Result<(String, Option<u16>)> {
    let Some((address, stage)) = given.split_once('=') else { return Ok((stage_address(given)?, None)) };
    match stage.parse::<u16>() {
        Ok(stage) if (first..n_stages).contains(&usize::from(stage)) => {
            Ok((stage_address(address)?, Some(stage)))
        }
        _ => usage(format!("--spare {given}: the stage must be {first} to {}", n_stages - 1)),
    }
}
