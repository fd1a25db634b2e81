//! What a machine has heard of its cluster's roots, on its disk: beside its identity, for the next start.
//!
//! | file | holds |
//! |---|---|
//! | `notice` | whom the root has let go |
//! | `succession` | how the root took another one's place |
//!
//! Both are signed, and no secrets. Owns these files, and that an identity is kept as it stands. What they say is `net`'s.

use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use net::{Identity, Standing};
use protocol::limits::MAX_NOTICE_BYTES;

use crate::logging::say;
use crate::{cluster, paths};

const NOTICE: &str = "notice";
const SUCCESSION: &str = "succession";

/// The folder of what was heard by the identity in that file, or in the default place.
pub(crate) fn folder(identity: &Path) -> PathBuf {
    identity.parent().map_or_else(PathBuf::new, Path::to_owned)
}

/// The file of this machine's identity, or of the one that was named.
pub(crate) fn identity_file(named: Option<&Path>) -> anyhow::Result<PathBuf> {
    let usual = || anyhow::Ok(paths::cluster_dir()?.join(cluster::IDENTITY));
    named.map_or_else(usual, |named| Ok(named.to_owned()))
}

/// Has an identity heed what was heard before, in the order in which it is understood.
pub(crate) fn recall(identity: &Identity, dir: &Path) -> anyhow::Result<()> {
    for name in [SUCCESSION, NOTICE] {
        if let Some(document) = read(&dir.join(name))? {
            identity.heed(&document).with_context(|| dir.join(name).display().to_string())?;
        }
    }
    Ok(())
}

/// What was heard of members that were let go.
pub(crate) fn notice(dir: &Path) -> anyhow::Result<Option<Vec<u8>>> {
    read(&dir.join(NOTICE))
}

/// Writes whom the root has let go.
pub(crate) fn write_notice(dir: &Path, notice: &net::Notice) -> anyhow::Result<()> {
    cluster::write(&dir.join(NOTICE), notice.bytes())
}

/// How the root took another one's place.
pub(crate) fn succession(dir: &Path) -> anyhow::Result<Option<net::Succession>> {
    let file = dir.join(SUCCESSION);
    let read = read(&file)?.map(|bytes| net::Succession::read(&bytes)).transpose();
    read.with_context(|| file.display().to_string())
}

/// Writes how the root took another one's place.
pub(crate) fn write_succession(dir: &Path, succession: &net::Succession) -> anyhow::Result<()> {
    cluster::write(&dir.join(SUCCESSION), succession.bytes())
}

/// Keeps an identity and what it has heard as they are, for the next start, as long as the process lives.
pub(crate) async fn keep(identity: Identity, file: PathBuf) {
    let mut standings = identity.standings();
    let mut before = identity.standing();
    while standings.changed().await.is_ok() {
        let now = standings.borrow_and_update().clone();
        if let Err(error) = save(&identity, &now, &file) {
            tracing::warn!("what the cluster's root said is forgotten at the next start: {error:#}");
        }
        if now.membership() != before.membership() {
            say("The cluster has a new root: this machine has its new membership, and goes on.");
        }
        if now.notice() != before.notice() {
            say("The cluster's root has let members go: they are refused from now on.");
        }
        before = now;
    }
}

/// In this order: a membership whose root is not explained is of use, one that the new root explains is not needed.
fn save(identity: &Identity, standing: &Standing, file: &Path) -> anyhow::Result<()> {
    let dir = folder(file);
    if let Some(succession) = standing.succession() {
        write_succession(&dir, succession)?;
        identity.replace(file)?;
    }
    standing.notice().map_or(Ok(()), |notice| write_notice(&dir, notice))
}

fn read(file: &Path) -> anyhow::Result<Option<Vec<u8>>> {
    if !file.exists() {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    fs::File::open(file)
        .and_then(|open| open.take(MAX_NOTICE_BYTES as u64 + 1).read_to_end(&mut bytes))
        .with_context(|| format!("could not read {}", file.display()))?;
    Ok(Some(bytes))
}
