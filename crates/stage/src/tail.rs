//! The tail's side of one sequence: which windows are live, and what is sampled from them.
//!
//! The tail keeps the position that it expects next, the token that it holds for it, and the oldest epoch that may
//! still be live. A window is live iff its base is that position and its first token is that token. The prompt's last
//! token is run as the first window's anchor, so before the first window the expected position is the one after the
//! chunks, and the token there, which only the front knows, is taken as given.
//!
//! Every sample is committed, the one that differs from the guess too: it is the correction. So sampler and grammar
//! advance exactly once per committed token and never roll back.

use protocol::{Chunk, End, Epoch, FaultKind, Open, Position, Token, Verdict, Window};

use crate::port::{Sampled, Sampler};

/// Samples one sequence.
pub(crate) struct Tail {
    sampler: Box<dyn Sampler>,
    limit: Position,
    ignore_eos: bool,
    phase: Phase,
    /// Windows of older epochs are stale.
    min_epoch: Epoch,
}

#[derive(Clone, Copy)]
enum Phase {
    /// No window was sampled yet; the tokens below `next` are known.
    Prompt {
        next: Position,
    },
    Generating {
        expected: Position,
        held: Token,
        /// Of the last live window.
        epoch: Epoch,
    },
    Ended,
}

/// What to do with work that does not contradict what the tail holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sight {
    /// Compute it.
    Live,
    /// Drop it: an older guess.
    Stale,
    /// Drop it: behind the sequence's end.
    PastEnd,
}

impl Tail {
    pub(crate) fn new(open: &Open, mut sampler: Box<dyn Sampler>) -> Self {
        open.history.iter().for_each(|&token| sampler.prompt(token));
        Self {
            sampler,
            limit: open.limit,
            ignore_eos: open.ignore_eos,
            phase: Phase::Prompt { next: open.start },
            min_epoch: Epoch(0),
        }
    }

    /// Whether a chunk continues the prompt.
    pub(crate) fn look_at_chunk(&self, chunk: &Chunk) -> Result<Sight, FaultKind> {
        match self.phase {
            Phase::Prompt { next } => continues(chunk.base, next).map(|()| Sight::Live),
            Phase::Generating { .. } => {
                Err(FaultKind::Unsupported { what: "a prompt chunk after the first window".into() })
            }
            Phase::Ended => Ok(Sight::PastEnd),
        }
    }

    /// Whether a window is live. A contradiction by its first token makes its whole epoch stale.
    pub(crate) fn look_at_window(&mut self, window: &Window) -> Result<Sight, FaultKind> {
        let (base, token) = (window.base, window.tokens[0]);
        match self.phase {
            Phase::Ended => Ok(Sight::PastEnd),
            _ if window.epoch < self.min_epoch => Ok(Sight::Stale),
            Phase::Prompt { next } => continues(base, next).map(|()| Sight::Live),
            Phase::Generating { expected, held, .. } if base == expected && token == held => Ok(Sight::Live),
            Phase::Generating { expected, epoch, .. } if base == expected && window.epoch == epoch => {
                self.min_epoch = epoch.next();
                Ok(Sight::Stale)
            }
            Phase::Generating { expected, held, .. } => {
                Err(FaultKind::Diverged { base, token, expected, expected_token: held })
            }
        }
    }

    /// A live chunk was computed.
    pub(crate) fn pass_chunk(&mut self, tokens: &[Token]) {
        tokens.iter().for_each(|&token| self.sampler.prompt(token));
        if let Phase::Prompt { next } = &mut self.phase {
            *next = next.plus(tokens.len());
        }
    }

    /// Samples a live window that was computed: row `i` predicts position `base + i + 1`. The verdict has no timings.
    pub(crate) fn judge<'a>(
        &mut self,
        window: &Window,
        end_tokens: &[Token],
        logits: impl Fn(usize) -> &'a [f32],
    ) -> Verdict {
        if matches!(self.phase, Phase::Prompt { .. }) {
            self.sampler.prompt(window.tokens[0]);
        }
        let mut verdict = Verdict {
            seq: window.seq,
            epoch: window.epoch,
            window: window.window,
            base: window.base,
            tokens: Vec::with_capacity(window.tokens.len()),
            ended: None,
            logprobs: Vec::new(),
            mu: None,
            timings: Vec::new(),
        };
        for row in 0..window.tokens.len() {
            let position = window.base.plus(row + 1);
            let sampled = self.sampler.sample(position, logits(row));
            let token = sampled.token;
            verdict.tokens.push(token);
            verdict.mu = sampled.mu;
            verdict.ended = self.end_at(position, &sampled, end_tokens);
            verdict.logprobs.extend(sampled.logprobs);
            if verdict.ended.is_some() {
                self.phase = Phase::Ended;
                break;
            }
            self.phase = Phase::Generating { expected: position, held: token, epoch: window.epoch };
            if window.tokens.get(row + 1).is_some_and(|&guess| guess != token) {
                self.min_epoch = window.epoch.next();
                break;
            }
        }
        verdict
    }

    fn end_at(&self, position: Position, sampled: &Sampled, end_tokens: &[Token]) -> Option<End> {
        if !self.ignore_eos && end_tokens.binary_search(&sampled.token).is_ok() {
            Some(End::EndOfGeneration)
        } else if sampled.grammar_ended {
            Some(End::Grammar)
        } else if position.plus(1) >= self.limit {
            Some(End::Limit)
        } else {
            None
        }
    }
}

/// The prompt is heard once and in order, also where a stage could compute a part of it again.
fn continues(base: Position, next: Position) -> Result<(), FaultKind> {
    match base.cmp(&next) {
        std::cmp::Ordering::Equal => Ok(()),
        std::cmp::Ordering::Greater => Err(FaultKind::Gap { base, next }),
        std::cmp::Ordering::Less => Err(FaultKind::Rewind { base, oldest: next }),
    }
}
