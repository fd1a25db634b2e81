//! `cluster rotate`: a new root key takes the old one's place, and the running lines hear of it.
//!
//! Owns the order in which files change, so that a rotation that breaks off is finished by the next one, and what people
//! see. What is signed is `net`'s.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, bail};
use net::{ClusterRoot, Identity, Membership, Role, Succession};

use crate::args::RotateArgs;
use crate::cluster::{self, Enrolled};
use crate::logging::say;
use crate::{standing, tell};

/// Telling may take so long, whatever the overlap is.
const TO_TELL: Duration = Duration::from_secs(3600);

/// Rotates the root key, and tells these stages.
pub(crate) fn rotate(dir: &Path, args: &RotateArgs) -> anyhow::Result<()> {
    let old = cluster::root_to_rotate(dir)?;
    let rotation = Rotation::begin(dir, &old, args)?;
    let passed_over = rotation.finish(dir, &old)?;
    let n_members = rotation.succession.members().count();
    let (root, days) = (dir.join(cluster::ROOT), args.overlap.as_secs() / 86_400);
    say(&format!(
        "The root key is rotated, and {n_members} members are taken over. Keep a copy of {} offline, and destroy those of \
         the old one.",
        root.display()
    ));
    if !passed_over.is_empty() {
        say(&format!("Not taken over, since they were let go or have ended: {}.", passed_over.join(", ")));
    }
    let left = if days > 0 { format!("within {days} days") } else { "now".to_owned() };
    let next = if args.tell.is_empty() {
        " One stage of each line that runs needs `paceline cluster tell ADDR`."
    } else {
        ""
    };
    say(&format!("A machine that does not hear of it {left} must be invited anew.{next}"));
    let known = tell::observer(&rotation.next, dir)?.standing();
    tell::tell(&rotation.teller(&old)?, &known, &args.tell)
}

/// A root about to take another one's place.
struct Rotation {
    next: ClusterRoot,
    succession: Succession,
}

impl Rotation {
    /// Makes the new root and has it sign the members, or goes on with what was begun.
    fn begin(dir: &Path, old: &ClusterRoot, args: &RotateArgs) -> anyhow::Result<Self> {
        let (file, earlier) = (dir.join(cluster::NEXT_ROOT), standing::succession(dir)?);
        if !file.exists() {
            let is_under_way = earlier.as_ref().is_some_and(|earlier| earlier.until() > cluster::now());
            if is_under_way && !args.again {
                bail!(
                    "the overlap of the rotation before is not over (see `paceline cluster show`), and machines that have \
                     not heard of it would have to be invited anew: wait, or say --again"
                );
            }
            ClusterRoot::new()?.save(&file)?;
        }
        let next = ClusterRoot::load(&file).with_context(|| file.display().to_string())?;
        if let Some(succession) = earlier.filter(|earlier| earlier.new_root() == next.id()) {
            return Ok(Self { next, succession });
        }
        let members = taken_over(dir, old)?;
        let succession = old.hand_over(&next, cluster::now() + args.overlap, &members)?;
        standing::write_succession(dir, &succession)?;
        Ok(Self { next, succession })
    }

    /// Puts everything in its place, the root's key last; the names of those that were passed over.
    fn finish(&self, dir: &Path, old: &ClusterRoot) -> anyhow::Result<Vec<String>> {
        let mut passed_over = Vec::new();
        for Enrolled { name, membership, .. } in cluster::members(dir)? {
            match self.succession.answer(membership.node) {
                Some(answer) => cluster::write_member(dir, &name, &answer)?,
                None => passed_over.push(name),
            }
        }
        if cluster::is_member(dir) {
            // It has heeded what was just written.
            cluster::member(dir)?.replace(&dir.join(cluster::IDENTITY))?;
        }
        self.let_go(dir, old)?;
        let (from, to) = (dir.join(cluster::NEXT_ROOT), dir.join(cluster::ROOT));
        fs::rename(&from, &to).with_context(|| format!("could not put {} in place", to.display()))?;
        Ok(passed_over)
    }

    /// Says again whom the old root has let go: their memberships would be good until the overlap is over. Those whose
    /// memberships are by a root before that are forgotten.
    fn let_go(&self, dir: &Path, old: &ClusterRoot) -> anyhow::Result<()> {
        let Some(bytes) = standing::notice(dir)? else { return Ok(()) };
        if self.next.read_notice(&bytes).is_ok() {
            return Ok(());
        }
        let said = old.read_notice(&bytes).context("what the root said of members that were let go")?;
        let is_outdated = |enrolled: &Enrolled| !old.has_signed(&enrolled.answer);
        let outdated: BTreeSet<_> = cluster::members(dir)?
            .iter()
            .filter(|known| is_outdated(known))
            .map(|known| known.membership.node)
            .collect();
        let revoked = said.revoked().difference(&outdated).copied().collect();
        standing::write_notice(dir, &self.next.notice(cluster::next_number(Some(&said)), revoked)?)
    }

    /// Somebody who believes those that have not heard for long enough to tell them, also where the overlap is none. It
    /// lives in memory only.
    fn teller(&self, old: &ClusterRoot) -> anyhow::Result<Identity> {
        let members: Vec<_> = self.succession.members().cloned().collect();
        let teller = self.next.issue(Role::Observer, None)?;
        teller.heed(old.hand_over(&self.next, cluster::now() + TO_TELL, &members)?.bytes())?;
        Ok(teller)
    }
}

/// The members of this root that the next one takes over: those that were neither let go nor have ended.
fn taken_over(dir: &Path, root: &ClusterRoot) -> anyhow::Result<Vec<Membership>> {
    let said = standing::notice(dir)?.map(|bytes| root.read_notice(&bytes)).transpose()?;
    let revoked = said.map(|notice| notice.revoked().clone()).unwrap_or_default();
    let enrolled = cluster::members(dir)?.into_iter().filter(|known| root.has_signed(&known.answer));
    let mut members: Vec<_> = enrolled.map(|known| known.membership).collect();
    if cluster::is_member(dir) {
        members.push(cluster::member(dir)?.membership());
    }
    let now = cluster::now();
    members.retain(|member| !revoked.contains(&member.node) && member.expires > now);
    Ok(members)
}
