//! Whoever connects is heard out here, so that nobody who says nothing holds up the node.

use std::sync::Arc;

use net::{Link, PeerInfo, Purpose};
use protocol::{LinkRole, RefuseReason};
use tokio::sync::mpsc;

use super::refusals::Refusals;
use super::{Event, Greeted};
use crate::greeting::{self, GreetError};

/// Hears what a new link is for, and passes it on to the node if that fits its handshake.
pub(super) async fn receive(link: Link, events: mpsc::Sender<Event>, refusals: Arc<Refusals>) {
    let (sender, mut receiver) = link.split();
    match greeting::hear(&mut receiver).await {
        Ok(hello) if !fits(sender.peer(), &hello.role) => {
            refusals.refuse(&sender, RefuseReason::OtherPurpose);
        }
        Ok(hello) => {
            let _ = events.send(Event::Greeted(Box::new(Greeted { hello, sender, receiver }))).await;
        }
        Err(GreetError::Refused(reason)) => refusals.refuse(&sender, reason),
        Err(error) => refusals.close(&sender, &error),
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
