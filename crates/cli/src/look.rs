//! `cluster look`: what stages say of themselves to a front or an observer.

use std::io::Write as _;
use std::path::Path;

use anyhow::bail;
use protocol::Sight;

use crate::{cluster, signals};

/// Asks every stage, and says what each answered. Those that do not answer are named, and the command fails.
pub(crate) fn look(dir: &Path, addresses: &[String]) -> anyhow::Result<()> {
    let identity = cluster::member(dir)?;
    let build = signals::build();
    let mut silent = Vec::new();
    signals::http_runtime()?.block_on(async {
        for address in addresses {
            match line::observe(address, &identity, &build, None).await {
                Ok((node, sight)) => {
                    writeln!(std::io::stdout(), "{address} stage {}: {}", node.short(), words(&sight))?;
                }
                Err(error) => silent.push(error.to_string()),
            }
        }
        anyhow::Ok(())
    })?;
    if silent.is_empty() { Ok(()) } else { bail!(silent.join("; ")) }
}

/// A stage in one line.
fn words(sight: &Sight) -> String {
    let kept = sight.tenant.map_or_else(|| "free".to_owned(), |tenant| format!("kept for {tenant}"));
    let holds = match (sight.layers, sight.works) {
        (None, _) => "holds nothing".to_owned(),
        (Some(layers), true) => format!("computes layers {layers}"),
        (Some(layers), false) => format!("prepares or stands by with layers {layers}"),
    };
    format!("{kept}; {holds}; {}", sight.build)
}
