//! `cluster revoke`: a ticket is taken back, or a member is let go, and the running lines hear of it.
//!
//! Owns what people see of it. The notice is `net`'s, the files are `cluster`'s.

use std::path::Path;

use net::{Role, Ticket};

use crate::logging::say;
use crate::{cluster, signals, tell};

/// Takes back a ticket, or lets the member of that name go and tells these stages.
pub(crate) fn revoke(dir: &Path, what: &str, told: &[String]) -> anyhow::Result<()> {
    if let Ok(ticket) = what.parse::<Ticket>() {
        signals::http_runtime()?.block_on(net::take_back(&ticket))?;
        say("The ticket was taken back: it is worth nothing now.");
        return Ok(());
    }
    let root = cluster::root(dir)?;
    let member = cluster::let_go(dir, &root, what)?;
    let next = match (member.role, told) {
        // Nobody can rely on it to pass on that it has to go.
        (Role::Front, _) => " Each of its stages needs --tell ADDR.",
        (_, []) => " One stage of each line that runs needs --tell ADDR.",
        _ => "",
    };
    say(&format!("{what} is let go.{next}"));
    let observer = tell::observer(&root, dir)?;
    tell::tell(&observer, &observer.standing(), told)
}
