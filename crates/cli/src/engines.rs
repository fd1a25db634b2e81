//! Engines for stage nodes: finds the slice that an assignment names and loads it with llama.cpp.

use std::path::PathBuf;
use std::sync::Arc;

use gguf::Identity;
use line::{EngineSource, LoadError};
use llama::{EngineConfig, LlamaEngine};
use protocol::Holding;
use stage::Engine;

use crate::slices::{self, Step};

/// Layers on the GPU when the user does not say: all of them, where the build has a GPU back end.
pub(crate) const ALL_LAYERS: u32 =
    if cfg!(any(feature = "cuda", feature = "metal", feature = "vulkan", feature = "rocm")) {
        u32::MAX
    } else {
        0
    };
/// Of the progress bar: finding and cutting up to here, loading from here.
const CUT_PERMILLE: u16 = 500;

/// What does not depend on the assignment.
#[derive(Clone, Debug)]
pub(crate) struct EngineOptions {
    /// Threads that compute.
    pub(crate) threads: u32,
    /// Layers on the GPU; `None` for all.
    pub(crate) gpu_layers: Option<u32>,
    /// Which GPU.
    pub(crate) device: Option<String>,
}

/// Changes an engine before it is used.
pub(crate) type Wrap = Arc<dyn Fn(Box<dyn Engine>) -> Box<dyn Engine> + Send + Sync>;

/// Loads slices with llama.cpp.
#[derive(Clone)]
pub(crate) struct Engines {
    models: Option<PathBuf>,
    options: EngineOptions,
    /// A model that is loaded as it is when all of its layers are asked for.
    whole: Option<(Identity, PathBuf)>,
    wrap: Option<Wrap>,
}

impl Engines {
    /// Engines for models in the slice cache or, if given, in a folder.
    pub(crate) const fn new(models: Option<PathBuf>, options: EngineOptions) -> Self {
        Self { models, options, whole: None, wrap: None }
    }

    /// Spares the copy of a model that is not cut at all.
    pub(crate) fn with_whole(mut self, identity: Identity, path: PathBuf) -> Self {
        self.whole = Some((identity, path));
        self
    }

    /// Has every engine pass through `wrap`.
    pub(crate) fn with_wrap(mut self, wrap: Wrap) -> Self {
        self.wrap = Some(wrap);
        self
    }

    fn path(&self, holding: &Holding, progress: &mut dyn FnMut(u16, &str)) -> anyhow::Result<PathBuf> {
        let identity = Identity(holding.model.0);
        let range = holding.layers.start..holding.layers.end;
        if let Some((whole, path)) = &self.whole
            && *whole == identity
            && range == (0..holding.n_layers)
        {
            return Ok(path.clone());
        }
        let mut report = |step: Step, done: u64, total: u64| {
            let share = done.saturating_mul(u64::from(CUT_PERMILLE)) / total.max(1);
            progress(share as u16, step.words());
        };
        Ok(slices::find(identity, range, self.models.as_deref(), &mut report)?.slice)
    }

    fn config(&self, path: PathBuf, holding: &Holding) -> EngineConfig {
        EngineConfig {
            path,
            context: holding.context,
            n_slots: holding.n_slots,
            max_rows: holding.max_rows,
            threads: self.options.threads,
            kv: holding.kv,
            exact: holding.exact,
            swa_full: holding.swa_full,
            undo_rows: holding.undo_rows,
            drafts: holding.drafts,
            gpu_layers: self.options.gpu_layers.unwrap_or(ALL_LAYERS),
            device: self.options.device.clone(),
        }
    }
}

impl EngineSource for Engines {
    fn load(
        &self,
        holding: &Holding,
        progress: &mut dyn FnMut(u16, &str),
    ) -> Result<Box<dyn Engine>, LoadError> {
        let path =
            self.path(holding, progress).map_err(|error| LoadError { reason: format!("{error:#}") })?;
        let mut last = CUT_PERMILLE;
        let mut loading = |share: f32| {
            let permille = CUT_PERMILLE + (share.clamp(0.0, 1.0) * f32::from(1000 - CUT_PERMILLE)) as u16;
            // One message a percent is enough for people.
            if permille >= last + 10 {
                last = permille;
                progress(permille, "loading the layers");
            }
        };
        let engine = LlamaEngine::load(&self.config(path, holding), &mut loading)
            .map_err(|error| LoadError { reason: error.to_string() })?;
        let engine: Box<dyn Engine> = Box::new(engine);
        Ok(match &self.wrap {
            Some(wrap) => wrap(engine),
            None => engine,
        })
    }
}
