//! The tasks behind a place's links: to the next stage, to a relayed neighbour, and from the stage before.

use std::sync::Arc;
use std::time::Duration;

use net::{LinkReceiver, LinkSender, Purpose};
use protocol::{Downstream, Generation, LinkRole, RefuseReason, RowsHello, ToFront, ToStage, Wire};
use stage::Handle;
use tokio::sync::mpsc;

use super::{Event, NodeConfig};
use crate::backoff::Backoff;
use crate::greeting::{GreetError, greet};
use crate::task::Task;
use crate::work_link;

/// First pause before a neighbour is dialled again.
const REDIAL_MIN: Duration = Duration::from_millis(50);
/// Longest such pause.
const REDIAL_MAX: Duration = Duration::from_secs(2);

/// What the tasks of one generation need.
#[derive(Clone)]
pub(super) struct Links {
    pub(super) config: Arc<NodeConfig>,
    pub(super) events: mpsc::Sender<Event>,
    pub(super) generation: Generation,
}

impl Links {
    /// Dials the next stage until it accepts or refuses for good, then watches the link.
    pub(super) fn downstream(self, next: Downstream, hello: RowsHello) -> Task {
        Task::spawn(async move {
            let reason = match self.dial(&next, Purpose::Rows, LinkRole::Rows(hello)).await {
                Ok((sender, mut receiver)) => {
                    self.say(Event::Downstream(self.generation, sender)).await;
                    match receiver.recv().await {
                        Ok(_) => "unexpected bytes".to_owned(),
                        Err(error) => error.to_string(),
                    }
                }
                Err(refused) => refused.to_string(),
            };
            self.say(Event::DownstreamLost(self.generation, reason)).await;
        })
    }

    /// Dials the neighbour, which the front cannot reach, in the front's name, then passes its reports on.
    pub(super) fn relay(self, next: Downstream, role: LinkRole) -> Task {
        Task::spawn(async move {
            let reason = match self.dial(&next, Purpose::Relay, role).await {
                Ok((sender, mut receiver)) => {
                    self.say(Event::RelayUp(self.generation, sender.clone())).await;
                    let reason = loop {
                        match read_control::<ToFront>(&mut receiver).await {
                            Ok(report) => {
                                self.say(Event::RelayReport(self.generation, Box::new(report))).await;
                            }
                            Err(reason) => break reason,
                        }
                    };
                    sender.close(&reason);
                    reason
                }
                Err(refused) => refused.to_string(),
            };
            self.say(Event::RelayLost(self.generation, reason)).await;
        })
    }

    /// Hands every frame of an accepted link to the engine.
    pub(super) fn upstream(self, sender: LinkSender, mut receiver: LinkReceiver, engine: Handle) -> Task {
        Task::spawn(async move {
            let reason = loop {
                match work_link::recv(&mut receiver).await {
                    Ok(frame) => {
                        if let Err(refused) = engine.frame(frame) {
                            break refused.to_string();
                        }
                    }
                    Err(error) => break error.to_string(),
                }
            };
            sender.close(&reason);
            self.say(Event::UpstreamLost(self.generation, reason)).await;
        })
    }

    async fn say(&self, event: Event) {
        // Fails only while the node ends.
        let _ = self.events.send(event).await;
    }

    /// Dials until the other side accepts. A refusal that time may heal is tried again, with growing pauses.
    async fn dial(
        &self,
        next: &Downstream,
        purpose: Purpose,
        role: LinkRole,
    ) -> Result<(LinkSender, LinkReceiver), RefuseReason> {
        let config = &self.config;
        let mut options = config.dial.clone();
        options.purpose = purpose;
        options.link.heartbeat = (purpose == Purpose::Relay).then_some(config.heartbeat);
        let mut backoff = Backoff::new(REDIAL_MIN, REDIAL_MAX);
        loop {
            match net::dial(&next.address, &config.identity, next.node, &options).await {
                Ok(link) => match greet(link, role.clone(), &config.build).await {
                    Ok(ends) => return Ok(ends),
                    Err(GreetError::Refused(reason)) if is_final(&reason) => return Err(reason),
                    Err(error) => tracing::debug!(address = next.address, "no link yet: {error}"),
                },
                Err(error) => tracing::debug!(address = next.address, "no link yet: {error}"),
            }
            tokio::time::sleep(backoff.pause()).await;
        }
    }
}

/// The next message on a control link.
pub(crate) async fn read_control<M: Wire>(receiver: &mut LinkReceiver) -> Result<M, String> {
    let received = receiver.recv().await.map_err(|error| error.to_string())?;
    M::decode(&received.bytes).map_err(|error| format!("not a control message: {error}"))
}

/// Tells the node what its front says on the control link of that number, and that the link has ended.
pub(super) fn read_commands(link: u64, mut receiver: LinkReceiver, events: mpsc::Sender<Event>) -> Task {
    Task::spawn(async move {
        loop {
            let event = match read_control::<ToStage>(&mut receiver).await {
                Ok(message) => Event::Command { link, message: Box::new(message) },
                Err(reason) => Event::ControlLost { link, reason },
            };
            let over = matches!(event, Event::ControlLost { .. });
            if events.send(event).await.is_err() || over {
                return;
            }
        }
    })
}

/// Whether dialling again in this generation is pointless.
const fn is_final(reason: &RefuseReason) -> bool {
    match reason {
        RefuseReason::Version { .. }
        | RefuseReason::WrongPeer
        | RefuseReason::Mismatch { .. }
        | RefuseReason::OtherPurpose
        | RefuseReason::LetGo
        | RefuseReason::NotHeeded
        | RefuseReason::LeftOut => true,
        RefuseReason::Kept { .. } | RefuseReason::Ending | RefuseReason::NotAssigned { .. } => false,
    }
}
