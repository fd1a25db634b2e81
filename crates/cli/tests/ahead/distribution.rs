//! At temperature 1 the tokens follow the model's distribution, however many guesses were wrong on the way.

use llama::{EngineConfig, LlamaEngine};
use protocol::noise::Noise;
use protocol::{Open, Position, SamplerParams, Token};
use scheduler::Request;
use stage::{Engine, EngineError, EngineShape, Input, Sampler, Slot, Span};

use crate::line::{Line, cut, engine, pinned, toy};
use crate::plain;

/// Tokens of an answer.
const TOKENS: u32 = 80;
/// Bins of equal probability, and what chi-square over them exceeds once in a thousand seeds (19 degrees of freedom).
const BINS: usize = 20;
const LIMIT: f64 = 43.82;
/// Few enough likely tokens that the text repeats itself and guesses from it are often right and often wrong.
const LIKELY: [i32; 6] = [3, 77, 130, 255, 301, 444];

fn request(seed: u64) -> Request {
    let likely = LIKELY.map(|id| (Token(id), 30.0));
    Request {
        sampler: SamplerParams { logit_bias: likely.to_vec(), ..SamplerParams::default() },
        seed,
        max_tokens: Some(TOKENS),
        ignore_eos: true,
        ..Request::new(LIKELY.map(Token).repeat(2))
    }
}

/// Takes each row's logits from the row before: what a tail does that corrects one row late.
struct OneRowLate(Box<dyn Engine>);

impl Engine for OneRowLate {
    fn shape(&self) -> &EngineShape {
        self.0.shape()
    }

    fn run(&mut self, spans: &[Span], input: Input<'_>, out: &mut Vec<f32>) -> Result<(), EngineError> {
        self.0.run(spans, input, out)
    }

    fn logits(&self, row: usize) -> &[f32] {
        self.0.logits(row.saturating_sub(1))
    }

    fn truncate(&mut self, slot: Slot, len: Position) -> Result<(), EngineError> {
        self.0.truncate(slot, len)
    }

    fn sampler(&self, open: &Open) -> Result<Box<dyn Sampler>, EngineError> {
        self.0.sampler(open)
    }
}

/// Where a draw lies in its distribution, 0 to 1: uniform if and only if it was drawn from it. `dice` says where
/// within the token's own share.
fn place(logits: &[f32], drawn: Token, dice: f64) -> f64 {
    let biased = |id: usize| {
        let bias = if LIKELY.contains(&(id as i32)) { 30.0 } else { 0.0 };
        f64::from(logits[id] + bias)
    };
    let most = (0..logits.len()).map(biased).fold(f64::MIN, f64::max);
    let weight = |id: usize| (biased(id) - most).exp();
    let sum: f64 = (0..logits.len()).map(weight).sum();
    let drawn = drawn.0 as usize;
    let below: f64 = (0..drawn).map(weight).sum();
    (below + dice * weight(drawn)) / sum
}

/// Draws with guesses that run ahead: chi-square of the places, guesses sent and accepted, and whether every answer is
/// the plain one.
fn draw(bench: &mut Bench, n_answers: u64) -> (f64, (u32, u32), bool) {
    let Bench { line, alone, .. } = bench;
    let heard = line.answer(&pinned("suffix", 4, 3), (0..n_answers).map(|seed| request(seed).into()));
    let (mut counts, mut guesses, mut is_plain) = ([0_u32; BINS], (0, 0), true);
    for (seed, heard) in (0..).zip(&heard) {
        let request = request(seed);
        guesses = (guesses.0 + heard.timings.drafted, guesses.1 + heard.timings.accepted);
        is_plain &= plain::answer(alone, &request).tokens == heard.answer.tokens;
        let mut at = 0;
        plain::read(alone, &request.prompt, &heard.answer.tokens, |logits, drawn| {
            // Any source of uniform numbers that the draws themselves did not use.
            let dice = (-Noise::new(!seed, 1, Position(at)).gumbel(Token(0))).exp();
            let place = place(logits, drawn, (-dice).exp());
            counts[((place * BINS as f64) as usize).min(BINS - 1)] += 1;
            at += 1;
        });
    }
    let n: u32 = counts.iter().sum();
    let expected = f64::from(n) / BINS as f64;
    let chi = counts.iter().map(|&count| (f64::from(count) - expected).powi(2) / expected).sum();
    (chi, guesses, is_plain)
}

struct Bench {
    /// Three stages of one layer each, with four sequences at once.
    line: Line,
    alone: LlamaEngine,
    _folder: tempfile::TempDir,
}

fn bench() -> Bench {
    let folder = tempfile::tempdir().expect("a temporary folder can be made");
    let path = toy(3, folder.path());
    let config =
        EngineConfig { context: 256, n_slots: 4, max_rows: 128, exact: true, ..EngineConfig::new("") };
    let line = Line::load(&cut(&path, &[1, 2], folder.path()), &config);
    Bench { line, alone: engine(&path, &EngineConfig { n_slots: 1, ..config }), _folder: folder }
}

#[test]
fn guessed_tokens_follow_the_plain_distribution_and_are_the_plain_ones() {
    // 20,480 draws.
    let (chi, (sent, right), is_plain) = draw(&mut bench(), 256);
    assert!(is_plain, "another token than plain decoding with the same seed");
    assert!(right * 20 > sent && right * 2 < sent, "{right} of {sent} guesses right: one-sided");
    assert!(chi < LIMIT, "chi-square {chi}");
}

/// A quarter of the draws shows it.
#[test]
fn a_correction_from_the_wrong_row_is_seen() {
    let mut bench = bench();
    bench.line.wrap_tail(|tail| Box::new(OneRowLate(tail)));
    let (chi, _, is_plain) = draw(&mut bench, 64);
    assert!(!is_plain && chi > 2.0 * LIMIT, "chi-square {chi}, plain: {is_plain}");
}
