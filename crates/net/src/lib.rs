//! The links between a front and its stages: who may speak, how frames travel, and how a dead peer is noticed.
//!
//! Owns: node keys, cluster memberships and how machines get them, TLS 1.3 over TCP with both sides proven, which role may
//! ask for what, the in-memory carrier, framing with priorities, heartbeats, orderly close, a memory of what was logged of
//! those who are refused, and shaping for tests of slow networks.
//! Does not know: what a frame means, which sequence is decoding, or who should be connected to whom.
#![forbid(unsafe_code)]

mod endpoint;
mod identity;
mod invite;
mod link;
#[cfg(test)]
mod logged;
mod port;
mod purpose;
mod said;
mod shape;
mod tls;

pub use endpoint::{
    AcceptError, Admit, BindError, DialError, DialOptions, Listener, ListenerOptions, ListenerStats,
    PeerError, dial,
};
pub use identity::{
    ClusterRoot, Identity, IdentityError, Membership, NodeKey, Notice, NoticeError, Role, Serial, Standing,
    Succession, enroll_request,
};
pub use invite::{Invitation, InviteError, JoinError, Joined, Offer, Ticket, TicketError, join, take_back};
pub use link::{
    Heartbeat, Link, LinkError, LinkOptions, LinkReceiver, LinkSender, LinkStats, PeerInfo, Received,
    SegmentError, SendError, memory_pair,
};
pub use purpose::Purpose;
pub use said::Said;
pub use shape::{Shape, ShapeError, duration};
pub use tls::HandshakeError;
