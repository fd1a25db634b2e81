//! Models and their slices on this machine: finding a model by its identity, and the cache of slices.
//!
//! Owns where these files are kept and what a person is told while they are made. How a model is cut, and the locks
//! that let several processes share a folder, belong to `gguf`.
//!
//! The cache holds one folder per model, named by its identity; a slice depends only on the model and its range, so the
//! plans of all lines share it.

use std::fs;
use std::ops::Range;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, bail};
use gguf::arch::Architecture;
use gguf::{Identity, IdentityCache, Manifest, Model, Plan, SliceFolder, Source};

use crate::args::Cut;
use crate::paths;

/// Work that takes long enough to be shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Reading a model to tell which one it is.
    Identify,
    /// Writing slices.
    Cut,
    /// Comparing slices with their digests.
    Check,
}

impl Step {
    /// For people.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::Identify => "reading the model",
            Self::Cut => "cutting the model",
            Self::Check => "checking the slices",
        }
    }
}

/// Told a step, bytes done and bytes in all.
pub type Report<'a> = &'a mut dyn FnMut(Step, u64, u64);

/// A model cut for a line.
#[derive(Clone, Debug)]
pub struct Slices {
    /// The model.
    pub identity: Identity,
    /// Layers of the whole model.
    pub n_layers: u32,
    /// What its architecture needs and can do.
    pub arch: &'static Architecture,
    /// Who computes which layers.
    pub plan: Plan,
    /// The folder of the files below.
    pub folder: PathBuf,
    /// The slices that were asked for, from the first.
    pub paths: Vec<PathBuf>,
    /// The model's metadata without tensors: vocabulary and chat template.
    pub vocab: PathBuf,
}

/// Which model `model` is: from the cache if its files have not changed, else by reading all of it.
///
/// # Errors
/// If a file cannot be read, or the cache cannot be written.
pub fn identity(model: &Model, report: Report<'_>) -> anyhow::Result<Identity> {
    Ok(identities()?.identity(model, &mut |done, total| report(Step::Identify, done, total))?)
}

fn identities() -> anyhow::Result<IdentityCache> {
    Ok(IdentityCache::new(paths::cache_dir()?.join("identities")))
}

/// The folder of a model's slices.
///
/// # Errors
/// If the environment names no home.
pub fn folder(identity: Identity) -> anyhow::Result<PathBuf> {
    Ok(paths::cache_dir()?.join("slices").join(identity.to_string()))
}

/// Shares the layers of a model out as asked.
///
/// # Errors
/// If the model cannot be cut so.
pub fn plan(source: &Source<'_>, cut: &Cut) -> anyhow::Result<Plan> {
    Ok(match cut {
        Cut::Stages(n) => Plan::balanced(source, u32::from(*n))?,
        Cut::Before(layers) => Plan::at_cuts(source, layers)?,
    })
}

/// The first `n` of the model's slices in the cache, written now where they are missing. Another process that writes the
/// same slice is waited for.
///
/// # Errors
/// If the model cannot be read or cut so, or the cache cannot be written.
pub fn ensure(model: &Path, cut: &Cut, n: usize, report: Report<'_>) -> anyhow::Result<Slices> {
    let model = Model::open(model)?;
    let source = Source::new(&model)?;
    let plan = plan(&source, cut)?;
    let identity = identity(&model, report)?;
    ensure_in(&folder(identity)?, &source, identity, Wanted { plan, n }, report)
}

/// The first slices of a plan.
pub(crate) struct Wanted {
    /// All of the plan.
    pub(crate) plan: Plan,
    /// How many of its slices.
    pub(crate) n: usize,
}

/// The slices of a plan in any folder.
pub(crate) fn ensure_in(
    folder: &Path,
    source: &Source<'_>,
    identity: Identity,
    Wanted { plan, n }: Wanted,
    report: Report<'_>,
) -> anyhow::Result<Slices> {
    let slices = SliceFolder::open(folder, source, identity)?;
    let total = plan.stages.iter().take(n).map(|stage| stage.bytes).sum();
    let mut before = 0;
    let mut paths = Vec::new();
    for stage in plan.stages.iter().take(n) {
        // A file is a little larger than the weights that a plan counts: its progress is scaled to the plan's figure.
        let scaled =
            |done: u64, of: u64| (u128::from(stage.bytes) * u128::from(done) / u128::from(of.max(1))) as u64;
        let mut progress = |done, of| report(Step::Cut, before + scaled(done, of), total);
        paths.push(slices.ensure(stage.range.clone(), &mut progress)?);
        before += stage.bytes;
    }
    let (n_layers, vocab) = (source.n_layers(), slices.vocab_path());
    Ok(Slices { identity, n_layers, arch: source.arch(), plan, folder: folder.to_owned(), paths, vocab })
}

impl Slices {
    /// Reads every file and compares it with the digest that was recorded when it was written.
    ///
    /// # Errors
    /// If a file is missing or one byte differs, which one.
    pub fn check(&self, report: Report<'_>) -> anyhow::Result<()> {
        let manifest = Manifest::read(&self.folder)?;
        let total = self.plan.stages.iter().map(|stage| stage.bytes).sum();
        let mut before = 0;
        for stage in &self.plan.stages {
            let mut progress = |done: u64, _| report(Step::Check, (before + done).min(total), total);
            gguf::verify_slice(&self.folder, &manifest, &stage.range, &mut progress)?;
            before += stage.bytes;
        }
        manifest.vocab.verify(&self.folder, &mut |_, _| {})?;
        Ok(())
    }
}

/// A range of layers as a stage on its own needs it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The slice.
    pub slice: PathBuf,
    /// The model's metadata without tensors.
    pub vocab: PathBuf,
}

/// The slice of a model that is known only by its identity: from the cache, else cut from the model in `models`.
///
/// # Errors
/// If neither holds it, or it cannot be cut so.
pub fn find(
    identity: Identity,
    range: Range<u32>,
    models: Option<&Path>,
    report: Report<'_>,
) -> anyhow::Result<Found> {
    let folder = folder(identity)?;
    if let Some(found) = cached(&folder, identity, &range) {
        return Ok(found);
    }
    let Some(models) = models else {
        bail!(
            "this machine has no slice of layers {}..{} of model {}: start the stage with --models DIR, where the model is",
            range.start,
            range.end,
            short(identity)
        );
    };
    let found =
        identities()?.find(models, identity, &mut |done, total| report(Step::Identify, done, total))?;
    let model = found.with_context(|| {
        format!("no file in {} is model {}: copy the model there", models.display(), short(identity))
    })?;
    let source = Source::new(&model)?;
    let slices = SliceFolder::open(&folder, &source, identity)?;
    let slice = slices.ensure(range, &mut |done, total| report(Step::Cut, done, total))?;
    Ok(Found { slice, vocab: slices.vocab_path() })
}

/// A slice that the cache holds whole.
fn cached(folder: &Path, identity: Identity, range: &Range<u32>) -> Option<Found> {
    let manifest = Manifest::read(folder).ok()?;
    if manifest.version != gguf::SLICE_VERSION || manifest.model_id != identity {
        return None;
    }
    let record = manifest.slice(range)?;
    let whole = |file: &gguf::FileRecord| {
        fs::metadata(folder.join(&file.file)).is_ok_and(|meta| meta.len() == file.bytes)
    };
    record
        .files()
        .chain([&manifest.vocab])
        .all(whole)
        .then(|| Found { slice: folder.join(&record.slice.file), vocab: folder.join(&manifest.vocab.file) })
}

/// Enough of an identity to tell two apart in a message to a person.
pub(crate) fn short(identity: Identity) -> String {
    identity.to_string()[..16].to_owned()
}
