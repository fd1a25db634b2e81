//! The cluster's files and the three steps that make a machine a member.
//!
//! | file in the cluster's folder | secret | holds |
//! |---|---|---|
//! | `root.key` | yes | the cluster's root key, on the machine that made it |
//! | `root.next` | yes | the root key that is about to take its place |
//! | `node.key` | yes | this machine's key, while its request waits to be signed |
//! | `node.pem` | yes | this machine's key and membership |
//! | `members/NAME.member` | no | what the root signed, one file per machine |
//!
//! Owns these files; what was heard of the root lies beside them (`standing`). What a key, request or membership *is*
//! belongs to `net`.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use anyhow::{Context as _, bail};
use net::{ClusterRoot, Identity, Membership, NodeKey, Notice, Role, Succession};

use crate::args::{EnrollArgs, Usage};
use crate::standing;

pub(crate) const ROOT: &str = "root.key";
pub(crate) const NEXT_ROOT: &str = "root.next";
const KEY: &str = "node.key";
pub(crate) const IDENTITY: &str = "node.pem";
const MEMBERS: &str = "members";
const DAY: Duration = Duration::from_secs(86_400);
/// A request or membership is a few kilobytes of text; anything much larger is another kind of file.
const MAX_PEM_BYTES: u64 = 64 * 1024;

/// This machine's identity, from `file` or from the default place.
///
/// # Errors
/// If there is none, with what to do about it, or if it cannot be used or has another role.
pub(crate) fn identity(file: Option<&Path>, role: Role) -> anyhow::Result<Identity> {
    let identity = any_identity(file)?;
    let found = identity.membership().role;
    if found != role {
        bail!(
            "this machine is a member as {found}, and this needs one as {role}: enrol it anew with --role {role}"
        );
    }
    Ok(identity)
}

/// This machine's identity in a folder, whatever its role.
pub(crate) fn member(dir: &Path) -> anyhow::Result<Identity> {
    any_identity(Some(&dir.join(IDENTITY)))
}

fn any_identity(file: Option<&Path>) -> anyhow::Result<Identity> {
    let path = standing::identity_file(file)?;
    if !path.exists() {
        bail!(
            "this machine is in no cluster ({} does not exist): run `paceline cluster new` on the first machine and \
             see `paceline cluster --help` for the others",
            path.display()
        );
    }
    let identity = Identity::load(&path).with_context(|| path.display().to_string())?;
    standing::recall(&identity, &standing::folder(&path))?;
    Ok(identity)
}

/// Lets a member go, by the name that `cluster show` has for it.
pub(crate) fn let_go(dir: &Path, root: &ClusterRoot, name: &str) -> anyhow::Result<Membership> {
    let Some(Enrolled { membership, .. }) = members(dir)?.into_iter().find(|known| known.name == name) else {
        bail!("no member is called `{name}`: see `paceline cluster show`");
    };
    let earlier = notice(dir, root)?;
    let mut nodes = earlier.as_ref().map(|notice| notice.revoked().clone()).unwrap_or_default();
    nodes.insert(membership.node);
    standing::write_notice(dir, &root.notice(next_number(earlier.as_ref()), nodes)?)?;
    Ok(membership)
}

/// What this root has said of members that it has let go.
fn notice(dir: &Path, root: &ClusterRoot) -> anyhow::Result<Option<Notice>> {
    let read = standing::notice(dir)?.map(|bytes| root.read_notice(&bytes)).transpose();
    read.with_context(|| format!("what {} says of members that were let go", dir.display()))
}

/// The number of the next notice: by the clock, so that it counts on from notices whose file was lost.
pub(crate) fn next_number(earlier: Option<&Notice>) -> u64 {
    let seconds = now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |age| age.as_secs());
    earlier.map_or(seconds, |notice| seconds.max(notice.number() + 1))
}

/// `cluster new`.
pub(crate) fn new(dir: &Path) -> anyhow::Result<()> {
    let root_file = dir.join(ROOT);
    for file in [&root_file, &dir.join(IDENTITY)] {
        if file.exists() {
            bail!(
                "this machine is in a cluster already: {} exists (use another --dir for another cluster)",
                file.display()
            );
        }
    }
    private_dir(dir)?;
    let root = ClusterRoot::new()?;
    let front = root.issue(Role::Front, None)?;
    root.save(&root_file)?;
    front.save(&dir.join(IDENTITY))?;
    say(&[
        format!("new cluster in {}; this machine is its front, {}", dir.display(), front.node()),
        format!(
            "keep a copy of {} offline: it can enrol machines, and is needed for nothing else",
            root_file.display()
        ),
    ])
}

/// `cluster show`.
pub(crate) fn show(dir: &Path) -> anyhow::Result<()> {
    let mut lines = vec![format!("cluster folder: {}", dir.display())];
    let identity_file = dir.join(IDENTITY);
    if identity_file.exists() {
        lines.push(format!("this machine:   {}", describe(&member(dir)?.membership())));
    } else if dir.join(KEY).exists() {
        let key = NodeKey::load(&dir.join(KEY)).context("this machine's key")?;
        lines.push(format!(
            "this machine:   {}, waits for its membership (`cluster enroll --join FILE`)",
            key.id()
        ));
    } else {
        lines.push(
            "this machine:   in no cluster (`cluster new` or `cluster enroll --request FILE`)".to_owned(),
        );
    }
    if dir.join(ROOT).exists() {
        lines.push("root key:       here".to_owned());
        let root = root(dir)?;
        if let Some(succession) = standing::succession(dir)? {
            lines.push(format!("rotated:        {}", overlap(&succession)));
        }
        let notice = notice(dir, &root)?;
        let is_gone = |node| notice.as_ref().is_some_and(|notice| notice.revoked().contains(&node));
        for Enrolled { name, membership, answer } in members(dir)? {
            let gone = if is_gone(membership.node) {
                ", LET GO"
            } else if root.has_signed(&answer) {
                ""
            } else {
                ", BY AN EARLIER ROOT: invite it anew"
            };
            lines.push(format!("member {name}: {}{gone}", describe(&membership)));
        }
    } else {
        lines.push("root key:       not here; the machine that has it lists the members".to_owned());
    }
    say(&lines)
}

/// `cluster enroll`.
pub(crate) fn enroll(dir: &Path, step: EnrollArgs) -> anyhow::Result<()> {
    match step {
        EnrollArgs::Request { file } => request(dir, &file),
        EnrollArgs::Sign { request, role, name, days } => sign(dir, &request, role, &name, days),
        EnrollArgs::Join { membership } => join(dir, &membership),
    }
}

fn request(dir: &Path, file: &Path) -> anyhow::Result<()> {
    let identity_file = dir.join(IDENTITY);
    if identity_file.exists() {
        bail!("this machine is a member already: remove {} to enrol it anew", identity_file.display());
    }
    private_dir(dir)?;
    let key_file = dir.join(KEY);
    let key = if key_file.exists() {
        NodeKey::load(&key_file).with_context(|| key_file.display().to_string())?
    } else {
        let key = NodeKey::generate()?;
        key.save(&key_file)?;
        key
    };
    write(file, net::enroll_request(&key)?)?;
    say(&[format!(
        "request of {} written to {}: sign it with `paceline cluster enroll {}` where the root key is",
        key.id(),
        file.display(),
        file.display()
    )])
}

/// The root key, which only one machine has.
pub(crate) fn root(dir: &Path) -> anyhow::Result<ClusterRoot> {
    if dir.join(NEXT_ROOT).exists() {
        bail!("a rotation of the root key was interrupted: finish it with `paceline cluster rotate`");
    }
    root_to_rotate(dir)
}

/// The root key, also while another one is about to take its place.
pub(crate) fn root_to_rotate(dir: &Path) -> anyhow::Result<ClusterRoot> {
    let root_file = dir.join(ROOT);
    if !root_file.exists() {
        bail!(
            "the root key is not here ({}): sign on the machine that ran `paceline cluster new`",
            root_file.display()
        );
    }
    ClusterRoot::load(&root_file).with_context(|| root_file.display().to_string())
}

/// A name for people is the name of a file.
pub(crate) fn check_name(name: &str) -> anyhow::Result<()> {
    if name.is_empty() || !name.bytes().all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b)) {
        return Err(Usage(format!(
            "--name `{name}` may hold only letters, digits, dots, dashes and underscores"
        ))
        .into());
    }
    Ok(())
}

/// Keeps what was signed for a machine, for `cluster show`, and says it in words.
pub(crate) fn keep_member(dir: &Path, name: &str, answer: &str) -> anyhow::Result<String> {
    let member = Membership::from_answer(answer)?;
    write_member(dir, name, answer)?;
    Ok(format!("{name} enrolled: {}", describe(&member)))
}

/// Writes what the root has answered a machine with.
pub(crate) fn write_member(dir: &Path, name: &str, answer: &str) -> anyhow::Result<()> {
    private_dir(&dir.join(MEMBERS))?;
    write(&dir.join(MEMBERS).join(format!("{name}.member")), answer)
}

/// When a membership of so many days ends.
pub(crate) fn in_days(days: u32) -> SystemTime {
    now() + DAY * days
}

/// Whether this machine is a member.
pub(crate) fn is_member(dir: &Path) -> bool {
    dir.join(IDENTITY).exists()
}

/// Makes a member of this machine.
pub(crate) fn become_member(dir: &Path, identity: &Identity) -> anyhow::Result<()> {
    private_dir(dir)?;
    identity.save(&dir.join(IDENTITY))?;
    say(&[format!("this machine is a member: {}", describe(&identity.membership()))])
}

fn sign(dir: &Path, request: &Path, role: Role, name: &str, days: u32) -> anyhow::Result<()> {
    let root = root(dir)?;
    check_name(name)?;
    let text = read(request)?;
    let answer =
        root.enroll(&text, role, Some(in_days(days))).with_context(|| request.display().to_string())?;
    let enrolled = keep_member(dir, name, &answer)?;
    let out = appended(request, ".member");
    write(&out, &answer)?;
    say(&[
        enrolled,
        format!(
            "carry {} to that machine and run `paceline cluster enroll --join` on it there",
            out.display()
        ),
    ])
}

fn join(dir: &Path, membership: &Path) -> anyhow::Result<()> {
    let key_file = dir.join(KEY);
    if !key_file.exists() {
        bail!("this machine has made no request: run `paceline cluster enroll --request FILE` here first");
    }
    let key = NodeKey::load(&key_file).with_context(|| key_file.display().to_string())?;
    let answer = read(membership)?;
    let identity =
        Identity::from_enrolment(key, &answer).with_context(|| membership.display().to_string())?;
    become_member(dir, &identity)?;
    // The key now lives in the identity; a second copy would only be one more to guard.
    fs::remove_file(&key_file).with_context(|| format!("could not remove {}", key_file.display()))
}

/// A machine that was enrolled.
pub(crate) struct Enrolled {
    pub(crate) name: String,
    pub(crate) membership: Membership,
    /// What the root has answered it with.
    pub(crate) answer: String,
}

/// The machines that were enrolled here, by name.
pub(crate) fn members(dir: &Path) -> anyhow::Result<Vec<Enrolled>> {
    let dir = dir.join(MEMBERS);
    let mut found = Vec::new();
    if !dir.exists() {
        return Ok(found);
    }
    for entry in fs::read_dir(&dir).with_context(|| format!("could not list {}", dir.display()))? {
        let path = entry?.path();
        if path.extension().is_some_and(|ending| ending == "member") {
            let name = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
            let answer = read(&path)?;
            let membership = Membership::from_answer(&answer).with_context(|| path.display().to_string())?;
            found.push(Enrolled { name, membership, answer });
        }
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

/// Until when memberships of the root before are accepted.
fn overlap(succession: &Succession) -> String {
    match succession.until().duration_since(now()) {
        Ok(left) => {
            let hours = left.as_secs() / 3600;
            format!(
                "memberships by the root before are accepted for another {} days and {} h",
                hours / 24,
                hours % 24
            )
        }
        Err(_) => "memberships by the root before are not accepted any more".to_owned(),
    }
}

fn describe(member: &Membership) -> String {
    let end = match member.expires.duration_since(now()) {
        Ok(left) => format!("membership ends in {} days", left.as_secs() / DAY.as_secs()),
        Err(_) => "membership HAS ENDED: enrol it anew".to_owned(),
    };
    format!("{} {}, {end}", member.role, member.node.short())
}

#[allow(clippy::disallowed_methods, reason = "memberships end at a date, and this is the outermost layer")]
pub(crate) fn now() -> SystemTime {
    SystemTime::now()
}

fn appended(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    PathBuf::from(name)
}

fn read(path: &Path) -> anyhow::Result<String> {
    let size = fs::metadata(path).with_context(|| format!("could not read {}", path.display()))?.len();
    if size > MAX_PEM_BYTES {
        bail!("{} is too large to be a request or membership", path.display());
    }
    fs::read_to_string(path).with_context(|| format!("could not read {}", path.display()))
}

/// Writes a whole file under its name or not at all. What is written so is no secret.
pub(crate) fn write(path: &Path, text: impl AsRef<[u8]>) -> anyhow::Result<()> {
    let temporary = appended(path, &format!(".{}", std::process::id()));
    let written = fs::write(&temporary, text).and_then(|()| fs::rename(&temporary, path));
    if written.is_err() {
        // The first error is the one to tell.
        drop(fs::remove_file(&temporary));
    }
    written.with_context(|| format!("could not write {}", path.display()))
}

/// Makes a folder that only its owner may enter.
fn private_dir(dir: &Path) -> anyhow::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::DirBuilderExt as _;
        builder.mode(0o700);
    }
    builder.create(dir).with_context(|| format!("could not make the folder {}", dir.display()))
}

fn say(lines: &[String]) -> anyhow::Result<()> {
    let mut out = io::stdout().lock();
    for line in lines {
        writeln!(out, "{line}")?;
    }
    Ok(())
}
