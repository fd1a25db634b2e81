//! Links that a node refuses: the other side is told each time, and the log once for each kind of reason.
//!
//! Owns: what makes two refusals the same one. Does not judge anybody.

use std::fmt::Display;
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
        let node = link.peer().node.short();
        self.log(link, Kind::Refused(kind(&reason)), &format_args!("link refused: {reason} (node {node})"));
        greeting::refuse(link, reason);
    }

    /// Closes a link whose greeting was none.
    pub(super) fn close(&self, link: &LinkSender, error: &GreetError) {
        let node = link.peer().node.short();
        self.log(
            link,
            Kind::Broken(discriminant(error)),
            &format_args!("link closed: {error} (node {node})"),
        );
        link.close(&error.to_string());
    }

    fn log(&self, link: &LinkSender, kind: Kind, sentence: &dyn Display) {
        let peer = link.peer();
        // Every connection has another port.
        let host = peer.address.rsplit_once(':').map_or(peer.address.as_str(), |(host, _)| host);
        self.0.log((host.to_owned(), peer.node, kind), &peer.address, sentence);
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
