//! The first message on every link, each way. TLS has authenticated the peer before it is read.

use std::fmt;

use bytes::Bytes;

use crate::{Generation, LayerRange, ModelId, NodeId, PeerIndex, RowDtype, StageIndex};

/// Raised whenever a message changes its meaning or form. Both sides must agree exactly.
pub const PROTOCOL_VERSION: u16 = 11;

/// From the side that dialled.
#[derive(Clone, Debug, PartialEq)]
pub struct Hello {
    /// [`PROTOCOL_VERSION`] of the sender.
    pub version: u16,
    /// Engine build and CPU variant, so that a mixed line can be told from a uniform one.
    pub build: String,
    /// What the link is for.
    pub role: LinkRole,
}

/// What a link is for.
#[derive(Clone, Debug, PartialEq)]
pub enum LinkRole {
    /// [`crate::ToStage`] one way, [`crate::ToFront`] the other.
    Control {
        /// The number that the front has for the answering side.
        peer: PeerIndex,
        /// The front, whose commands a neighbour may pass on.
        front: NodeId,
    },
    /// Work frames, towards the tail.
    Rows(RowsHello),
    /// A [`Sight`] as the answer; the link then ends.
    Observe {
        /// What the cluster's root says of its members, to be heeded first; empty for nothing.
        notice: Bytes,
    },
}

/// What the sender of rows believes; every difference is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RowsHello {
    /// The line's generation.
    pub generation: Generation,
    /// The receiving stage's place.
    pub to: StageIndex,
    /// Which model.
    pub model: ModelId,
    /// The first layer that the receiver computes.
    pub layer: u32,
    /// Floats in a hidden row; 0 for frames from the front, which carry none.
    pub row_width: u32,
    /// How rows travel.
    pub row_dtype: RowDtype,
    /// Positions per sequence.
    pub context: u32,
}

/// The answer to [`Hello`].
#[derive(Clone, Debug, PartialEq)]
pub enum HelloReply {
    /// Go on.
    Accept {
        /// Engine build and CPU variant of the answering side.
        build: String,
    },
    /// How the stage is. The link is closed after this message.
    Seen(Sight),
    /// The link is closed after this message.
    Refuse(RefuseReason),
}

/// What an observer sees of a stage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sight {
    /// Engine build and CPU variant.
    pub build: String,
    /// Whom it is kept for; nobody if none.
    pub tenant: Option<Tenant>,
    /// The layers that it has been told to hold, if any.
    pub layers: Option<LayerRange>,
    /// Whether it computes them for a line.
    pub works: bool,
    /// The number of the latest notice that it has heard of; 0 for none.
    pub notice: u64,
}

/// Whom a stage is kept for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tenant {
    /// The front.
    pub front: NodeId,
    /// Milliseconds until it is let go; none while its link lives.
    pub left_ms: Option<u32>,
}

impl fmt::Display for Tenant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let front = self.front.short();
        match self.left_ms {
            None => write!(f, "front {front}, which is linked to it"),
            Some(ms) => write!(f, "front {front}, which is gone, for another {} s", ms.div_ceil(1000)),
        }
    }
}

/// Why a link was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RefuseReason {
    /// Different builds of Paceline.
    #[error("protocol version {theirs} does not match {ours}: run the same Paceline on both machines")]
    Version {
        /// Of the refusing side.
        ours: u16,
        /// Of the refused side.
        theirs: u16,
    },
    /// The stage is kept for a front, which is there or may come back.
    #[error("the stage is kept for {tenant}: end that one first, or wait until it is let go")]
    Kept {
        /// For whom, and how long.
        tenant: Tenant,
    },
    /// The stage's process was told to end.
    #[error("the stage's process was told to end")]
    Ending,
    /// A neighbour passes on commands of a front that is no member any more.
    #[error("the cluster's root has let that front go")]
    LetGo,
    /// A new root of the cluster that has not signed the stage.
    #[error("the cluster's new root has not signed this stage: invite it anew")]
    LeftOut,
    /// A notice that the cluster's root has not signed.
    #[error("the notice was not signed by the root of this stage's cluster")]
    NotHeeded,
    /// The link was asked for with another purpose in its handshake than its first message has.
    #[error("the link was opened for something else")]
    OtherPurpose,
    /// Rows for a stage that has no place in a line yet, or not in this generation.
    #[error("no assignment in generation {generation}")]
    NotAssigned {
        /// The generation asked for.
        generation: Generation,
    },
    /// Rows from a node that the front did not name.
    #[error("rows are accepted only from the node that the front named")]
    WrongPeer,
    /// One field of [`RowsHello`] differs.
    #[error("{field}: sender has {theirs}, stage has {ours}")]
    Mismatch {
        /// Which one.
        field: String,
        /// The stage's value.
        ours: String,
        /// The sender's value.
        theirs: String,
    },
}
