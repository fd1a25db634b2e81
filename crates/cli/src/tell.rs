//! `cluster tell`: running lines hear what the cluster's root has said.
//!
//! Owns what people see of it. What is said is `net`'s, how it goes on from there is `line`'s.

use std::path::Path;

use anyhow::bail;
use net::{ClusterRoot, Identity, Role, Standing};

use crate::logging::say;
use crate::{cluster, signals, standing};

/// Tells stages everything that the root in this folder has said.
pub(crate) fn tell_all(dir: &Path, addresses: &[String]) -> anyhow::Result<()> {
    let root = cluster::root(dir)?;
    if standing::succession(dir)?.is_none() && standing::notice(dir)?.is_none() {
        bail!("there is nothing to tell: the root has let nobody go, and was not rotated");
    }
    let observer = observer(&root, dir)?;
    tell(&observer, &observer.standing(), addresses)
}

/// Somebody who knows all that the root has said. It lives in memory only, to be let in.
pub(crate) fn observer(root: &ClusterRoot, dir: &Path) -> anyhow::Result<Identity> {
    let observer = root.issue(Role::Observer, None)?;
    standing::recall(&observer, dir)?;
    Ok(observer)
}

/// Has an observer tell stages what is known. Those that cannot be told are named, and the command fails.
pub(crate) fn tell(observer: &Identity, known: &Standing, addresses: &[String]) -> anyhow::Result<()> {
    let build = signals::build();
    signals::http_runtime()?.block_on(async {
        let mut deaf = Vec::new();
        for address in addresses {
            let told = async {
                let mut stage = None;
                for document in known.documents() {
                    stage = Some(line::observe(address, observer, &build, Some(document)).await?.0);
                }
                Ok::<_, line::ObserveError>(stage)
            };
            match told.await {
                Ok(Some(node)) => say(&format!("{address} knows, stage {}.", node.short())),
                Ok(None) => {}
                Err(error) => deaf.push(error.to_string()),
            }
        }
        if deaf.is_empty() {
            Ok(())
        } else {
            bail!("not told, try again with `paceline cluster tell`: {}", deaf.join("; "))
        }
    })
}
