//! Rules about source files that no compiler checks.

use std::fs;
use std::path::{Path, PathBuf};

/// Lines above which a file needs a reason.
const LONG: usize = 800;

/// Longer files, and why splitting them would not help the reader.
const LONG_FILES: [(&str, &str); 0] = [];

/// Where pure code lives: no runtime, no threads, no clock, no hash order.
const PURE: [&str; 6] = [
    "crates/protocol/src",
    "crates/spec/src",
    "crates/scheduler/src",
    "crates/gguf/src",
    "crates/stage/src",
    "crates/line/src/drafter/core.rs",
];

/// Files below [`PURE`] that drive the pure code, or that stand for hardware.
const DRIVERS: [(&str, &str); 2] = [
    ("crates/stage/src/thread.rs", "the engine thread: the core's driver"),
    ("crates/stage/src/null.rs", "stands for an engine, and takes time like one"),
];

const IMPURE: [&str; 7] =
    ["tokio", "std::thread", "Instant::now", "SystemTime", "HashMap", "HashSet", "std::net"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Every Rust file of our crates with its path from the workspace's root.
fn sources() -> Vec<(String, String)> {
    let mut found = Vec::new();
    let mut folders = vec![root().join("crates")];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder).expect("a folder that was just listed") {
            let path = entry.expect("an entry of a readable folder").path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|extension| extension == "rs") {
                let name = path.strip_prefix(root()).expect("below the root").to_string_lossy().into_owned();
                found.push((name, fs::read_to_string(&path).expect("source text")));
            }
        }
    }
    found.sort();
    assert!(found.len() > 50, "only {} source files found", found.len());
    found
}

/// Fails with every offender at once.
fn assert_none(offenders: impl IntoIterator<Item = String>, rule: &str) {
    let offenders: Vec<_> = offenders.into_iter().collect();
    assert!(offenders.is_empty(), "{rule}:\n  {}", offenders.join("\n  "));
}

#[test]
fn only_llama_may_be_unsafe() {
    let is_root = |name: &str| name.ends_with("/src/lib.rs") || name.ends_with("/src/main.rs");
    let roots = sources().into_iter().filter(|(name, _)| is_root(name) && !name.starts_with("crates/llama/"));
    let offenders = roots.filter(|(_, text)| !text.lines().any(|line| line == "#![forbid(unsafe_code)]"));
    assert_none(offenders.map(|(name, _)| name), "crate roots without #![forbid(unsafe_code)]");
}

#[test]
fn every_module_says_what_it_owns() {
    // The name of a unit's own tests says all.
    let is_test = |name: &str| name.ends_with("/tests.rs") || name.ends_with("/tests/mod.rs");
    let modules = sources().into_iter().filter(|(name, _)| !is_test(name));
    let offenders = modules.filter(|(_, text)| !text.starts_with("//! "));
    assert_none(offenders.map(|(name, _)| name), "files that do not start with //!");
}

#[test]
fn no_file_is_long_without_a_reason() {
    let is_listed = |name: &str| LONG_FILES.iter().any(|&(long, reason)| long == name && !reason.is_empty());
    let long = sources().into_iter().map(|(name, text)| (name, text.lines().count()));
    let offenders = long.filter(|(name, lines)| *lines > LONG && !is_listed(name));
    assert_none(
        offenders.map(|(name, lines)| format!("{name}: {lines} lines")),
        "long files without a reason",
    );
}

#[test]
fn pure_code_has_no_runtime_thread_clock_or_hash_order() {
    let is_pure = |name: &str| PURE.iter().any(|folder| name.starts_with(folder));
    let is_driver = |name: &str| DRIVERS.iter().any(|&(driver, _)| driver == name);
    let is_test = |name: &str| name.contains("/tests") || name.ends_with("_tests.rs");
    let files = sources().into_iter().filter(|(name, _)| is_pure(name) && !is_driver(name) && !is_test(name));
    let offenders = files.flat_map(|(name, text)| {
        let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default().to_owned();
        let lines: Vec<_> =
            code.lines().enumerate().map(|(i, line)| (i + 1, line.trim_start().to_owned())).collect();
        let code = lines.into_iter().filter(|(_, line)| !line.starts_with("//"));
        let found = code.filter(|(_, line)| IMPURE.iter().any(|word| line.contains(word)));
        found.map(|(i, line)| format!("{name}:{i}: {line}")).collect::<Vec<_>>()
    });
    assert_none(offenders, "pure code that is not");
}

#[test]
fn no_test_is_ignored() {
    let mark = concat!("#[ign", "ore");
    let offenders = sources().into_iter().filter(|(_, text)| text.contains(mark));
    assert_none(offenders.map(|(name, _)| name), "files with ignored tests");
}
