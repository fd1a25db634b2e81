//! `cluster invite` and `cluster join`: a machine becomes a member over the network, by a ticket.
//!
//! Owns what people see of it. The exchange is `net`'s, the files are `cluster`'s.

use std::io::Write as _;
use std::net::{SocketAddr, UdpSocket};
use std::path::Path;

use anyhow::bail;
use net::{Invitation, Membership, NodeKey, Offer, Ticket};

use crate::args::InviteArgs;
use crate::logging::say;
use crate::{cluster, signals};

/// An address that belongs to nobody (RFC 5737). Nothing is sent to it: the system is only asked by which of this
/// machine's addresses it would.
const ELSEWHERE: &str = "192.0.2.1:9";

/// Waits for one machine and enrols it.
pub(crate) fn invite(dir: &Path, args: InviteArgs) -> anyhow::Result<()> {
    let root = cluster::root(dir)?;
    args.name.as_deref().map_or(Ok(()), cluster::check_name)?;
    let offer = Offer { role: args.role, expires: Some(cluster::in_days(args.days)), valid: args.valid };
    signals::http_runtime()?.block_on(async {
        let mut end = signals::EndSignals::listen()?;
        let invitation = Invitation::open(root, &args.listen.to_string(), offer).await?;
        let address = args.address.unwrap_or_else(|| reached_by(invitation.local_addr()));
        let ticket = invitation.ticket(address);
        // Alone on standard output, so that a program can take it.
        writeln!(std::io::stdout(), "{ticket}")?;
        say(&format!(
            "Waiting for one machine on {} for {} s. There: `paceline cluster join TICKET`, or `paceline stage --join \
             TICKET …`. Ctrl-C takes the ticket back.",
            invitation.local_addr(),
            args.valid.as_secs_f32()
        ));
        let joined = tokio::select! {
            joined = invitation.wait() => joined?,
            () = end.next() => bail!("the ticket was taken back: it is worth nothing now"),
        };
        let member = Membership::from_answer(&joined.membership)?;
        let name = args.name.unwrap_or_else(|| member.node.short().to_string());
        say(&format!("From {}: {}", joined.address, cluster::keep_member(dir, &name, &joined.membership)?));
        Ok(())
    })
}

/// Becomes a member.
pub(crate) fn join(dir: &Path, ticket: &Ticket) -> anyhow::Result<()> {
    if cluster::is_member(dir) {
        bail!("this machine is a member already ({}): use another --dir for another cluster", dir.display());
    }
    let identity = signals::http_runtime()?.block_on(net::join(ticket, NodeKey::generate()?))?;
    cluster::become_member(dir, &identity)
}

/// What another machine reaches a port of this one by.
fn reached_by(port: SocketAddr) -> String {
    if !port.ip().is_unspecified() {
        return port.to_string();
    }
    let own = UdpSocket::bind("0.0.0.0:0").and_then(|socket| {
        socket.connect(ELSEWHERE)?;
        socket.local_addr()
    });
    // A machine without a network has nobody to invite but itself.
    own.map_or_else(|_| format!("127.0.0.1:{}", port.port()), |own| format!("{}:{}", own.ip(), port.port()))
}
