//! The draft model of `serve`: loaded once, checked to speak the served model's language.

use std::path::Path;

use anyhow::bail;
use llama::{EngineConfig, LlamaEngine, Vocab};
use protocol::KvType;
use stage::{Engine, Rewind};

use crate::args::ServeArgs;
use crate::engines::ALL_LAYERS;

/// Rows in one engine call: a piece of a prompt, or a token of many sequences.
const MAX_ROWS: u32 = 512;

/// What the draft model may use.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    /// Positions per sequence of the served model; a draft model that was trained for fewer has fewer.
    pub(crate) context: u32,
    /// Threads that compute.
    pub(crate) threads: u32,
}

/// Loads the model at `path` to draft for the model with the vocabulary `target`: as many sequences at once as are
/// served, computed as exactly.
///
/// # Errors
/// If the file cannot be used or does not fit, or if its vocabulary is another one: which difference comes first.
pub(crate) fn load(
    path: &Path,
    args: &ServeArgs,
    target: &Vocab,
    budget: Budget,
) -> anyhow::Result<Box<dyn Engine>> {
    let file = gguf::Model::open(path)?;
    if let Some(difference) = Vocab::load(path)?.difference(target) {
        bail!(
            "{} cannot draft for {}: {difference}; name a draft model with the same vocabulary",
            path.display(),
            args.model.display()
        );
    }
    let trained = file.arch_u32("context_length").unwrap_or(budget.context);
    let config = EngineConfig {
        path: path.to_owned(),
        context: budget.context.min(trained.max(1)),
        n_slots: args.parallel,
        max_rows: MAX_ROWS.max(u32::from(args.parallel)),
        threads: budget.threads,
        kv: KvType::F16,
        exact: args.exact,
        swa_full: true,
        undo_rows: 0,
        drafts: false,
        gpu_layers: args.gpu_layers.unwrap_or(ALL_LAYERS),
        device: args.device.clone(),
    };
    let engine = LlamaEngine::load(&config, &mut |_| ())?;
    if !(engine.shape().is_first && engine.shape().is_tail) {
        bail!("{} holds only some layers of a model: name a whole model to draft", path.display());
    }
    if !matches!(engine.shape().rewind, Rewind::Anywhere | Rewind::InPlace { .. }) {
        bail!(
            "{} cannot take back a wrong guess, because its state is recurrent: name a draft model with attention only",
            path.display()
        );
    }
    Ok(Box::new(engine))
}
