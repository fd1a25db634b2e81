//! The first message each way on every link, and the control stream's messages after it.

use std::time::Duration;

use bytes::Bytes;
use net::{DialOptions, Identity, Link, LinkError, LinkReceiver, LinkSender, Purpose, SendError};
use protocol::{
    DecodeError, Hello, HelloReply, LinkRole, NodeId, PROTOCOL_VERSION, RefuseReason, Sight, Wire,
};

/// The stream of greetings and control messages: the last id that a front would ever give a sequence.
pub(crate) const CONTROL_STREAM: u64 = u64::MAX;
/// How long the dialling side may take to say what it wants: it does so at once.
const HELLO_WITHIN: Duration = Duration::from_secs(5);

/// Why a link came to nothing.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum GreetError {
    /// The other side said why.
    #[error(transparent)]
    Refused(#[from] RefuseReason),
    /// The link ended first.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// It could not be sent.
    #[error(transparent)]
    Send(#[from] SendError),
    /// The other side sent something else.
    #[error("unexpected greeting: {0}")]
    Decode(#[from] DecodeError),
    /// The other side answered something that it was not asked.
    #[error("an answer to another question")]
    NotAsked,
    /// The other side sent nothing.
    #[error("no greeting within {within:?}")]
    Late {
        /// The limit.
        within: Duration,
    },
}

/// Sends a message that must not get lost: a link that cannot take it is closed, so that both sides know.
pub(crate) fn tell<M: Wire>(link: &LinkSender, message: &M) {
    match send(link, message) {
        Ok(()) | Err(SendError::Ended(_)) => {} // Whoever reads the link hears of its end.
        Err(error) => {
            tracing::warn!(peer = %link.peer().address, "control link given up: {error}");
            link.close(&format!("a message could not be sent: {error}"));
        }
    }
}

/// Sends one message on the control stream.
fn send<M: Wire>(link: &LinkSender, message: &M) -> Result<(), SendError> {
    let mut head = Vec::new();
    message.encode(&mut head);
    link.send(CONTROL_STREAM, head.into(), Bytes::new())
}

/// Says what the link is for and waits for the answer, as long as the link lives: a stage that is still loading
/// answers when it can.
pub(crate) async fn greet(
    link: Link,
    role: LinkRole,
    build: &str,
) -> Result<(LinkSender, LinkReceiver), GreetError> {
    let (sender, mut receiver) = link.split();
    send(&sender, &Hello { version: PROTOCOL_VERSION, build: build.to_owned(), role })?;
    match HelloReply::decode(&receiver.recv().await?.bytes)? {
        HelloReply::Accept { build: theirs } => {
            if theirs != build {
                tracing::info!(ours = build, theirs, "the other side runs another build");
            }
            Ok((sender, receiver))
        }
        HelloReply::Refuse(reason) => Err(reason.into()),
        HelloReply::Seen(_) => Err(GreetError::NotAsked),
    }
}

/// Waits for what the dialling side wants.
pub(crate) async fn hear(receiver: &mut LinkReceiver) -> Result<Hello, GreetError> {
    let received = tokio::time::timeout(HELLO_WITHIN, receiver.recv())
        .await
        .map_err(|_| GreetError::Late { within: HELLO_WITHIN })??;
    let hello = Hello::decode(&received.bytes).map_err(|error| match error {
        DecodeError::Version { ours, theirs } => RefuseReason::Version { ours, theirs }.into(),
        other => GreetError::from(other),
    })?;
    if hello.version == PROTOCOL_VERSION {
        Ok(hello)
    } else {
        Err(RefuseReason::Version { ours: PROTOCOL_VERSION, theirs: hello.version }.into())
    }
}

/// Accepts the link.
pub(crate) fn accept(link: &LinkSender, build: &str) -> Result<(), SendError> {
    send(link, &HelloReply::Accept { build: build.to_owned() })
}

/// Answers an observer.
pub(crate) fn show(link: &LinkSender, sight: Sight) {
    // A link that is gone already needs no answer.
    let _ = send(link, &HelloReply::Seen(sight));
    link.close("that is all");
}

/// Why an observer sees nothing.
#[derive(Debug, thiserror::Error)]
pub enum ObserveError {
    /// There is no link.
    #[error(transparent)]
    Dial(#[from] net::DialError),
    /// The stage does not answer.
    #[error("{address}: {reason}")]
    Link {
        /// Which stage.
        address: String,
        /// Why not.
        reason: String,
    },
}

/// Asks the stage at `address` (`host:port`) how it is; for fronts and observers. What the cluster's root has said may be
/// brought along: the stage heeds it, and tells its front, which tells the other stages.
///
/// # Errors
/// If it cannot be reached, or refuses.
pub async fn observe(
    address: &str,
    identity: &Identity,
    build: &str,
    document: Option<&Bytes>,
) -> Result<(NodeId, Sight), ObserveError> {
    let notice = document.cloned().unwrap_or_default();
    let options = DialOptions { purpose: Purpose::Observe, ..DialOptions::default() };
    let failed = |reason: String| ObserveError::Link { address: address.to_owned(), reason };
    let (sender, mut receiver) = net::dial(address, identity, None, &options).await?.split();
    let hello =
        Hello { version: PROTOCOL_VERSION, build: build.to_owned(), role: LinkRole::Observe { notice } };
    send(&sender, &hello).map_err(|error| failed(error.to_string()))?;
    let answer = tokio::time::timeout(HELLO_WITHIN, receiver.recv())
        .await
        .map_err(|_| failed(format!("no answer within {HELLO_WITHIN:?}")))?
        .map_err(|error| failed(error.to_string()))?;
    match HelloReply::decode(&answer.bytes).map_err(|error| failed(error.to_string()))? {
        HelloReply::Seen(sight) => Ok((sender.peer().node, sight)),
        HelloReply::Refuse(reason) => Err(failed(reason.to_string())),
        HelloReply::Accept { .. } => Err(failed(GreetError::NotAsked.to_string())),
    }
}

/// Refuses the link and closes it.
pub(crate) fn refuse(link: &LinkSender, reason: RefuseReason) {
    let text = reason.to_string();
    // A link that is gone already needs no answer.
    let _ = send(link, &HelloReply::Refuse(reason));
    link.close(&text);
}
