//! A toy model: the hidden row at (layer, position) is a hash of the row below and of all rows of that layer so far,
//! so any missing, stale or misplaced position changes the tokens. Its engine asserts the port's contract.

use protocol::{LayerRange, Open, Position, SamplerParams, SeqId, Token};
use stage::{
    Cancel, Drafted, Engine, EngineError, EngineShape, Input, Rewind, Sampled, Sampler, Slot, Span, Want,
    Wish,
};

pub(crate) const N_LAYERS: u32 = 6;
pub(crate) const N_VOCAB: usize = 16;
pub(crate) const END: Token = Token(0);
/// A hidden row is 64 bits in four values, which any float of 32 bits holds exactly.
pub(crate) const WIDTH: usize = 4;
pub(crate) const CONTEXT: u32 = 96;

/// SplitMix64.
#[derive(Clone)]
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        mix(self.0)
    }

    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    pub(crate) fn percent(&mut self, chance: usize) -> bool {
        self.below(100) < chance
    }

    pub(crate) fn token(&mut self) -> Token {
        Token(self.below(N_VOCAB) as i32)
    }
}

fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

fn join(a: u64, b: u64) -> u64 {
    mix(a.rotate_left(17) ^ mix(b.wrapping_add(0x9e37_79b9_7f4a_7c15)))
}

/// What a layer makes of its past, by position: the last entry is the newest.
type Past = Vec<u64>;

fn layer(index: u32, past: &mut Past, below: u64) -> u64 {
    let so_far = join(past.last().copied().unwrap_or(7), below);
    past.push(so_far);
    join(so_far, u64::from(index))
}

fn sampled(hidden: u64, history: u64, seed: u64) -> Token {
    Token((join(join(hidden % N_VOCAB as u64, history), seed) % N_VOCAB as u64) as i32)
}

/// What sequential decoding says: tokens from the prompt's end up to an end token or `limit`.
pub(crate) fn reference(prompt: &[Token], seed: u64, limit: Position, ignore_eos: bool) -> Vec<Token> {
    let mut layers = vec![Past::new(); N_LAYERS as usize];
    let mut history = 0;
    let mut tokens = prompt.to_vec();
    for at in 0.. {
        let token = tokens[at];
        history = join(history, token.0 as u64);
        let hidden =
            (0..N_LAYERS).zip(&mut layers).fold(token.0 as u64, |row, (i, past)| layer(i, past, row));
        if at + 1 < tokens.len() {
            continue;
        }
        let next = sampled(hidden, history, seed);
        tokens.push(next);
        if (next == END && !ignore_eos) || tokens.len() as u32 >= limit.0 {
            break;
        }
    }
    tokens.split_off(prompt.len())
}

/// The hidden row of each of a text's tokens.
pub(crate) fn rows(text: &[Token]) -> Vec<[f32; WIDTH]> {
    let mut layers = vec![Past::new(); N_LAYERS as usize];
    let row = |token: &Token| {
        let layers = (0..N_LAYERS).zip(&mut layers);
        pack(layers.fold(token.0 as u64, |row, (i, past)| layer(i, past, row)))
    };
    text.iter().map(row).collect()
}

/// The logits of a hidden row: one token is favoured.
pub(crate) fn logits(row: [f32; WIDTH]) -> Vec<f32> {
    let mut logits = vec![0.0; N_VOCAB];
    logits[(unpack(&row) % N_VOCAB as u64) as usize] = 1.0;
    logits
}

/// What an engine does next instead of its work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Failure {
    #[default]
    None,
    Run,
    Cut(Slot),
    Sampler,
}

/// The seed of a sequence whose tokens cannot be sampled.
pub(crate) const UNSAMPLED: u64 = u64::MAX;

pub(crate) struct Toy {
    shape: EngineShape,
    slots: Vec<Vec<Past>>,
    /// Base and end of each slot's last call.
    last: Vec<(u32, u32)>,
    logits: Vec<Vec<f32>>,
    hidden: Vec<Vec<f32>>,
    pub(crate) failure: Failure,
    /// What it was asked to draft, call by call: slot, last token, its position and the number of tokens.
    pub(crate) wishes: Vec<Vec<(u16, i32, u32, usize)>>,
    /// Whether the next draft fails.
    pub(crate) refuses_draft: bool,
    /// Whether the next save fails.
    pub(crate) refuses_save: bool,
    pub(crate) calls: Vec<Vec<Span>>,
    pub(crate) cuts: Vec<(Slot, Position)>,
    cancel: Cancel,
    was_cancelled: bool,
}

impl Toy {
    /// Stage `index` of `n_stages`.
    pub(crate) fn new(index: u32, n_stages: u32, n_slots: u16, max_rows: usize, rewind: Rewind) -> Self {
        let layers =
            LayerRange { start: N_LAYERS * index / n_stages, end: N_LAYERS * (index + 1) / n_stages };
        let (is_first, is_tail) = (index == 0, index + 1 == n_stages);
        let shape = EngineShape {
            layers,
            is_first,
            is_tail,
            row_width: WIDTH,
            n_vocab: if is_first || is_tail { N_VOCAB } else { 0 },
            context: CONTEXT,
            n_slots,
            max_rows,
            rewind,
            end_tokens: if is_tail { vec![END] } else { Vec::new() },
            drafts: false,
            weight_bytes: 0,
            kv_bytes: 0,
        };
        Self {
            slots: vec![vec![Past::new(); layers.len() as usize]; usize::from(n_slots)],
            last: vec![(0, 0); usize::from(n_slots)],
            shape,
            logits: Vec::new(),
            hidden: Vec::new(),
            failure: Failure::None,
            wishes: Vec::new(),
            refuses_draft: false,
            refuses_save: false,
            calls: Vec::new(),
            cuts: Vec::new(),
            cancel: Cancel::default(),
            was_cancelled: false,
        }
    }

    fn check(&self, spans: &[Span]) {
        assert!(!spans.is_empty());
        assert!(spans.iter().map(|s| s.n_rows).sum::<usize>() <= self.shape.max_rows, "max_rows: {spans:?}");
        for pair in spans.windows(2) {
            assert_eq!(pair[0].slot.0 + 1, pair[1].slot.0, "ascending contiguous slots: {spans:?}");
            assert_eq!(pair[0].n_rows, pair[1].n_rows, "equal row counts: {spans:?}");
        }
        for span in spans {
            assert!(span.n_rows > 0);
            assert_eq!(self.slots[usize::from(span.slot.0)][0].len(), span.base.0 as usize, "{span:?}");
            assert!(span.base.0 + span.n_rows as u32 <= self.shape.context);
            assert!(self.shape.is_tail || span.want == Want::Nothing);
        }
        assert!(self.shape.rewind == Rewind::Anywhere || spans.len() == 1);
    }
}

impl Engine for Toy {
    fn shape(&self) -> &EngineShape {
        &self.shape
    }

    fn heed(&mut self, cancel: Cancel) {
        self.cancel = cancel;
    }

    fn was_cancelled(&self) -> bool {
        self.was_cancelled
    }

    fn run(&mut self, spans: &[Span], input: Input<'_>, out: &mut Vec<f32>) -> Result<(), EngineError> {
        self.check(spans);
        self.calls.push(spans.to_vec());
        self.was_cancelled = self.cancel.is_raised();
        if self.was_cancelled {
            return Err(EngineError { reason: "the call was stopped".into() });
        }
        if std::mem::take(&mut self.failure) == Failure::Run {
            spans.iter().for_each(|s| self.slots[usize::from(s.slot.0)].iter_mut().for_each(|p| p.push(99)));
            return Err(EngineError { reason: "out of memory".into() });
        }
        let below = |row: usize| match input {
            Input::Tokens(tokens) => tokens[row].0 as u64,
            Input::Rows(rows, _) => unpack(&rows[row * WIDTH..(row + 1) * WIDTH]),
        };
        let n_input = match input {
            Input::Tokens(tokens) => tokens.len(),
            Input::Rows(rows, _) => rows.len() / WIDTH,
        };
        assert_eq!(n_input, spans.iter().map(|s| s.n_rows).sum::<usize>());
        out.clear();
        self.logits.clear();
        self.hidden.clear();
        let mut row = 0;
        for span in spans {
            self.last[usize::from(span.slot.0)] = (span.base.0, span.base.0 + span.n_rows as u32);
            for _ in 0..span.n_rows {
                let pasts = &mut self.slots[usize::from(span.slot.0)];
                let hidden = (self.shape.layers.start..)
                    .zip(pasts)
                    .fold(below(row), |value, (index, past)| layer(index, past, value));
                row += 1;
                let row = pack(hidden);
                if self.shape.is_tail {
                    let if_wanted = |want, values| if span.want == want { values } else { Vec::new() };
                    self.logits.push(if_wanted(Want::Logits, logits(row)));
                    self.hidden.push(if_wanted(Want::Hidden, row.to_vec()));
                } else {
                    out.extend(row);
                }
            }
        }
        Ok(())
    }

    fn logits(&self, row: usize) -> &[f32] {
        &self.logits[row]
    }

    fn hidden(&self, row: usize) -> &[f32] {
        assert!(!self.hidden[row].is_empty(), "nobody asked for row {row}");
        &self.hidden[row]
    }

    fn draft(&mut self, wishes: Vec<Wish>) -> Result<Vec<Drafted>, EngineError> {
        let said = |wish: &Wish| (wish.slot.0, wish.token.0, wish.position.0, wish.n_tokens);
        self.wishes.push(wishes.iter().map(said).collect());
        if std::mem::take(&mut self.refuses_draft) {
            return Err(EngineError { reason: "no memory for a draft".into() });
        }
        let draft = |wish: &Wish| Drafted {
            tokens: (0..wish.n_tokens as i32).map(Token).collect(),
            probabilities: vec![0.5; wish.n_tokens],
            n_told: 0,
        };
        Ok(wishes.iter().map(draft).collect())
    }

    fn truncate(&mut self, slot: Slot, len: Position) -> Result<(), EngineError> {
        if self.failure == Failure::Cut(slot) {
            self.failure = Failure::None;
            return Err(EngineError { reason: "the memory cannot be cut".into() });
        }
        if let (Rewind::LastCall { rows }, 1..) = (self.shape.rewind, len.0) {
            let (base, end) = self.last[usize::from(slot.0)];
            assert!(len.0 > base && len.0 + rows >= end, "cut to {len} after a call of {base}..{end}");
        }
        self.cuts.push((slot, len));
        self.slots[usize::from(slot.0)].iter_mut().for_each(|past| past.truncate(len.0 as usize));
        Ok(())
    }

    fn save(&mut self, slot: Slot) -> Result<Vec<u8>, EngineError> {
        if std::mem::take(&mut self.refuses_save) {
            return Err(EngineError { reason: "no memory for a copy".into() });
        }
        let pasts = self.slots[usize::from(slot.0)].iter();
        Ok(pasts.flatten().flat_map(|so_far| so_far.to_le_bytes()).collect())
    }

    fn load(&mut self, slot: Slot, bytes: &[u8]) -> Result<(), EngineError> {
        let pasts = &mut self.slots[usize::from(slot.0)];
        let words: Vec<u64> = bytes
            .chunks_exact(8)
            .map(|word| u64::from_le_bytes(word.try_into().expect("eight bytes")))
            .collect();
        let len = words.len() / pasts.len();
        pasts.iter_mut().zip(words.chunks_exact(len)).for_each(|(past, words)| *past = words.to_vec());
        Ok(())
    }

    fn sampler(&self, open: &Open) -> Result<Box<dyn Sampler>, EngineError> {
        if self.failure == Failure::Sampler {
            return Err(EngineError { reason: "mirostat 3 is unknown".into() });
        }
        Ok(Box::new(ToySampler { seed: open.seed, history: 0, next: 0 }))
    }
}

fn pack(hidden: u64) -> [f32; WIDTH] {
    std::array::from_fn(|i| f32::from((hidden >> (16 * i)) as u16))
}

fn unpack(row: &[f32]) -> u64 {
    row.iter().rev().fold(0, |hidden, &value| hidden << 16 | value as u64)
}

impl Toy {
    /// A tail that drafts.
    pub(crate) fn that_drafts(mut self) -> Self {
        self.shape.drafts = true;
        self
    }
}

/// Its tokens depend on every token before, so that one heard twice, never or out of order shows.
#[derive(Clone)]
struct ToySampler {
    seed: u64,
    history: u64,
    next: u32,
}

impl Sampler for ToySampler {
    fn prompt(&mut self, token: Token) {
        self.history = join(self.history, token.0 as u64);
        self.next += 1;
    }

    fn sample(&mut self, position: Position, logits: &[f32]) -> Result<Sampled, EngineError> {
        assert_eq!(position.0, self.next, "every position is sampled once, in order");
        if self.seed == UNSAMPLED {
            return Err(EngineError { reason: "its grammar is too complex".into() });
        }
        let best = logits.iter().position(|&logit| logit > 0.0).expect("the toy's logits favour one token");
        let token = sampled(best as u64, self.history, self.seed);
        self.prompt(token);
        Ok(Sampled { token, logprobs: None, mu: None, grammar_ended: false })
    }

    fn drafting(&self) -> Option<Box<dyn Sampler>> {
        Some(Box::new(self.clone()))
    }
}

/// An `Open` with the toy's defaults.
pub(crate) fn open(seq: u64) -> Open {
    Open {
        seq: SeqId(seq),
        start: Position(0),
        reuse: None,
        held: None,
        seed: seq,
        choice: 0,
        sampler: SamplerParams::default(),
        limit: Position(CONTEXT),
        ignore_eos: true,
        top_logprobs: None,
        of_prompt: None,
        history: Vec::new(),
    }
}
