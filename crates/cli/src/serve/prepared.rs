//! What is read of the model before anything runs, and what follows from it for the line.
//!
//! Owns: the slices, the vocabulary and the draft model until the line takes them, and how much fits. Starts nothing.

use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::time::UNIX_EPOCH;

use anyhow::bail;
use gguf::arch::{Architecture, Rewind};
use gguf::{Model, Plan, Source};
use line::LinePlan;
use llama::Vocab;
use protocol::{LayerRange, ModelId};
use scheduler::Cuts;
use server::{Fill, ModelInfo};
use spec::{Reach, Sources, Speculate};
use stage::Engine;
use store::Store;

use crate::api::ApiLine;
use crate::args::{Place, ServeArgs};
use crate::logging::say;
use crate::progress::Reporter;
use crate::slices::{self, Slices, Step};
use crate::{disk, draft, pooling, signals};

/// Positions per sequence when neither the user nor the model asks for fewer: memory for keys and values is taken at
/// the start, and few conversations are longer.
const DEFAULT_CONTEXT: u32 = 8192;
/// Rows in one engine call: llama.cpp's own default for a micro-batch.
const MAX_ROWS: u32 = 512;
/// Threads of a draft model at most.
const MAX_DRAFT_THREADS: u32 = 4;
/// Guesses in a window where layers are recurrent, unless --width asks for more: stages keep one more state of theirs for
/// each, in every sequence.
const UNDO_ROWS: u32 = 3;
/// Windows in flight at most where sliding windows forget: as many of the widest as can be taken back, and one to spare.
const DEPTH_WITHIN_WINDOWS: u32 = MAX_ROWS / 2 / spec::MAX_WIDTH - 1;

/// What was read of the model before anything runs.
pub(super) struct Prepared {
    pub(super) slices: Slices,
    pub(super) info: ModelInfo,
    pub(super) vocab: Arc<Vocab>,
    context: u32,
    /// Of one hidden row in its widest form.
    row_bytes: u64,
    /// How fewer machines would share the layers.
    narrower: Vec<Plan>,
    /// Where its prefixes can be cut.
    cuts: Cuts,
    /// Of the keys and values of one position in the stage that has most of them.
    position_bytes: u64,
    /// Of those in all stages together.
    all_bytes: u64,
    pub(super) threads: Threads,
    /// Who guesses, and how far.
    speculate: Speculate,
    /// Rows of a call that stages must be able to take back for that.
    undo_rows: u32,
    /// The draft model, if there is one.
    pub(super) draft: Option<Box<dyn Engine>>,
    /// Where prefixes outlive the process.
    pub(super) store: Option<Store>,
}

/// Threads of this machine's engines.
#[derive(Clone, Copy, Debug)]
pub(super) struct Threads {
    /// Of each stage.
    pub(super) stage: u32,
    /// Of the draft model.
    draft: u32,
}

impl Threads {
    /// A draft model runs beside the stages all the time, so it has a core of its own, and more only where some are left:
    /// small models gain little from many.
    fn share(given: Option<u16>, cores: u32, n_local: usize, has_draft: bool) -> Self {
        let n_local = n_local as u32;
        let for_stages = cores.saturating_sub(u32::from(has_draft));
        let stage = given.map_or_else(|| (for_stages / n_local.max(1)).max(1), u32::from);
        Self { stage, draft: cores.saturating_sub(stage * n_local).clamp(1, MAX_DRAFT_THREADS) }
    }
}

impl Prepared {
    /// Reads the model, cuts it if need be, and loads its vocabulary.
    pub(super) fn read(args: &ServeArgs, line: &ApiLine) -> anyhow::Result<Self> {
        let mut reporter = Reporter::default();
        let asked = with_own_drafts(&args.speculate, &args.model)?;
        let slices = slices::ensure(&args.model, &args.cut, wanted(args), &mut |step: Step, done, total| {
            reporter.set(step, done, total);
            line.starting(step.words(), Some(done as f32 / total.max(1) as f32));
        })?;
        drop(reporter);
        line.starting("loading the vocabulary", None);
        let model = Model::open(&args.model)?;
        let vocab = Arc::new(Vocab::load(&slices.vocab)?);
        let trained = model.arch_u32("context_length");
        let context = args.context.unwrap_or_else(|| trained.unwrap_or(DEFAULT_CONTEXT).min(DEFAULT_CONTEXT));
        let info = model_info(args, &model, &slices, &vocab, context)?;
        let row_bytes = 4 * u64::from(model.n_embd());
        let most_layers = slices.plan.stages.iter().map(|stage| stage.range.end - stage.range.start).max();
        let all_bytes = llama::position_bytes(&model, args.kv);
        let share = all_bytes * u64::from(most_layers.unwrap_or(0));
        let position_bytes = share.div_ceil(u64::from(slices.n_layers.max(1)));
        let Guessing { speculate, undo_rows } = Guessing::of(&asked, slices.arch);
        let draft_model = speculate.draft_model();
        let n_local = n_local(args, slices.plan.stages.len());
        let threads = Threads::share(args.threads, signals::cores(), n_local, draft_model.is_some());
        let draft = draft_model
            .map(|path| {
                line.starting("loading the draft model", None);
                draft::load(Path::new(path), args, &vocab, draft::Budget { context, threads: threads.draft })
            })
            .transpose()?;
        let store = disk::open(&args.disk)?;
        let narrower = match args.replan_after {
            Some(_) => narrower(&Source::new(&model)?, slices.plan.stages.len()),
            None => Vec::new(),
        };
        Ok(Self {
            narrower,
            cuts: cuts(&model, slices.arch, args.swa_full),
            slices,
            info,
            vocab,
            context,
            row_bytes,
            position_bytes,
            all_bytes,
            threads,
            speculate,
            undo_rows,
            draft,
            store,
        })
    }

    /// How the line is cut, and what its stages are told.
    pub(super) fn line_plan(&self, args: &ServeArgs) -> LinePlan {
        LinePlan {
            model: ModelId(self.slices.identity.0),
            n_layers: self.slices.n_layers,
            ranges: ranges(&self.slices.plan),
            narrower: self.narrower.iter().map(ranges).collect(),
            context: self.context,
            n_slots: args.parallel,
            max_rows: MAX_ROWS,
            row_dtype: args.row_dtype,
            kv: args.kv,
            exact: args.exact,
            swa_full: args.swa_full,
            undo_rows: self.undo_rows,
            drafts: self.speculate.drafts_itself(),
            prefix_bytes: args.prefix_bytes,
        }
    }

    /// Whether anything is guessed.
    pub(super) fn guesses(&self) -> bool {
        self.speculate.sources != Sources::Off
    }

    /// The budgets of the line.
    pub(super) fn scheduler_config(&self, args: &ServeArgs) -> scheduler::Config {
        let n_stages = self.slices.plan.stages.len();
        let n_vocab = self.vocab.n_tokens() as u32;
        let usual = scheduler::Config::new(n_stages as u16, args.parallel, self.context, n_vocab);
        // What no running sequence needs stays in its slot, whatever there is beside the slots.
        let in_slots = u64::from(args.parallel) * u64::from(self.context);
        let mut speculate = self.speculate.clone();
        if !args.swa_full {
            speculate.reach.max_depth = speculate.reach.max_depth.min(DEPTH_WITHIN_WINDOWS);
        }
        scheduler::Config {
            speculate,
            queue_limit: args.queue.unwrap_or(usual.queue_limit),
            queue_timeout: args.queue_timeout,
            replay_timeout: args.replay_timeout,
            progress_timeout: args.progress_timeout,
            copies_prefixes: args.prefix_bytes > 0,
            cuts: self.cuts,
            // As if all stages shared one disk; those that have one of their own keep longer what the front has forgotten.
            stored_tokens: args.disk.bytes / self.all_bytes.max(1),
            prefix_tokens: in_slots.max(args.prefix_bytes / self.position_bytes.max(1)),
            ..usual
        }
        .fit(self.row_bytes, stage::INBOX_BYTES as u64 / 2, stage::INBOX_FRAMES as u64)
    }
}

fn ranges(plan: &Plan) -> Vec<LayerRange> {
    plan.stages.iter().map(|stage| LayerRange { start: stage.range.start, end: stage.range.end }).collect()
}

/// How fewer than so many machines would share the layers, as far as the model can be cut so.
fn narrower(source: &Source<'_>, n_stages: usize) -> Vec<Plan> {
    (1..n_stages as u32).filter_map(|n| Plan::balanced(source, n).ok()).collect()
}

/// Who guesses on this model: where that is left to the line, its own blocks too if it has some and llama.cpp can run them
/// beside a slice. Where they were named, a model that cannot draft is refused.
fn with_own_drafts(asked: &Speculate, path: &Path) -> anyhow::Result<Speculate> {
    if !asked.may_draft_itself() {
        return Ok(asked.clone());
    }
    let model = Model::open(path)?;
    let drafts = Source::new(&model)?.drafts();
    match drafts {
        Ok(_) => {
            let guessing = asked.for_a_model_that_drafts();
            if guessing != *asked {
                say(&format!("This model drafts for itself: guesses come from {}.", guessing.sources));
            }
            Ok(guessing)
        }
        Err(_) if !asked.drafts_itself() => Ok(asked.clone()),
        Err(reason) => bail!(
            "{} cannot draft for itself: {reason}; leave mtp out of --speculate, or name a model file that was made with \
             its NextN block",
            path.display()
        ),
    }
}

/// Where prefixes of a model can be cut: what its layers look back over is in its file.
fn cuts(model: &Model, arch: &Architecture, swa_full: bool) -> Cuts {
    let window = model.arch_u32("attention.sliding_window").unwrap_or(0);
    match swa_full && !arch.is_recurrent() {
        false => Cuts::Nowhere,
        true if window > 0 => Cuts::InSlots { window },
        true => Cuts::Anywhere,
    }
}

/// How a model guesses: as was asked, as far as wrong guesses can be taken back.
struct Guessing {
    speculate: Speculate,
    /// Rows of a call that stages must be able to take back besides.
    undo_rows: u32,
}

impl Guessing {
    fn of(asked: &Speculate, arch: &Architecture) -> Self {
        let is_wanted = asked.sources != Sources::Off;
        match arch.rewind {
            Rewind::Anywhere => Self { speculate: asked.clone(), undo_rows: 0 },
            Rewind::Snapshots if is_wanted => {
                // A draft of the model's own fits into a window whole.
                let drafted = asked.draft_len.map_or(0, u32::from).max(UNDO_ROWS);
                let width = asked.reach.width.unwrap_or(drafted + 1).clamp(1, spec::MAX_WIDTH);
                if asked.reach.depth.is_some_and(|depth| depth > 1) {
                    say(&format!(
                        "Note: models of architecture {} take back what their last call has read only, so that one \
                         window is under way at a time, whatever --depth says.",
                        arch.name
                    ));
                }
                Self {
                    speculate: Speculate { reach: serial(width, asked.reach), ..asked.clone() },
                    undo_rows: width - 1,
                }
            }
            Rewind::Snapshots | Rewind::Never => {
                if is_wanted {
                    say(&format!(
                        "Note: models of architecture {} decode one token after the other, without --speculate: what \
                         their recurrent layers have read cannot be taken back.",
                        arch.name
                    ));
                }
                Self {
                    speculate: Speculate { reach: serial(1, Reach::default()), ..Speculate::off() },
                    undo_rows: 0,
                }
            }
        }
    }
}

/// One window at a time, of so many rows at most.
fn serial(width: u32, asked: Reach) -> Reach {
    Reach { max_width: width, max_depth: 1, depth: asked.depth.map(|_| 1), ..asked }
}

/// Stages on this machine.
pub(super) fn n_local(args: &ServeArgs, n_stages: usize) -> usize {
    match &args.place {
        Place::Local => n_stages,
        Place::Machines { front_only, .. } => usize::from(!front_only),
    }
}

/// How many slices this machine reads, from the first. Other machines cut their own, and a model that is not cut at all
/// is loaded from its own file.
fn wanted(args: &ServeArgs) -> usize {
    match &args.place {
        Place::Local if args.cut.n_stages() == 1 => 0,
        Place::Local => args.cut.n_stages(),
        Place::Machines { front_only, .. } => usize::from(!front_only),
    }
}

fn model_info(
    args: &ServeArgs,
    model: &Model,
    slices: &Slices,
    vocab: &Vocab,
    context: u32,
) -> anyhow::Result<ModelInfo> {
    let text = |token: Option<protocol::Token>| token.and_then(|token| vocab.text(token)).unwrap_or_default();
    let modified = fs::metadata(&args.model)?.modified()?;
    let n_params = model.tensors().iter().map(|tensor| tensor.row_elements() * tensor.n_rows()).sum();
    Ok(ModelInfo {
        id: args.model_id.clone(),
        file: args.model.file_name().unwrap_or_default().to_string_lossy().into_owned(),
        chat_template: vocab.chat_template(None),
        bos: text(vocab.bos()),
        eos: text(vocab.eos()),
        fill: vocab.fill().map(|[prefix, suffix, middle]| Fill { prefix, suffix, middle }),
        context,
        parallel: args.parallel,
        trained_context: model.arch_u32("context_length"),
        n_params: Some(n_params),
        row_width: pooling::row_width(model),
        pooling: pooling::of(model),
        architecture: model.arch().to_owned(),
        created: modified.duration_since(UNIX_EPOCH).map_or(0, |age| age.as_secs()),
        fingerprint: format!("fp_{}", slices::short(slices.identity)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_draft_model_has_a_core_of_its_own_and_nobody_oversubscribes() {
        let share = |given, cores, n_local, has_draft| {
            let Threads { stage, draft } = Threads::share(given, cores, n_local, has_draft);
            (stage, draft)
        };
        assert_eq!(share(None, 16, 3, false).0, 5);
        assert_eq!(share(None, 16, 3, true), (5, 1));
        assert_eq!(share(None, 8, 3, true), (2, 2));
        assert_eq!(share(None, 2, 2, true), (1, 1), "no stage and no drafter can have less than one");
        assert_eq!(share(None, 16, 0, true).1, 4, "the front computes no layers");
        assert_eq!(share(Some(2), 16, 3, true), (2, 4));
        assert_eq!(share(Some(8), 8, 1, true), (8, 1), "what is given is kept");
    }

    #[test]
    fn guesses_reach_as_far_as_a_model_takes_them_back() {
        let asked = |width, depth| Speculate {
            reach: Reach { width, depth, ..Reach::default() },
            ..Speculate::auto()
        };
        let of = |asked: &Speculate, arch| Guessing::of(asked, gguf::arch::find(arch).unwrap());
        let free = of(&asked(Some(7), Some(8)), "llama");
        assert_eq!((free.speculate, free.undo_rows), (asked(Some(7), Some(8)), 0));
        let little = of(&asked(None, Some(8)), "qwen35");
        let reach = Reach { max_width: 4, max_depth: 1, width: None, depth: Some(1) };
        assert_eq!((little.speculate, little.undo_rows), (Speculate { reach, ..Speculate::auto() }, 3));
        let wider = of(&asked(Some(7), None), "lfm2");
        assert_eq!((wider.speculate.reach.max_width, wider.undo_rows), (7, 6));
        let own = Speculate { sources: "mtp".parse().unwrap(), draft_len: Some(6), ..Speculate::default() };
        assert_eq!(of(&own, "qwen35").undo_rows, 6, "a draft fits into a window");
        for (asked, arch) in [(asked(Some(7), Some(8)), "mamba2"), (Speculate::off(), "qwen35")] {
            let nothing = of(&asked, arch);
            assert_eq!((&nothing.speculate.sources, nothing.undo_rows), (&Sources::Off, 0));
            // Not even what a request brings of its own.
            assert_eq!(nothing.speculate.reach, serial(1, Reach::default()));
        }
    }
}
