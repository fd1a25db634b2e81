//! `paceline verify`: real slices over real links against the whole model, logit for logit.
//!
//! The line generates greedily from random and text prompts; its tail's calls and logits are recorded. The whole model
//! then computes the very same calls in one piece, and every logit is compared.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, bail};
use gguf::Model;
use line::{Front, FrontConfig, LinePlan, LineReadiness, Node, NodeConfig, StageAddress, StageSpec};
use llama::{EngineConfig, LlamaEngine, Vocab};
use net::{DialOptions, Heartbeat, Identity, LinkOptions, Listener, ListenerOptions};
use protocol::{Generation, KvType, LayerRange, ModelId, Open, Position, RowDtype, SamplerParams, Token};
use scheduler::{Event, Request};
use stage::{Engine, EngineError, EngineShape, Input, Sampler, Slot, Span, Want};
use tokio::sync::watch;

use crate::args::VerifyArgs;
use crate::engines::{EngineOptions, Engines};
use crate::progress::Reporter;
use crate::signals;
use crate::slices::{self, Slices};

/// Positions of the one sequence: the longest prompt below and its answer, with room.
const CONTEXT: u32 = 1024;
/// Rows in one engine call.
const MAX_ROWS: u32 = 512;
/// Tokens generated from each prompt.
const ANSWER: u32 = 16;
/// Lengths of the random prompts: one anchor alone, less and more than a prefill chunk, several chunks.
const RANDOM_PROMPTS: [usize; 4] = [1, 17, 150, 300];
/// Prompts in words.
const TEXT_PROMPTS: [&str; 3] = [
    "The history of the steam engine begins in the first century",
    "def total(orders):\n    result = {}\n    for order in orders:\n",
    "Alles, was man über das Wetter in den Bergen wissen muss: 山の天気は",
];
/// The slices are loaded and the line is formed within this time, or something is wrong with it.
const FORMED_WITHIN: Duration = Duration::from_secs(600);

pub(crate) fn run(args: &VerifyArgs) -> anyhow::Result<()> {
    let mut reporter = Reporter::default();
    let slices = slices::ensure(&args.model, &args.cut, args.cut.n_stages(), &mut |step, done, total| {
        reporter.set(step, done, total);
    })?;
    slices.check(&mut |step, done, total| reporter.set(step, done, total))?;
    drop(reporter);
    let model = Model::open(&args.model)?;
    let vocab = Vocab::load(&slices.vocab)?;
    let threads = args.threads.map_or(1, u32::from);
    let context = model.arch_u32("context_length").unwrap_or(CONTEXT).min(CONTEXT);
    println!(
        "{} stages at layers {:?}, context {context}, {MAX_ROWS} rows a call, {threads} threads, f16 KV, f32 rows",
        slices.plan.stages.len(),
        slices.plan.cuts(),
    );
    let prompts = prompts(&vocab, context)?;
    let runtime = signals::line_runtime()?;
    let runs = runtime.block_on(run_line(args, &slices, &vocab, threads, context, &prompts))?;
    runtime.shutdown_background();
    let config = EngineConfig { context, max_rows: MAX_ROWS, threads, ..EngineConfig::new(&args.model) };
    let mut whole = LlamaEngine::load(&config, &mut |_| {})?;
    let mut verdict = Comparison::default();
    for (prompt, run) in prompts.iter().zip(&runs) {
        compare(&mut whole, prompt, run, &mut verdict)?;
    }
    verdict.tell()
}

fn prompts(vocab: &Vocab, context: u32) -> anyhow::Result<Vec<Vec<Token>>> {
    let n_vocab = vocab.n_tokens() as u64;
    let most = (context - ANSWER) as usize - 1;
    // Knuth's MMIX generator: any fixed sequence will do.
    let mut state = 1_u64;
    let mut random = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        Token(((state >> 33) % n_vocab) as i32)
    };
    let mut all: Vec<Vec<Token>> = Vec::new();
    for len in RANDOM_PROMPTS {
        all.push((0..len.min(most)).map(|_| random()).collect());
    }
    for text in TEXT_PROMPTS {
        let mut tokens = vocab.tokenize(text, true, false)?;
        tokens.truncate(most);
        if !tokens.is_empty() {
            all.push(tokens);
        }
    }
    Ok(all)
}

/// What the line did with one prompt.
struct Run {
    answer: Vec<Token>,
    calls: Vec<Recorded>,
}

/// One call of the tail: where its rows stand, and the logits of those that had any.
struct Recorded {
    base: Position,
    n_rows: usize,
    logits: Option<Vec<Vec<f32>>>,
}

type Tape = Arc<Mutex<Vec<Recorded>>>;

/// The tail's engine with a tape of what it computed.
struct Recorder {
    engine: Box<dyn Engine>,
    tape: Tape,
}

impl Engine for Recorder {
    fn shape(&self) -> &EngineShape {
        self.engine.shape()
    }

    fn run(&mut self, spans: &[Span], input: Input<'_>, out: &mut Vec<f32>) -> Result<(), EngineError> {
        self.engine.run(spans, input, out)?;
        let mut row = 0;
        let mut tape = self.tape.lock().unwrap_or_else(PoisonError::into_inner);
        for span in spans {
            let rows = row..row + span.n_rows;
            row = rows.end;
            let logits = (span.want == Want::Logits)
                .then(|| rows.map(|row| self.engine.logits(row).to_vec()).collect());
            tape.push(Recorded { base: span.base, n_rows: span.n_rows, logits });
        }
        Ok(())
    }

    fn logits(&self, row: usize) -> &[f32] {
        self.engine.logits(row)
    }

    fn hidden(&self, row: usize) -> &[f32] {
        self.engine.hidden(row)
    }

    fn truncate(&mut self, slot: Slot, len: Position) -> Result<(), EngineError> {
        self.engine.truncate(slot, len)
    }

    fn sampler(&self, open: &Open) -> Result<Box<dyn Sampler>, EngineError> {
        self.engine.sampler(open)
    }
}

async fn run_line(
    args: &VerifyArgs,
    slices: &Slices,
    vocab: &Vocab,
    threads: u32,
    context: u32,
    prompts: &[Vec<Token>],
) -> anyhow::Result<Vec<Run>> {
    let tape = Tape::default();
    let front = form(args, slices, vocab, threads, context, &tape).await?;
    ready(&front).await?;
    let mut runs = Vec::new();
    for prompt in prompts {
        // What the probe, or the prompt before, left on the tape.
        tape.lock().unwrap_or_else(PoisonError::into_inner).clear();
        let answer = generate(&front, prompt).await?;
        let calls = std::mem::take(&mut *tape.lock().unwrap_or_else(PoisonError::into_inner));
        runs.push(Run { answer, calls });
    }
    Ok(runs)
}

/// One node per stage, each with its own key and loopback port, all in this process.
async fn form(
    args: &VerifyArgs,
    slices: &Slices,
    vocab: &Vocab,
    threads: u32,
    context: u32,
    tape: &Tape,
) -> anyhow::Result<Front> {
    let ranges: Vec<LayerRange> = slices
        .plan
        .stages
        .iter()
        .map(|stage| LayerRange { start: stage.range.start, end: stage.range.end })
        .collect();
    let (identity, members) = Identity::ephemeral_cluster(ranges.len())?;
    let options = EngineOptions { threads, gpu_layers: Some(0), device: None };
    let mut stages = Vec::new();
    for (at, member) in members.into_iter().enumerate() {
        let mut engines = Engines::new(None, options.clone()).with_whole(slices.identity, args.model.clone());
        if at + 1 == ranges.len() {
            let tape = Arc::clone(tape);
            engines = engines.with_wrap(Arc::new(move |engine| {
                Box::new(Recorder { engine, tape: Arc::clone(&tape) }) as Box<dyn Engine>
            }));
        }
        let listener = Listener::bind("127.0.0.1:0", &member, ListenerOptions::default()).await?;
        let (_, address) = watch::channel(Some(listener.local_addr().to_string()));
        let node = Node::start(NodeConfig {
            most_prefix_bytes: None,
            store: None,
            identity: member,
            source: Arc::new(engines),
            build: signals::build(),
            dial: DialOptions::default(),
            heartbeat: Heartbeat::default(),
            lease: Duration::ZERO,
        });
        stages.push(StageSpec { address: StageAddress::Remote { address, node: Some(node.id()) } });
        tokio::spawn(async move { node.serve(listener).await });
    }
    let n_stages = ranges.len() as u16;
    Ok(Front::start(FrontConfig {
        store: None,
        identity,
        build: signals::build(),
        plan: LinePlan {
            model: ModelId(slices.identity.0),
            n_layers: slices.n_layers,
            ranges,
            narrower: Vec::new(),
            context,
            n_slots: 1,
            max_rows: MAX_ROWS,
            row_dtype: RowDtype::F32,
            kv: KvType::F16,
            exact: false,
            swa_full: true,
            undo_rows: 0,
            drafts: false,
            prefix_bytes: 0,
        },
        stages,
        spares: Vec::new(),
        lease: Duration::ZERO,
        replan_after: None,
        scheduler: scheduler::Config::new(n_stages, 1, context, vocab.n_tokens() as u32),
        dial: DialOptions::default(),
        heartbeat: Heartbeat::default(),
        local_link: LinkOptions::default(),
        relay: false,
        first_generation: Generation(1),
    }))
}

async fn ready(front: &Front) -> anyhow::Result<()> {
    let mut changes = front.changes();
    let wait = async {
        loop {
            match front.readiness() {
                LineReadiness::Ready => return Ok(()),
                LineReadiness::NotReady { reason, .. } if front.has_failed() => bail!("{reason}"),
                LineReadiness::NotReady { .. } => changes.changed().await.context("the line is gone")?,
            }
        }
    };
    tokio::time::timeout(FORMED_WITHIN, wait).await.context("the line was not formed in time")?
}

async fn generate(front: &Front, prompt: &[Token]) -> anyhow::Result<Vec<Token>> {
    let (_, mut events) = front.submit(Request {
        sampler: SamplerParams { temperature: 0.0, ..SamplerParams::default() },
        max_tokens: Some(ANSWER),
        ignore_eos: true,
        ..Request::new(prompt.to_vec())
    })?;
    let mut answer = Vec::new();
    while let Some(event) = events.recv().await {
        match event {
            Event::Started { .. } | Event::Prompt(_) => {}
            Event::Tokens { tokens, .. } => answer.extend(tokens),
            Event::Done { .. } => return Ok(answer),
            Event::Failed(failure) => bail!(failure),
        }
    }
    bail!("the line went away")
}

/// What was found so far.
#[derive(Default)]
struct Comparison {
    prompts: usize,
    rows: usize,
    largest: f32,
    /// Prompt, position, the line's token, the whole model's.
    diverged: Option<(usize, Position, usize, usize)>,
}

impl Comparison {
    fn tell(&self) -> anyhow::Result<()> {
        println!("{} prompts, {} rows of logits compared", self.prompts, self.rows);
        println!("largest logit difference: {}", self.largest);
        if let Some((prompt, position, staged, whole)) = self.diverged {
            println!(
                "first diverging token: prompt {prompt}, position {position}: {staged}, whole model {whole}"
            );
        }
        if self.largest == 0.0 && self.diverged.is_none() {
            println!("the line and the whole model are the same");
            return Ok(());
        }
        bail!("the line computes something else than the whole model")
    }
}

/// Lets the whole model compute the line's calls again and compares.
fn compare(
    whole: &mut LlamaEngine,
    prompt: &[Token],
    run: &Run,
    found: &mut Comparison,
) -> anyhow::Result<()> {
    let slot = Slot(0);
    whole.truncate(slot, Position(0))?;
    let tokens: Vec<Token> = prompt.iter().chain(&run.answer).copied().collect();
    let mut out = Vec::new();
    for call in &run.calls {
        let from = call.base.0 as usize;
        let input =
            tokens.get(from..from + call.n_rows).context("the line computed more than it was asked for")?;
        let want = Want::logits(call.logits.is_some());
        let span = Span { slot, base: call.base, n_rows: call.n_rows, want };
        whole.run(&[span], Input::Tokens(input), &mut out)?;
        for (row, staged) in call.logits.iter().flatten().enumerate() {
            found.row(staged, whole.logits(row), call.base.plus(row));
        }
    }
    found.prompts += 1;
    Ok(())
}

impl Comparison {
    fn row(&mut self, staged: &[f32], whole: &[f32], position: Position) {
        self.rows += 1;
        for (a, b) in staged.iter().zip(whole) {
            let difference = (a - b).abs();
            // Not a number counts as the largest difference there is, unless both agree on it.
            let difference = if a.to_bits() == b.to_bits() {
                0.0
            } else if difference.is_nan() {
                f32::INFINITY
            } else {
                difference
            };
            self.largest = self.largest.max(difference);
        }
        let best =
            |logits: &[f32]| (0..logits.len()).max_by(|&i, &j| logits[i].total_cmp(&logits[j])).unwrap_or(0);
        let (ours, theirs) = (best(staged), best(whole));
        if ours != theirs && self.diverged.is_none() {
            self.diverged = Some((self.prompts, Position(position.0 + 1), ours, theirs));
        }
    }
}
