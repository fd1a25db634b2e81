//! What a seed means: the model, the line, its links and times, the requests, and what goes wrong.

use std::time::Duration;

use protocol::{End, LayerRange, OfPrompt, Open, Pooling, Position, RowDtype, SamplerParams, SeqId, Token};
use scheduler::{Client, Namespace, Request};
use spec::{Reach, Source, Sources, Speculate};
use stage::Rewind;

use crate::faults::{CALM, Faults};
use crate::network::Delays;
use crate::random::{Random, mix};
use crate::toy::{self, Model, Sizes};
use crate::{Driver, Plan, Sabotage};

/// The most rows that any window has.
const MAX_WIDTH: u32 = 16;

/// Stands for parameters that the toy's sampler does not know.
const REFUSED_TOP_K: u32 = u32::MAX;

/// Percent of the lines that hold many sequences; they take as long as ten others.
const CROWDED: u32 = 4;

/// Whether the toy's tail refuses to sample like that.
pub(crate) const fn is_refused(sampler: &SamplerParams) -> bool {
    sampler.top_k == REFUSED_TOP_K
}

/// One request: when it comes, what it asks, and how long its caller waits.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    pub(crate) at: Duration,
    pub(crate) prompt: Vec<Token>,
    pub(crate) max_tokens: Option<u32>,
    pub(crate) sampler: SamplerParams,
    pub(crate) seed: u64,
    pub(crate) choice: u32,
    pub(crate) ignore_eos: bool,
    pub(crate) top_logprobs: Option<u8>,
    /// What is wanted of the prompt itself.
    pub(crate) of_prompt: Option<OfPrompt>,
    pub(crate) client: Client,
    pub(crate) priority: i32,
    /// Whose prefixes it shares.
    pub(crate) namespace: Option<Namespace>,
    /// From the moment it is taken (or, with [`crate::front::Guesses`], started) until it is cancelled.
    pub(crate) patience: Option<Duration>,
}

impl Ask {
    pub(crate) fn request(&self) -> Request {
        Request {
            prompt: self.prompt.clone(),
            sampler: self.sampler.clone(),
            seed: self.seed,
            choice: self.choice,
            max_tokens: self.max_tokens,
            ignore_eos: self.ignore_eos,
            top_logprobs: self.top_logprobs,
            of_prompt: self.of_prompt,
            client: self.client,
            priority: self.priority,
            namespace: self.namespace,
            prediction: None,
        }
    }

    pub(crate) fn open(&self, seq: SeqId, context: u32) -> Open {
        let n_prompt = self.prompt.len() as u32;
        let room = context - n_prompt;
        let most = if self.is_prompt_only() { Some(0) } else { self.max_tokens };
        Open {
            seq,
            start: Position(0),
            reuse: None,
            held: None,
            seed: self.seed,
            choice: self.choice,
            sampler: self.sampler.clone(),
            limit: Position(n_prompt + most.map_or(room, |most| most.min(room))),
            ignore_eos: self.ignore_eos,
            top_logprobs: self.top_logprobs,
            of_prompt: self.of_prompt,
            history: Vec::new(),
        }
    }

    /// Whether nothing is generated.
    pub(crate) const fn is_prompt_only(&self) -> bool {
        matches!(self.of_prompt, Some(OfPrompt::Embedding(_))) || matches!(self.max_tokens, Some(0))
    }

    /// What sequential decoding answers, and how that ends.
    pub(crate) fn answer(&self, model: &Model, context: u32) -> (Vec<Token>, End) {
        if self.is_prompt_only() {
            return (Vec::new(), End::Limit);
        }
        toy::sequential(model, &self.open(SeqId(0), context), &self.prompt)
    }
}

/// A time without the line.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outage {
    pub(crate) at: Duration,
    pub(crate) lasts: Duration,
}

/// How long a stage's engine computes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CallTime {
    pub(crate) per_call: Duration,
    pub(crate) per_row: Duration,
}

/// What stages' stores do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StoreFlaws {
    /// Whether every stage has one.
    pub(crate) everywhere: bool,
    /// Percent of prefixes that it does not find again.
    pub(crate) losses: u32,
    /// Percent of prefixes that it does not take this time.
    pub(crate) skips: u32,
    /// How long it takes at most.
    pub(crate) most: Duration,
}

/// What the front must keep to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) context: u32,
    pub(crate) n_slots: u16,
    pub(crate) n_vocab: u32,
    pub(crate) end_token: Token,
    pub(crate) chunk_rows: u32,
    pub(crate) max_chunks: u32,
    pub(crate) max_width: u32,
}

/// When a line is lost after which prompts come from stores.
const RETURN: Duration = Duration::from_millis(400);
/// So many tokens at least a sequence can have then: stores are asked for long prefixes only.
const RETURN_CONTEXT: u32 = 100;

/// Longer than anything takes.
pub(crate) const AGES: Duration = Duration::from_secs(3600);

pub(crate) struct Scenario {
    pub(crate) model: Model,
    pub(crate) stages: Vec<(LayerRange, CallTime)>,
    /// How others share the layers, from some outages on; empty if nobody ever does.
    pub(crate) others: Vec<(LayerRange, CallTime)>,
    pub(crate) sizes: Sizes,
    pub(crate) limits: Limits,
    pub(crate) row_dtype: RowDtype,
    pub(crate) delays: Delays,
    pub(crate) asks: Vec<Ask>,
    pub(crate) outages: Vec<Outage>,
    pub(crate) faults: Faults,
    /// Reports that arrive before those about one sequence do not any more.
    pub(crate) until_mute: Option<u32>,
    /// Percent of engine calls that fail.
    pub(crate) failures: u32,
    pub(crate) queue_limit: u32,
    pub(crate) queue_timeout: Duration,
    /// How long requests wait for a new line.
    pub(crate) replay_timeout: Duration,
    /// Tokens of prefixes that the front has kept.
    pub(crate) prefix_tokens: u64,
    /// Bytes that each stage has for them beside its slots.
    pub(crate) prefix_bytes: u64,
    /// Tokens of prefixes that the stages' stores keep.
    pub(crate) stored_tokens: u64,
    /// What their stores do wrong.
    pub(crate) stores: StoreFlaws,
    /// How the scheduler guesses.
    pub(crate) speculate: Speculate,
}

impl Scenario {
    pub(crate) fn draw(plan: &Plan, driver: Driver, random: &mut Random) -> Self {
        let model = draw_model(random);
        let stages = draw_stages(&model, random);
        let is_crowded = random.percent(CROWDED);
        let n_slots = if is_crowded { random.between(7, 64) } else { random.between(1, 6) } as u16;
        let max_rows = random.between(MAX_WIDTH, 40);
        let context = random.between(24, 160);
        let limits = Limits {
            context,
            n_slots,
            n_vocab: model.n_vocab,
            end_token: model.end_tokens.first().copied().unwrap_or(Token(0)),
            chunk_rows: random.between(1, max_rows),
            max_chunks: random.between(1, stages.len() as u32 + 2),
            max_width: MAX_WIDTH,
        };
        let n_asks = if is_crowded { random.between(13, 64) } else { random.between(1, 12) };
        let spread = random.between(1, 60_000);
        let impatient = if plan.calm { 0 } else { random.pick(&[0, 0, 30, 70]) };
        let unusual = if plan.calm { 0 } else { random.pick(&[0, 0, 10]) };
        let mut asks: Vec<Ask> =
            (0..n_asks).map(|_| draw_ask(&limits, spread, (impatient, unusual), random)).collect();
        asks.iter_mut().for_each(draw_of_prompt);
        (1..asks.len()).for_each(|later| follow_up(&mut asks, later, (&model, &limits), random));
        draw_late(plan, &mut asks, (&model, &limits));
        let faults = Faults::draw(plan, driver, stages.len());
        let n_outages = if plan.calm { 0 } else { random.pick(&[0, 0, 1, 1, 3]) };
        let outages = draw_outages(n_outages, random);
        let least = random.pick(&[0, 20, 2000]);
        let delays = Delays {
            least: Duration::from_micros(least),
            most: Duration::from_micros(least) + random.micros(0, 3000),
            stalls: random.pick(&[0, 0, 5]),
        };
        let window = random.pick(&[0, 0, 0, 5, 20, 60]);
        let rewind = if window > 0 { Rewind::InPlace { window } } else { Rewind::Anywhere };
        let is_rushed = !plan.calm && random.percent(20);
        Self {
            others: draw_others(plan, &model),
            model,
            stages,
            sizes: Sizes { context, n_slots, max_rows: max_rows as usize, rewind, drafts: None },
            limits,
            row_dtype: random.pick(&[RowDtype::F32, RowDtype::F32, RowDtype::F16, RowDtype::Bf16]),
            delays,
            asks,
            outages,
            until_mute: draw_mute(plan),
            failures: if plan.calm { 0 } else { random.pick(&[0, 0, 0, 1, 5]) },
            queue_limit: random.between(1, 12),
            queue_timeout: if is_rushed { random.micros(1000, 30_000) } else { AGES },
            replay_timeout: random.pick(&[Duration::ZERO, Duration::from_millis(2), AGES, AGES]),
            speculate: draw_speculate(plan, random),
            prefix_tokens: random.pick(&[0, 100, 100_000]),
            prefix_bytes: random.pick(&[0, 3000, 1 << 30]),
            stored_tokens: random.pick(&[0, 200, 100_000]),
            stores: StoreFlaws {
                everywhere: random.percent(90),
                losses: random.pick(&[0, 0, 30]),
                skips: random.pick(&[0, 0, 30]),
                most: random.micros(0, 5000) * faults.disk,
            },
            faults,
        }
        .with_drafts(plan)
        .with_returns(plan)
    }

    /// In some runs a long prompt is asked again when its line was lost, so that it comes from the stores. Decided by the
    /// seed alone, like [`draw_of_prompt`].
    fn with_returns(mut self, plan: &Plan) -> Self {
        let mut random = Random::new(mix(plan.seed ^ 0x2e7));
        if plan.calm || !random.percent(20) {
            return self;
        }
        let context = self.limits.context.max(RETURN_CONTEXT);
        (self.limits.context, self.sizes.context) = (context, context);
        let mut first = draw_ask(&self.limits, 1000, (0, 0), &mut random);
        let token = |random: &mut Random| Token(random.between(0, self.limits.n_vocab - 1).cast_signed());
        let n_prompt = self.limits.context * 2 / 3;
        first.prompt = (0..n_prompt).map(|_| token(&mut random)).collect();
        (first.namespace, first.max_tokens) = (Some(0), Some(2));
        for _ in 0..random.between(1, 3) {
            let mut again = first.clone();
            again.at = RETURN + random.micros(2000, 100_000);
            again.prompt.push(token(&mut random));
            self.asks.push(again);
        }
        self.asks.push(first);
        self.outages.push(Outage { at: RETURN, lasts: random.micros(1, 2000) });
        (self.stored_tokens, self.stores.everywhere) = (100_000, true);
        (self.prefix_tokens, self.prefix_bytes) = (100_000, 1 << 30);
        (self.stores.losses, self.stores.skips) = (0, 0);
        self.faults.die_restoring(&mut random, self.stages.len());
        self
    }

    /// Some lines' tails draft for themselves. Decided by the seed alone, like [`draw_of_prompt`].
    fn with_drafts(mut self, plan: &Plan) -> Self {
        let mut random = Random::new(mix(plan.seed ^ 0xd4af));
        if random.percent(25) || plan.sabotage == Some(Sabotage::KeepDrafts) {
            let mixes: [&[Source]; 3] =
                [&[Source::Mtp], &[Source::Mtp, Source::Suffix], &[Source::Suffix, Source::Mtp]];
            self.speculate.sources = Sources::List(random.pick(&mixes).to_vec());
            self.speculate.draft_len = random.pick(&[None, Some(1), Some(3), Some(8)]);
            self.sizes.drafts = Some(random.pick(&[0, 50, 90, 100]));
        }
        self
    }
}

fn draw_model(random: &mut Random) -> Model {
    let n_vocab = random.pick(&[2, 16, 64]);
    let mut end_tokens: Vec<_> =
        (0..random.between(0, 2)).map(|_| Token(random.between(0, n_vocab - 1).cast_signed())).collect();
    end_tokens.sort_unstable();
    end_tokens.dedup();
    Model { n_layers: random.between(5, 9), n_vocab, end_tokens, salt: random.next() }
}

/// One to five stages, at least one layer each.
fn draw_stages(model: &Model, random: &mut Random) -> Vec<(LayerRange, CallTime)> {
    let n_stages = random.between(1, 5);
    let mut start = 0;
    (0..n_stages)
        .map(|stage| {
            let most = model.n_layers - (n_stages - 1 - stage) - start;
            let n = if stage + 1 == n_stages { most } else { random.between(1, most) };
            let layers = LayerRange { start, end: start + n };
            start += n;
            (layers, CallTime { per_call: random.micros(0, 1500), per_row: random.micros(0, 200) })
        })
        .collect()
}

/// Those that share the layers now and then. Decided by the seed alone.
fn draw_others(plan: &Plan, model: &Model) -> Vec<(LayerRange, CallTime)> {
    let mut random = Random::new(plan.seed.rotate_left(16));
    if random.percent(30) { draw_stages(model, &mut random) } else { Vec::new() }
}

fn draw_ask(limits: &Limits, spread: u32, (impatient, unusual): (u32, u32), random: &mut Random) -> Ask {
    let longest = random.pick(&[1, 4, limits.context / 2, limits.context - 1]).max(1);
    let n_prompt = random.between(1, longest);
    let sampler = SamplerParams {
        temperature: random.pick(&[0.0, 0.0, 0.7, 1.5]),
        frequency_penalty: random.pick(&[0.0, 0.5]),
        top_k: if random.percent(unusual) { REFUSED_TOP_K } else { 0 },
        ..SamplerParams::default()
    };
    Ask {
        at: random.micros(0, spread),
        prompt: (0..n_prompt).map(|_| Token(random.between(0, limits.n_vocab - 1).cast_signed())).collect(),
        max_tokens: random.percent(70).then(|| random.between(1, 48)),
        sampler,
        seed: random.next(),
        choice: random.between(0, 3),
        ignore_eos: random.percent(50),
        top_logprobs: random.percent(25).then(|| random.between(0, 3) as u8),
        of_prompt: None,
        client: random.between(0, 2).into(),
        priority: random.pick(&[0, 0, 0, -1, 1]),
        namespace: random.pick(&[Some(0), Some(0), Some(1), None]),
        patience: random.percent(impatient).then(|| random.micros(0, 60_000)),
    }
}

/// Adds those who come when nothing goes wrong any more; none where nothing ever did. What they begin with may have to come
/// from stores. Decided by the seed alone but for that.
fn draw_late(plan: &Plan, asks: &mut Vec<Ask>, (model, limits): (&Model, &Limits)) {
    let mut random = Random::new(plan.seed.rotate_left(32));
    let n_late = if plan.calm { 0 } else { random.between(1, 3) };
    for after in 1..=u64::from(n_late) {
        let mut ask = draw_ask(limits, 1, (0, 0), &mut random);
        ask.at = CALM + Duration::from_secs(after);
        draw_of_prompt(&mut ask);
        let at = asks.len();
        asks.push(ask);
        follow_up(asks, at, (model, limits), &mut random);
    }
}

/// Of some prompts something is wanted itself, and of some of those nothing else. Decided by the request's own seed.
fn draw_of_prompt(ask: &mut Ask) {
    let mut random = Random::new(ask.seed);
    if !random.percent(20) {
        return;
    }
    if random.percent(50) {
        ask.of_prompt = Some(OfPrompt::Logprobs { top: random.between(0, 3) as u8 });
        if random.percent(30) {
            ask.max_tokens = Some(0);
        }
    } else {
        let all = [Pooling::None, Pooling::Mean, Pooling::First, Pooling::Last];
        ask.of_prompt = Some(OfPrompt::Embedding(random.pick(&all)));
    }
}

/// Often, a prompt begins like an earlier one, or goes on where its answer ended.
fn follow_up(asks: &mut [Ask], later: usize, (model, limits): (&Model, &Limits), random: &mut Random) {
    if random.percent(40) {
        return;
    }
    let earlier = asks[random.between(0, later as u32 - 1) as usize].clone();
    let mut text = earlier.prompt.clone();
    if random.percent(50) {
        text.extend(earlier.answer(model, limits.context).0);
    } else {
        text.truncate(random.between(1, text.len() as u32) as usize);
    }
    let ask = &mut asks[later];
    text.append(&mut ask.prompt);
    text.truncate(limits.context as usize - 1);
    ask.prompt = text;
    ask.at = ask.at.max(earlier.at + random.micros(0, 60_000));
}

/// Any mix of sources; width and depth left to the controller, or any.
fn draw_speculate(plan: &Plan, random: &mut Random) -> Speculate {
    let mixes: [&[Source]; 4] = [
        &[Source::Suffix],
        &[Source::Predicted],
        &[Source::Predicted, Source::Suffix],
        &[Source::Unigram, Source::Suffix],
    ];
    let sources = match random.between(0, 5) {
        0 => Sources::Off,
        1..=3 => Sources::Auto,
        _ => Sources::List(random.pick(&mixes).to_vec()),
    };
    let mut any = || random.percent(50).then(|| random.between(1, MAX_WIDTH));
    let (width, depth) = (any(), any());
    let (width, depth) = (plan.width.or(width), plan.depth.or(depth));
    Speculate { sources, reach: Reach { width, depth, ..Reach::default() }, draft_len: None }
}

/// Decided by the seed alone, like [`draw_of_prompt`].
fn draw_mute(plan: &Plan) -> Option<u32> {
    let mut random = Random::new(!plan.seed);
    (!plan.calm && random.percent(20)).then(|| random.between(0, 60))
}

fn draw_outages(n: u32, random: &mut Random) -> Vec<Outage> {
    let mut at = Duration::ZERO;
    (0..n)
        .map(|_| {
            at += random.micros(1000, 60_000);
            let outage = Outage { at, lasts: random.micros(1, 20_000) };
            at += outage.lasts;
            outage
        })
        .collect()
}
