//! Flags of `paceline cluster`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

pub(super) const EXAMPLES: &str = "\
A cluster is the set of machines that trust each other: a root key signs each machine's own key.

  first$   paceline cluster new                     makes the root key and enrols this machine as the front
  first$   paceline cluster invite                  prints a ticket and waits for one machine
  second$  paceline stage --join TICKET --models ~/models

Without a network between them, a file goes each way:

  second$  paceline cluster enroll --request FILE   makes this machine's key; writes a request, which is no secret
  first$   paceline cluster enroll FILE             signs the request; writes FILE.member, no secret either
  second$  paceline cluster enroll --join FILE.member

A line of processes on one machine (`serve --stages N`) needs none of this.";

const INVITE_EXAMPLES: &str = "\
Examples:
  paceline cluster invite                           for ten minutes, for a machine of this network
  paceline cluster invite --address home.example:7412 --valid 3600s
                                                    for a machine elsewhere, which reaches this one by that name

The ticket is a secret: whoever shows it first becomes a member. It is good once, and only while this command runs.";

const REVOKE_EXAMPLES: &str = "\
Examples:
  paceline cluster revoke second --tell 10.0.0.3:7411
                                                    nobody speaks to `second` any more: its links end, no new one is made
  paceline cluster revoke paceline-join:…           the ticket is worth nothing; needs no root key

Run it where the root key is. Any stage of a line that is told tells the others and the front, and all remember it. One
that is away hears of it when it is back on its line. Where a front is let go, tell each of its stages.";

const ROTATE_EXAMPLES: &str = "\
Examples:
  paceline cluster rotate --tell 10.0.0.3:7411      one stage of each line that runs is told, which tells all others
  paceline cluster rotate --overlap 0s --tell …     the old key was stolen: who has not heard must be invited anew

Run it where the root key is, and keep a copy of the new one as you kept the old one. Nothing is restarted, and no request
is disturbed: each machine keeps its key and gets its new membership over the links that it has. One that is away hears of
it when it is back on its line within the overlap; after that its old membership is refused everywhere.";

/// What to do with the cluster.
#[derive(Debug, Args)]
pub(crate) struct ClusterFlags {
    /// Keep keys and memberships in this folder [default: ~/.config/paceline/cluster]
    #[arg(long, global = true, value_name = "DIR")]
    pub(crate) dir: Option<PathBuf>,
    #[command(subcommand)]
    pub(crate) action: ClusterAction,
}

/// The actions of `cluster`.
#[derive(Debug, Subcommand)]
pub(crate) enum ClusterAction {
    /// Make the root key of a new cluster and enrol this machine as its front
    New,
    /// Say who this machine is and which machines are enrolled
    Show,
    /// Let a member go, or take back a ticket that nobody has used
    #[command(after_help = REVOKE_EXAMPLES)]
    Revoke {
        /// The member's name, as `cluster show` has it, or the ticket
        #[arg(value_name = "NAME|TICKET")]
        what: String,
        /// Tell this stage, host:port, which tells its whole line; repeatable
        #[arg(long, value_name = "ADDR")]
        tell: Vec<String>,
    },
    /// Put a new root key in the old one's place, while the lines go on
    #[command(after_help = ROTATE_EXAMPLES)]
    Rotate(RotateFlags),
    /// Tell stages, host:port each, what the root has said: members that it let go, and its rotation
    Tell {
        /// Where they are
        #[arg(value_name = "ADDR", required = true)]
        addresses: Vec<String>,
    },
    /// Ask stages, host:port each, whom they are kept for and what they hold; for fronts and observers
    Look {
        /// Where they are
        #[arg(value_name = "ADDR", required = true)]
        addresses: Vec<String>,
    },
    /// Wait for one machine and make it a member: prints a ticket for `cluster join` or `stage --join` on that machine
    #[command(visible_alias = "ticket", after_help = INVITE_EXAMPLES)]
    Invite(InviteFlags),
    /// Become a member with the ticket of `cluster invite`, which waits on the machine that has the root key
    Join {
        /// The ticket
        #[arg(value_name = "TICKET")]
        ticket: String,
    },
    /// Make a member of a machine: it asks (--request), the cluster's root signs, it takes the answer (--join)
    #[command(after_help = EXAMPLES)]
    Enroll(EnrollFlags),
}

/// An invitation: one ticket, one machine.
#[derive(Debug, Args)]
pub(crate) struct InviteFlags {
    /// Wait here
    #[arg(long, default_value = "0.0.0.0:7412", value_name = "ADDR")]
    pub(crate) listen: String,
    /// What the other machine reaches this one by, HOST:PORT [default: this machine's address in its network]
    #[arg(long, value_name = "ADDR")]
    pub(crate) address: Option<String>,
    /// The ticket is good for so long: `600s`
    #[arg(long, default_value = "600s", value_name = "TIME")]
    pub(crate) valid: String,
    /// Make it this: stage, front for one more machine that serves, or observer for one that only looks on
    #[arg(long, default_value = "stage", value_name = "ROLE")]
    pub(crate) role: String,
    /// A name for people, shown by `cluster show` [default: the beginning of its key]
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Days until the membership ends
    #[arg(long, default_value_t = 365, value_name = "N")]
    pub(crate) days: u32,
}

/// A rotation of the root key.
#[derive(Debug, Args)]
pub(crate) struct RotateFlags {
    /// A machine that has not heard of the new root may come back with its old membership for so long: `30d`, `12h`, `0s`
    #[arg(long, default_value = "30d", value_name = "TIME")]
    pub(crate) overlap: String,
    /// Tell this stage, host:port, which tells its whole line; repeatable
    #[arg(long, value_name = "ADDR")]
    pub(crate) tell: Vec<String>,
    /// Do not wait for the overlap of the rotation before: machines that have not heard of that one must be invited anew
    #[arg(long)]
    pub(crate) again: bool,
}

/// The three steps of an enrolment, one at a time.
#[derive(Debug, Args)]
pub(crate) struct EnrollFlags {
    /// Sign this request; the membership goes beside it, ending in .member
    #[arg(value_name = "REQUEST", required_unless_present_any = ["request", "join"])]
    pub(crate) sign: Option<PathBuf>,
    /// Make this machine's key and write its request here
    #[arg(long, value_name = "FILE", conflicts_with_all = ["sign", "join"])]
    pub(crate) request: Option<PathBuf>,
    /// Take the membership that was written for this machine
    #[arg(long, value_name = "FILE", conflicts_with_all = ["sign"])]
    pub(crate) join: Option<PathBuf>,
    /// Sign it as this: stage, front for one more machine that serves, or observer for one that only looks on
    #[arg(long, default_value = "stage", value_name = "ROLE")]
    pub(crate) role: String,
    /// A name for people, shown by `cluster show` [default: the request's file name]
    #[arg(long)]
    pub(crate) name: Option<String>,
    /// Days until the membership ends
    #[arg(long, default_value_t = 365, value_name = "N")]
    pub(crate) days: u32,
}
