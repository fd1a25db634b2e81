//! Judged arguments of `paceline cluster`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use net::{Role, Ticket};

use super::{address, file_stem, time, usage};
use crate::flags::cluster::{EnrollFlags, InviteFlags, RotateFlags};

/// A machine that was away for a year is another machine.
const MAX_OVERLAP: Duration = Duration::from_secs(365 * 86_400);

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

/// `paceline cluster rotate`.
#[derive(Clone, Debug)]
pub struct RotateArgs {
    /// How long a machine that has not heard of it may come back.
    pub overlap: Duration,
    /// Stages to tell at once.
    pub tell: Vec<String>,
    /// Whether to do it although machines may not have heard of the rotation before.
    pub again: bool,
}

impl RotateArgs {
    pub(crate) fn from_flags(flags: RotateFlags) -> anyhow::Result<Self> {
        let RotateFlags { overlap, tell, again } = flags;
        let Some(overlap) = span(&overlap).filter(|overlap| *overlap <= MAX_OVERLAP) else {
            return usage(format!(
                "--overlap must be a time such as 30d, 12h or 0s, at most 365d, not `{overlap}`"
            ));
        };
        Ok(Self { overlap, tell, again })
    }
}

/// A time that is counted in days or hours, or in what [`net::duration`] reads.
fn span(given: &str) -> Option<Duration> {
    for (unit, seconds) in [('d', 86_400), ('h', 3_600)] {
        if let Some(number) = given.strip_suffix(unit) {
            return Some(Duration::from_secs(u64::from(number.parse::<u32>().ok()?) * seconds));
        }
    }
    net::duration(given)
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
