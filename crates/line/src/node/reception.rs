//! Whoever connects is heard out here, so that nobody who says nothing holds up the node.

use net::{Link, PeerInfo, Purpose};
use protocol::{LinkRole, RefuseReason};
use tokio::sync::mpsc;

use super::{Event, Greeted};
use crate::greeting::{self, GreetError, refuse};

/// Hears what a new link is for, and passes it on to the node if that fits its handshake.
pub(super) async fn receive(link: Link, events: mpsc::Sender<Event>) {
    let (sender, mut receiver) = link.split();
    match greeting::hear(&mut receiver).await {
        Ok(hello) if !fits(sender.peer(), &hello.role) => refuse(&sender, RefuseReason::OtherPurpose),
        Ok(hello) => {
            let _ = events.send(Event::Greeted(Box::new(Greeted { hello, sender, receiver }))).await;
        }
        Err(GreetError::Refused(reason)) => refuse(&sender, reason),
        Err(error) => {
            tracing::warn!(peer = %sender.peer().address, "link closed: {error}");
            sender.close(&error.to_string());
        }
    }
}

/// Whether a link's first message asks for what its handshake asked for.
fn fits(peer: &PeerInfo, role: &LinkRole) -> bool {
    match (peer.purpose, role) {
        // Who comes itself commands in its own name only.
        (Purpose::Control, LinkRole::Control { front, .. }) => peer.node == *front,
        (Purpose::Relay, LinkRole::Control { .. })
        | (Purpose::Rows, LinkRole::Rows(_))
        | (Purpose::Observe, LinkRole::Observe { .. }) => true,
        _ => false,
    }
}
