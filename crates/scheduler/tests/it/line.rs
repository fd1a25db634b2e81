//! An honest line over a deterministic model, seen from the front: frames in, in order; the tail's reports out.
//!
//! It holds the front to its word: positions without gaps, memory never over-committed, ids never reused.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use protocol::{
    End, Fault, FaultKind, Frame, Hint, Open, Position, Progress, Report, SeqId, StageIndex, StageTiming,
    Token, TokenLogprobs, Verdict, Window, Work,
};
use scheduler::{Config, Request};

/// Ends a generation.
const END: Token = Token(0);

/// The next token: a hash of the noise's key and every token before it.
fn next(config: &Config, seed: u64, choice: u32, prefix: &[Token]) -> Token {
    let hash = prefix.iter().fold(seed ^ u64::from(choice), |hash, token| {
        let mixed = (hash ^ u64::from(token.0.cast_unsigned())).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        mixed ^ (mixed >> 29)
    });
    if (hash >> 32) % 16 == 0 { END } else { Token(1 + (hash % u64::from(config.n_vocab - 1)) as i32) }
}

/// What a request is answered when it is alone and undisturbed, and how that ends.
pub(crate) fn sequential(config: &Config, request: &Request) -> (Vec<Token>, End) {
    let mut tokens = request.prompt.clone();
    let most = config.context as usize - tokens.len();
    let most = request.max_tokens.map_or(most, |n| most.min(n as usize));
    loop {
        tokens.push(next(config, request.seed, request.choice, &tokens));
        let n_generated = tokens.len() - request.prompt.len();
        let end = if tokens.last() == Some(&END) && !request.ignore_eos {
            End::EndOfGeneration
        } else if n_generated == most {
            End::Limit
        } else {
            continue;
        };
        return (tokens.split_off(request.prompt.len()), end);
    }
}

/// One sequence as the line holds it.
struct Held {
    open: Open,
    tokens: Vec<Token>,
    poisoned: bool,
}

/// The line. Frames and reports wait in it until they are moved.
pub(crate) struct Line {
    config: Config,
    frames: VecDeque<Frame>,
    reports: VecDeque<(StageIndex, Report)>,
    held: BTreeMap<SeqId, Held>,
    dropped: BTreeSet<SeqId>,
    next_seq: SeqId,
    chunks_in_flight: BTreeMap<SeqId, u32>,
}

impl Line {
    /// A line as it is after (re)assignment; sequence ids below `next_seq` were used on an earlier one.
    pub(crate) fn new(config: &Config, next_seq: SeqId) -> Self {
        Self {
            config: config.clone(),
            frames: VecDeque::new(),
            reports: VecDeque::new(),
            held: BTreeMap::new(),
            dropped: BTreeSet::new(),
            next_seq,
            chunks_in_flight: BTreeMap::new(),
        }
    }

    pub(crate) fn next_seq(&self) -> SeqId {
        self.next_seq
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.frames.is_empty() && self.reports.is_empty()
    }

    pub(crate) fn holds(&self) -> usize {
        self.held.len()
    }

    pub(crate) fn send(&mut self, frame: Frame) {
        assert!(frame.rows.is_none() && frame.timings.is_empty(), "a frame leaves the front bare");
        if let Work::Open(open) = &frame.work {
            assert!(open.seq >= self.next_seq, "a sequence id is never reused");
            self.next_seq = SeqId(open.seq.0 + 1);
        }
        if let Work::Chunk(chunk) = &frame.work {
            let n = self.chunks_in_flight.entry(chunk.seq).or_default();
            *n += 1;
            assert!(*n <= self.config.max_chunks_in_flight, "chunks in flight are bounded");
        }
        self.frames.push_back(frame);
    }

    pub(crate) fn hint(&mut self, hint: Hint) {
        match hint {
            Hint::Drop { seq } => _ = self.dropped.insert(seq),
            Hint::Together { sequences } => assert!(sequences > 0),
            Hint::Advance { .. } => panic!("plain decoding never contradicts itself: {hint:?}"),
        }
    }

    /// Poisons the `n`th sequence that is open, or says that a whole stage failed.
    pub(crate) fn fault(&mut self, n: usize, whole_stage: bool) {
        let kind = FaultKind::Engine { reason: "test".into() };
        let seq = if whole_stage {
            self.held.values_mut().for_each(|held| held.poisoned = true);
            None
        } else {
            let Some((&seq, held)) = self.held.iter_mut().nth(n) else { return };
            held.poisoned = true;
            Some(seq)
        };
        self.reports.push_back((StageIndex(0), Report::Fault(Fault { seq, kind })));
    }

    /// The tail computes the oldest frame.
    pub(crate) fn compute(&mut self) {
        let Some(frame) = self.frames.pop_front() else { return };
        let seq = frame.work.seq();
        let skipped = self.dropped.contains(&seq) || self.held.get(&seq).is_some_and(|held| held.poisoned);
        let report = match frame.work {
            Work::Open(open) => {
                self.open(*open);
                None
            }
            Work::Close(_) => {
                self.held.remove(&seq).expect("only an open sequence is closed");
                Some(Report::Closed(seq))
            }
            Work::Chunk(_) | Work::Window(_) if skipped => None,
            Work::Chunk(chunk) => {
                let held = self.held.get_mut(&seq).expect("chunks belong to open sequences");
                assert_eq!(chunk.base.0 as usize, held.tokens.len(), "chunks leave no gap");
                assert!((1..=self.config.chunk_rows as usize).contains(&chunk.tokens.len()));
                held.tokens.extend(&chunk.tokens);
                let next = Position(held.tokens.len() as u32);
                Some(Report::Progress(Progress { seq, next, timings: Vec::new() }))
            }
            Work::Window(window) => Some(Report::Verdict(Box::new(self.check(&window)))),
            Work::Park(_) => panic!("requests without a namespace share nothing"),
        };
        let tail = StageIndex(self.config.n_stages - 1);
        self.reports.extend(report.map(|report| (tail, report)));
    }

    fn open(&mut self, open: Open) {
        assert!(self.held.len() < usize::from(self.config.n_slots), "memory is never over-committed");
        assert!(open.limit.0 <= self.config.context);
        assert_eq!(open.start, Position(0));
        let held = Held { open, tokens: Vec::new(), poisoned: false };
        assert!(self.held.insert(held.open.seq, held).is_none());
    }

    fn check(&mut self, window: &Window) -> Verdict {
        let held = self.held.get_mut(&window.seq).expect("windows belong to open sequences");
        let [anchor] = window.tokens[..] else { panic!("plain decoding sends the anchor alone: {window:?}") };
        let base = window.base.0 as usize;
        if base == held.tokens.len() {
            held.tokens.push(anchor);
        }
        assert_eq!((base + 1, Some(&anchor)), (held.tokens.len(), held.tokens.last()), "a window is live");
        assert!(held.tokens.len() < held.open.limit.0 as usize, "nothing is asked beyond the limit");
        let token = next(&self.config, held.open.seed, held.open.choice, &held.tokens);
        held.tokens.push(token);
        let ended = if token == END && !held.open.ignore_eos {
            Some(End::EndOfGeneration)
        } else {
            (held.tokens.len() == held.open.limit.0 as usize).then_some(End::Limit)
        };
        let logprobs = held.open.top_logprobs.map(|_| TokenLogprobs { logprob: -1.0, top: Vec::new() });
        Verdict {
            seq: window.seq,
            epoch: window.epoch,
            window: window.window,
            base: window.base,
            tokens: vec![token],
            ended,
            logprobs: logprobs.into_iter().collect(),
            mu: None,
            timings: vec![StageTiming { queue_us: 1, compute_us: 2, batch_rows: 1 }],
            company: protocol::Company::Alone,
            drafts: false,
        }
    }

    /// The oldest report reaches the front.
    pub(crate) fn report(&mut self) -> Option<(StageIndex, Report)> {
        let report = self.reports.pop_front()?;
        if let Report::Progress(progress) = &report.1 {
            *self.chunks_in_flight.get_mut(&progress.seq).expect("a chunk was sent") -= 1;
        }
        Some(report)
    }
}
