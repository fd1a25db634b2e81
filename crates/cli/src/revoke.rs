//! `cluster revoke`: a ticket is taken back, or a member is let go, and the running lines hear of it.
//!
//! Owns what people see of it. The notice is `net`'s, the files are `cluster`'s.

use std::path::Path;

use anyhow::bail;
use net::{Role, Ticket};

use crate::logging::say;
use crate::{cluster, signals};

/// Takes back a ticket, or lets the member of that name go and tells these stages.
pub(crate) fn revoke(dir: &Path, what: &str, tell: &[String]) -> anyhow::Result<()> {
    if let Ok(ticket) = what.parse::<Ticket>() {
        signals::http_runtime()?.block_on(net::take_back(&ticket))?;
        say("The ticket was taken back: it is worth nothing now.");
        return Ok(());
    }
    let root = cluster::root(dir)?;
    let (member, notice) = cluster::let_go(dir, &root, what)?;
    let next = match (member.role, tell) {
        // Nobody can rely on it to pass on that it has to go.
        (Role::Front, _) => " Each of its stages needs --tell ADDR.",
        (_, []) => " One stage of each line that runs needs --tell ADDR.",
        _ => "",
    };
    say(&format!("{what} is let go.{next}"));
    // It lives in memory only, to be let in.
    let observer = root.issue(Role::Observer, None)?;
    signals::http_runtime()?.block_on(async {
        let mut deaf = Vec::new();
        for address in tell {
            match line::observe(address, &observer, &signals::build(), Some(&notice)).await {
                Ok((node, _)) => say(&format!("{address} knows, stage {}.", node.short())),
                Err(error) => deaf.push(error.to_string()),
            }
        }
        if deaf.is_empty() { Ok(()) } else { bail!("not told, try again: {}", deaf.join("; ")) }
    })
}

/// Keeps what the root says beside the identity, for the next start, as long as the process lives.
pub(crate) async fn keep(identity: net::Identity, file: std::path::PathBuf) {
    let mut notices = identity.notices();
    while notices.changed().await.is_ok() {
        let Some(notice) = notices.borrow_and_update().clone() else { continue };
        say("The cluster's root has let members go: they are refused from now on.");
        if let Err(error) = cluster::write_notice(&file, notice.bytes()) {
            tracing::warn!("what the cluster's root said is forgotten at the next start: {error:#}");
        }
    }
}
