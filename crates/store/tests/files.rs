//! A store on a real disk.
#![allow(clippy::unwrap_used, reason = "tests and their helpers")]

#[path = "../../../fuzz/src/seeds.rs"]
mod seeds;

use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use proptest::prelude::*;
use store::{Name, Store, Written};

/// Far beyond need.
const DEADLINE: Duration = Duration::from_secs(60);

fn name(of: &str) -> Name {
    Name::new("kv", &[of.as_bytes()])
}

fn write(store: &Store, of: &str, bytes: &'static [u8]) -> Written {
    let (tell, told) = mpsc::channel();
    let (head, body) = bytes.split_at(bytes.len().min(2));
    store
        .write(name(of), head.to_vec(), Bytes::from_static(body), move |written| tell.send(written).unwrap());
    told.recv_timeout(DEADLINE).expect("an answer")
}

fn read(store: &Store, of: &str) -> Option<Bytes> {
    let (tell, told) = mpsc::channel();
    store.read(name(of), move |bytes| tell.send(bytes).unwrap());
    told.recv_timeout(DEADLINE).expect("an answer")
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<_> = folder.read_dir().unwrap().map(|entry| entry.unwrap().path()).collect();
    files.sort();
    files
}

fn open(folder: &Path, budget: u64) -> Store {
    Store::open(folder.join("prefixes"), budget).expect("a folder")
}

#[test]
fn what_one_process_kept_another_one_reads() {
    let home = tempfile::tempdir().unwrap();
    let first = open(home.path(), 10_000);
    assert_eq!(read(&first, "a"), None);
    assert_eq!(write(&first, "a", b"some bytes"), Written::Kept);
    drop(first);
    let second = open(home.path(), 10_000);
    assert_eq!(read(&second, "a").as_deref(), Some(&b"some bytes"[..]));
    assert_eq!(read(&second, "b"), None);
    assert_eq!(second.read_all("kv"), ["some bytes"]);
    assert!(second.read_all("text").is_empty());
}

#[test]
fn a_panic_costs_only_what_it_was_about() {
    let home = tempfile::tempdir().unwrap();
    let store = open(home.path(), 10_000);
    assert_eq!(write(&store, "a", b"some bytes"), Written::Kept);
    let (tell, told) = mpsc::channel::<()>();
    store.read(name("a"), move |_| {
        let _tell = tell;
        panic!("a bug in whoever asked");
    });
    assert_eq!(told.recv_timeout(DEADLINE), Err(mpsc::RecvTimeoutError::Disconnected), "it hears of it");
    assert_eq!(read(&store, "a").as_deref(), Some(&b"some bytes"[..]));
}

#[test]
fn a_spoiled_file_is_removed_and_never_given() {
    let home = tempfile::tempdir().unwrap();
    let store = open(home.path(), 10_000);
    for spoil in
        [|bytes: &mut Vec<u8>| *bytes.last_mut().unwrap() ^= 1, |bytes: &mut Vec<u8>| bytes.truncate(50)]
    {
        write(&store, "a", b"some bytes");
        let file = files(&home.path().join("prefixes")).pop().unwrap();
        let mut bytes = std::fs::read(&file).unwrap();
        spoil(&mut bytes);
        std::fs::write(&file, bytes).unwrap();
        assert_eq!(read(&store, "a"), None);
        assert!(!file.exists());
    }
    // One that belongs to another name.
    write(&store, "a", b"some bytes");
    let folder = home.path().join("prefixes");
    let file = files(&folder).pop().unwrap();
    write(&store, "b", b"other bytes");
    let other = files(&folder).into_iter().find(|path| *path != file).unwrap();
    std::fs::copy(&file, &other).unwrap();
    assert_eq!(read(&store, "b"), None);
    assert!(read(&store, "a").is_some());
}

#[test]
fn the_budget_holds_and_what_was_used_last_stays() {
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("prefixes");
    let store = open(home.path(), 3 * 82 + 10);
    let mut age = 100;
    for of in ["a", "b", "c"] {
        assert_eq!(write(&store, of, b"ten bytes!"), Written::Kept);
    }
    // As if they had been written long ago, one after the other; reading is using.
    for path in files(&folder) {
        let time: SystemTime = UNIX_EPOCH + Duration::from_secs(age);
        std::fs::File::options().append(true).open(path).unwrap().set_modified(time).unwrap();
        age += 1;
    }
    assert!(read(&store, "b").is_some());
    assert_eq!(write(&store, "d", b"ten bytes!"), Written::Kept);
    assert_eq!(files(&folder).len(), 3);
    let (b, d) = (read(&store, "b"), read(&store, "d"));
    assert!(b.is_some() && d.is_some());
    assert_eq!(write(&store, "e", &[0; 400]), Written::Skipped, "larger than the budget");
    assert_eq!(files(&folder).len(), 3);
}

#[cfg(unix)]
#[test]
fn nobody_else_may_look() {
    use std::os::unix::fs::PermissionsExt as _;
    let home = tempfile::tempdir().unwrap();
    let folder = home.path().join("prefixes");
    std::fs::create_dir(&folder).unwrap();
    std::fs::set_permissions(&folder, std::fs::Permissions::from_mode(0o755)).unwrap();
    write(&open(home.path(), 10_000), "a", b"some bytes");
    let mode = |path: &Path| path.metadata().unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&folder), 0o700);
    assert_eq!(files(&folder).iter().map(|path| mode(path)).collect::<Vec<_>>(), [0o600]);
}

#[test]
fn a_folder_that_is_gone_ends_writing_and_nothing_else() {
    let home = tempfile::tempdir().unwrap();
    let store = open(home.path(), 10_000);
    std::fs::remove_dir_all(home.path().join("prefixes")).unwrap();
    assert_eq!(write(&store, "a", b"some bytes"), Written::Failed);
    assert_eq!(write(&store, "a", b"some bytes"), Written::Failed);
    assert_eq!(read(&store, "a"), None);
    let file = home.path().join("file");
    std::fs::write(&file, b"").unwrap();
    let error = Store::open(file.join("prefixes"), 1).err().expect("not a folder").to_string();
    assert!(error.contains("cannot be used for prefixes"), "{error}");
}

#[test]
fn what_is_there_already_is_not_written_again() {
    let home = tempfile::tempdir().unwrap();
    let store = open(home.path(), 10_000);
    write(&store, "a", b"some bytes");
    let file = files(&home.path().join("prefixes")).pop().unwrap();
    let before = file.metadata().unwrap();
    assert_eq!(write(&store, "a", b"some bytes"), Written::Kept);
    let after = file.metadata().unwrap();
    assert!(after.modified().unwrap() >= before.modified().unwrap());
    store.remove(name("a"));
    assert_eq!(read(&store, "b"), None);
    assert_eq!(write(&store, "b", b"x"), Written::Kept, "whatever was asked before is done");
    assert_eq!(read(&store, "a"), None);
}

#[test]
fn what_somebody_else_put_there_stays() {
    let home = tempfile::tempdir().unwrap();
    let store = open(home.path(), 1000);
    let own = home.path().join("prefixes/thesis.txt");
    std::fs::write(&own, [0; 900]).unwrap();
    for of in ["a", "b", "c"] {
        assert_eq!(write(&store, of, &[1; 400]), Written::Kept);
    }
    assert_eq!(std::fs::read(&own).unwrap().len(), 900);
}

/// What fuzzing begins with: whole files, and files that only one thing is wrong with.
#[test]
fn fuzzing_begins_with_whole_files_and_spoiled_ones() {
    let home = tempfile::tempdir().unwrap();
    let store = open(home.path(), 10_000);
    let written = |of, bytes| {
        assert_eq!(write(&store, of, bytes), Written::Kept);
        let content = std::fs::read(files(&home.path().join("prefixes")).pop().unwrap()).unwrap();
        store.remove(name(of));
        content
    };
    let (empty, text) = (written("fuzz", b""), written("fuzz", b"some bytes"));
    let changed = |at: usize| {
        let mut bytes = text.clone();
        bytes[at] ^= 1;
        bytes
    };
    let made = [
        ("mark", changed(0)),
        ("digest", changed(8)),
        ("name", written("other", b"some bytes")),
        ("body", changed(72)),
        ("longer", [&text[..], b"!"].concat()),
        ("cut", text[..70].to_vec()),
        ("head", empty[..40].to_vec()),
        ("empty", empty),
        ("whole", text.clone()),
    ];
    seeds::are_current("store_file", &made.map(|(name, bytes)| (name.to_owned(), bytes)).into());
    for (seed, bytes) in seeds::of("store_file") {
        assert_eq!(write(&store, "fuzz", b"another"), Written::Kept);
        let file = files(&home.path().join("prefixes")).pop().unwrap();
        std::fs::write(&file, bytes).unwrap();
        let expected = match &*seed {
            "empty" => Some(Bytes::new()),
            "whole" => Some(Bytes::from_static(b"some bytes")),
            _ => None,
        };
        assert_eq!(read(&store, "fuzz"), expected, "{seed}");
        store.remove(name("fuzz"));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// What the fuzz target of stored files checks, too.
    #[test]
    fn whatever_lies_in_the_folder_is_given_whole_or_not_at_all(
        content in prop::collection::vec(any::<u8>(), 0..200),
        keeps in 0..=72_usize,
        cut in any::<bool>(),
    ) {
        let home = tempfile::tempdir().unwrap();
        let store = open(home.path(), 10_000);
        prop_assert_eq!(write(&store, "a", b"some bytes"), Written::Kept);
        let file = files(&home.path().join("prefixes")).pop().unwrap();
        let good = std::fs::read(&file).unwrap();
        // The beginning of a good file, and anything behind it.
        let mut bytes = good[..keeps].to_vec();
        if !cut {
            bytes.extend(content);
        }
        std::fs::write(&file, &bytes).unwrap();
        let is_good = bytes == good;
        prop_assert_eq!(read(&store, "a"), is_good.then(|| Bytes::from_static(b"some bytes")));
        prop_assert_eq!(file.exists(), is_good);
        prop_assert_eq!(store.read_all("kv").len(), usize::from(is_good));
    }
}
