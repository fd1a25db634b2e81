//! Judged arguments of `paceline cluster`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use net::{Role, Ticket};

use super::{address, file_stem, time, usage};
use crate::flags::cluster::{EnrollFlags, InviteFlags};

/// `paceline cluster enroll`: one step of an enrolment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum EnrollArgs {
    /// Make this machine's key and write its request.
    Request {
        /// Where to.
        file: PathBuf,
    },
    /// Sign a request with the cluster's root key.
    Sign {
        /// The request.
        request: PathBuf,
        /// As what.
        role: Role,
        /// A name for people.
        name: String,
        /// Days until the membership ends.
        days: u32,
    },
    /// Take the membership written for this machine.
    Join {
        /// The membership.
        membership: PathBuf,
    },
}

/// `paceline cluster invite`.
#[derive(Clone, Debug)]
pub struct InviteArgs {
    /// Where it waits.
    pub listen: SocketAddr,
    /// What the other machine reaches it by; `None` to find out.
    pub address: Option<String>,
    /// How long the ticket is good.
    pub valid: Duration,
    /// What the machine becomes.
    pub role: Role,
    /// A name for people.
    pub name: Option<String>,
    /// Days until the membership ends.
    pub days: u32,
}

impl InviteArgs {
    pub(crate) fn from_flags(flags: InviteFlags) -> anyhow::Result<Self> {
        let valid = time("--valid", Some(&flags.valid), Duration::ZERO)?;
        if valid.is_zero() {
            return usage("--valid must be longer than no time at all");
        }
        if let Some(given) = flags.address.as_deref().filter(|given| !Ticket::is_address(given)) {
            return usage(format!("--address must be HOST:PORT, not `{given}`"));
        }
        Ok(Self {
            listen: address(&flags.listen)?,
            address: flags.address,
            valid,
            role: role(&flags.role)?,
            name: flags.name,
            days: days(flags.days)?,
        })
    }
}

/// A ticket, as it was printed.
pub(crate) fn ticket(text: &str) -> anyhow::Result<Ticket> {
    text.parse().or_else(|error: net::TicketError| usage(error.to_string()))
}

fn role(given: &str) -> anyhow::Result<Role> {
    match given {
        "stage" => Ok(Role::Stage),
        "front" => Ok(Role::Front),
        "observer" => Ok(Role::Observer),
        other => usage(format!("--role must be stage, front or observer, not `{other}`")),
    }
}

/// Days of a membership. A century: beyond it the date arithmetic of certificates ends.
fn days(given: u32) -> anyhow::Result<u32> {
    if given == 0 || given > 36_500 {
        return usage(format!("--days must be 1 to 36500, not {given}"));
    }
    Ok(given)
}

impl EnrollArgs {
    pub(crate) fn from_flags(flags: EnrollFlags) -> anyhow::Result<Self> {
        if let Some(file) = flags.request {
            return Ok(Self::Request { file });
        }
        if let Some(membership) = flags.join {
            return Ok(Self::Join { membership });
        }
        let Some(request) = flags.sign else {
            return usage("name the request: `paceline cluster enroll FILE`");
        };
        let name = flags.name.unwrap_or_else(|| file_stem(&request));
        Ok(Self::Sign { request, role: role(&flags.role)?, name, days: days(flags.days)? })
    }
}
