//! An honest tail over a deterministic model: the next token is a hash of all tokens before it.

use protocol::{End, Epoch, Position, SeqId, Token, Verdict, Window};

/// The sequence that every test runs.
pub(crate) const SEQ: SeqId = SeqId(7);
/// Ends a generation.
pub(crate) const END: Token = Token(0);

/// A language model over `0..n_vocab` that ends rarely.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Model {
    pub(crate) n_vocab: u32,
    pub(crate) seed: u64,
}

impl Model {
    pub(crate) fn next(self, prefix: &[Token]) -> Token {
        let hash = prefix.iter().fold(self.seed, |hash, token| {
            let mixed = (hash ^ u64::from(token.0.cast_unsigned())).wrapping_mul(0x9e37_79b9_7f4a_7c15);
            mixed ^ (mixed >> 29)
        });
        if (hash >> 32) % 64 == 0 { END } else { Token(1 + (hash % u64::from(self.n_vocab - 1)) as i32) }
    }

    /// What decoding one token after the other gives.
    pub(crate) fn sequential(self, prompt: &[Token], limit: Position) -> (Vec<Token>, End) {
        let mut tokens = prompt.to_vec();
        loop {
            tokens.push(self.next(&tokens));
            if let Some(end) = end_of(&tokens, limit) {
                return (tokens, end);
            }
        }
    }
}

fn end_of(tokens: &[Token], limit: Position) -> Option<End> {
    if tokens.last() == Some(&END) {
        Some(End::EndOfGeneration)
    } else {
        (tokens.len() == limit.0 as usize).then_some(End::Limit)
    }
}

/// The last stage, as far as one sequence can see it.
#[derive(Debug)]
pub(crate) struct Tail {
    model: Model,
    limit: Position,
    tokens: Vec<Token>,
    min_epoch: Epoch,
    /// The epoch of the last live window.
    epoch: Epoch,
    ended: bool,
}

impl Tail {
    pub(crate) fn new(model: Model, prompt: &[Token], limit: Position) -> Self {
        let tokens = prompt.to_vec();
        Self { model, limit, tokens, min_epoch: Epoch(0), epoch: Epoch(0), ended: false }
    }

    /// All tokens that are certain here.
    pub(crate) fn tokens(&self) -> &[Token] {
        &self.tokens
    }

    /// The verdict on a live window; none for a stale one.
    ///
    /// # Panics
    /// On a window that is neither: the fault `Diverged` of a real tail.
    pub(crate) fn handle(&mut self, window: &Window) -> Option<Verdict> {
        if self.ended || window.epoch < self.min_epoch {
            return None;
        }
        let n = self.tokens.len();
        assert_eq!(
            window.base.0 as usize,
            n - 1,
            "a window that is not stale starts where the last one ended"
        );
        if window.tokens[0] != self.tokens[n - 1] {
            assert_eq!(window.epoch, self.epoch, "the first window of an epoch starts with the anchor");
            self.min_epoch = window.epoch.next();
            return None;
        }
        self.epoch = window.epoch;
        let mut ended = None;
        for row in 0..window.tokens.len() {
            let token = self.model.next(&self.tokens);
            self.tokens.push(token);
            ended = end_of(&self.tokens, self.limit);
            let contradicted = window.tokens.get(row + 1).is_some_and(|&sent| sent != token);
            if contradicted {
                self.min_epoch = window.epoch.next();
            }
            if contradicted || ended.is_some() {
                break;
            }
        }
        self.ended = ended.is_some();
        Some(verdict(window, &self.tokens[n..], ended))
    }
}

/// A verdict on a window.
pub(crate) fn verdict(window: &Window, tokens: &[Token], ended: Option<End>) -> Verdict {
    Verdict {
        seq: window.seq,
        epoch: window.epoch,
        window: window.window,
        base: window.base,
        tokens: tokens.to_vec(),
        ended,
        logprobs: Vec::new(),
        mu: None,
        timings: Vec::new(),
        company: protocol::Company::Alone,
        drafts: false,
    }
}
