//! What fuzzing begins with, for the tests of the crates that read such bytes: they include this file.
//!
//! Owns the folders of `fuzz/seeds`, one for each target. Does not know what the bytes mean.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// With it in the environment, tests write what their encoders make.
const WRITE: &str = "PACELINE_WRITE_SEEDS";

/// A target's seeds by name, each in a file of that name.
pub(crate) type Seeds = BTreeMap<String, Vec<u8>>;

fn folder(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/seeds").join(target)
}

/// What there is.
pub(crate) fn of(target: &str) -> Seeds {
    let files = fs::read_dir(folder(target)).unwrap().map(|entry| entry.unwrap().path());
    files.map(|file| (name(&file), fs::read(&file).unwrap())).collect()
}

fn name(file: &Path) -> String {
    file.file_name().unwrap().to_str().unwrap().to_owned()
}

/// Checks that a target's seeds are what the encoders make now; writes them first if that was asked for.
pub(crate) fn are_current(target: &str, made: &Seeds) {
    let folder = folder(target);
    if std::env::var_os(WRITE).is_some() {
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).unwrap();
        made.iter().for_each(|(name, bytes)| fs::write(folder.join(name), bytes).unwrap());
    }
    let found = if folder.is_dir() { of(target) } else { Seeds::new() };
    let all = found.keys().chain(made.keys());
    let other: Vec<_> = all.filter(|&name| found.get(name) != made.get(name)).collect();
    assert!(
        other.is_empty(),
        "fuzz/seeds/{target} is not what is written now, in {other:?}: run this test with {WRITE}=1"
    );
}
