//! Which crate may depend on which. The table in ARCHITECTURE.md says the same, and this compares all three.

use std::collections::{BTreeMap, BTreeSet};

use cargo_metadata::{Metadata, MetadataCommand};

/// Everything that a crate of ours may name under any kind of dependency.
const ALLOWED: [(&str, &[&str]); 14] = [
    ("protocol", &[]),
    ("spec", &["protocol"]),
    ("scheduler", &["spec", "protocol"]),
    ("gguf", &[]),
    ("grammar", &["spec", "protocol"]),
    ("net", &["protocol"]),
    ("stage", &["protocol"]),
    ("llama", &["stage", "gguf", "grammar", "protocol"]),
    ("store", &[]),
    ("line", &["scheduler", "spec", "net", "stage", "store", "protocol"]),
    ("server", &["scheduler", "protocol"]),
    ("forecast", &["scheduler", "spec", "stage", "protocol"]),
    (
        "cli",
        &[
            "protocol",
            "spec",
            "scheduler",
            "gguf",
            "grammar",
            "net",
            "stage",
            "store",
            "llama",
            "line",
            "server",
            "forecast",
        ],
    ),
    ("sim", &["scheduler", "spec", "stage", "net", "protocol"]),
];

/// The C++ library, which takes minutes to build.
const ENGINE: &str = "llama-cpp-sys-2";

fn metadata() -> Metadata {
    let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/../../Cargo.toml");
    MetadataCommand::new()
        .manifest_path(manifest)
        .no_deps()
        .exec()
        .expect("cargo metadata reads our workspace")
}

fn allowed() -> BTreeMap<&'static str, BTreeSet<&'static str>> {
    ALLOWED.iter().map(|&(name, uses)| (name, uses.iter().copied().collect())).collect()
}

#[test]
fn crates_depend_only_on_what_the_architecture_allows() {
    let (metadata, allowed) = (metadata(), allowed());
    let names: BTreeSet<_> = metadata.packages.iter().map(|package| package.name.to_string()).collect();
    assert_eq!(
        names,
        allowed.keys().map(ToString::to_string).collect(),
        "a crate came or went: decide its edges"
    );
    for package in &metadata.packages {
        let allowed = &allowed[package.name.as_str()];
        for dependency in package.dependencies.iter().filter(|dependency| names.contains(&dependency.name)) {
            let is_allowed = allowed.contains(dependency.name.as_str());
            assert!(is_allowed, "{} must not depend on {}", package.name, dependency.name);
        }
    }
}

#[test]
fn only_llama_links_the_engine() {
    let metadata = metadata();
    let links =
        metadata.packages.iter().filter(|package| package.dependencies.iter().any(|d| d.name == ENGINE));
    assert_eq!(links.map(|package| package.name.as_str()).collect::<Vec<_>>(), ["llama"]);
}

#[test]
fn every_crate_is_private_and_keeps_the_common_lints() {
    for package in metadata().packages {
        assert_eq!(package.publish.as_deref(), Some(&[][..]), "{} could be published", package.name);
        let manifest =
            std::fs::read_to_string(&package.manifest_path).expect("the manifest was just read by cargo");
        assert!(manifest.contains("[lints]\nworkspace = true"), "{} has lints of its own", package.name);
    }
}

#[test]
fn the_architecture_paper_has_the_same_table() {
    let paper = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../../ARCHITECTURE.md"))
        .expect("the paper lies beside the workspace's manifest");
    let all: BTreeSet<_> = ALLOWED.iter().map(|&(name, _)| name).collect();
    let mut written = BTreeMap::new();
    for line in paper.lines() {
        let cells: Vec<_> = line.split('|').map(str::trim).collect();
        let [_, name, _, uses, _, _] = cells[..] else { continue };
        let Some(&name) = all.get(name.trim_matches('`')) else { continue };
        let uses: BTreeSet<_> = match uses {
            "–" => BTreeSet::new(),
            "all but sim" => all.iter().copied().filter(|&other| other != "sim" && other != name).collect(),
            list => list.split(", ").collect(),
        };
        written.insert(name, uses);
    }
    assert_eq!(written, allowed());
}
