//! Links that a node refuses: the other side is told each time, and the log once for each kind of reason.
//!
//! Owns: what makes two refusals the same one. Does not judge anybody.

use std::mem::{Discriminant, discriminant};

use net::{LinkSender, Said};
use protocol::{Generation, NodeId, RefuseReason, Tenant};

use crate::greeting::{self, GreetError};

/// Who was refused and what was logged of it.
#[derive(Default)]
pub(super) struct Refusals(Said<(String, NodeId, Kind)>);

/// Why, without numbers and words that the other side chooses or that change with time.
#[derive(PartialEq)]
enum Kind {
    Refused(RefuseReason),
    Broken(Discriminant<GreetError>),
}

impl Refusals {
    /// Refuses the link and closes it.
    pub(super) fn refuse(&self, link: &LinkSender, reason: RefuseReason) {
        self.log(link, Kind::Refused(kind(&reason)), &format!("link refused: {reason}"));
        greeting::refuse(link, reason);
    }

    /// Closes a link whose greeting was none.
    pub(super) fn close(&self, link: &LinkSender, error: &GreetError) {
        self.log(link, Kind::Broken(discriminant(error)), &format!("link closed: {error}"));
        link.close(&error.to_string());
    }

    fn log(&self, link: &LinkSender, kind: Kind, what: &str) {
        let peer = link.peer();
        let (address, node) = (&peer.address, peer.node.short());
        // Every connection has another port.
        let host = address.rsplit_once(':').map_or(address.as_str(), |(host, _)| host);
        if self.0.is_new((host.to_owned(), peer.node, kind)) {
            tracing::warn!(peer = %address, %node, "{what}");
        } else {
            tracing::debug!(peer = %address, %node, "{what}");
        }
    }
}

fn kind(reason: &RefuseReason) -> RefuseReason {
    match reason {
        RefuseReason::Version { ours, .. } => RefuseReason::Version { ours: *ours, theirs: 0 },
        RefuseReason::Kept { tenant } => RefuseReason::Kept { tenant: Tenant { left_ms: None, ..*tenant } },
        RefuseReason::NotAssigned { .. } => RefuseReason::NotAssigned { generation: Generation::default() },
        RefuseReason::Mismatch { field, .. } => {
            RefuseReason::Mismatch { field: field.clone(), ours: String::new(), theirs: String::new() }
        }
        other => other.clone(),
    }
}
