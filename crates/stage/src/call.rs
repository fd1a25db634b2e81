//! One engine call: what the core asks for, how it reaches the engine, and what comes back.

use std::time::Duration;

use bytes::Bytes;
use protocol::{Frame, Open, Position, SeqId, Token};

use crate::port::{Drafted, Engine, EngineError, Input, Sampler, Slot, Span, Wish};

/// What the engine shall do next. Whoever drives the core executes it, then hands the result to
/// [`crate::StageCore::complete`]; the core gives out no other call before that.
pub struct Call {
    pub(crate) kind: Kind,
    pub(crate) buffers: Buffers,
    pub(crate) started: Duration,
}

pub(crate) enum Kind {
    /// Make a sequence's slot ready, and on the tail its sampler.
    Begin(Begin),
    /// Compute rows.
    Run(Batch),
    /// Draft for these sequences.
    Draft(Vec<SeqId>, Vec<Wish>),
    /// Have the engine do what it has put off.
    Tend,
    /// Save the warm prefix in a slot, up to this position.
    Save(SeqId, Slot, Position),
}

/// How a sequence begins where that needs the engine.
pub(crate) struct Begin {
    pub(crate) open: Box<Open>,
    pub(crate) slot: Slot,
    pub(crate) moves: Moves,
}

/// What happens to prefixes first.
#[derive(Default)]
pub(crate) struct Moves {
    /// The prefix that its slot holds is saved, up to this position.
    pub(crate) save: Option<(SeqId, Position)>,
    /// Then the slot is made to hold something else.
    pub(crate) load: Option<Load>,
}

/// What a slot is made to hold.
pub(crate) enum Load {
    /// A blob, of so many positions.
    Blob(Bytes, Position),
    /// What another sequence has computed in its slot, of so many positions.
    Copy { of: SeqId, from: Slot, len: Position },
    /// What a copy comes to when that sequence has ended before the call.
    Gone,
}

impl Load {
    fn execute(self, slot: Slot, engine: &mut dyn Engine) -> (Position, Result<(), EngineError>) {
        match self {
            Self::Blob(blob, len) => (len, engine.load(slot, &blob)),
            Self::Copy { from, len, .. } => {
                (len, engine.save(from).and_then(|bytes| engine.load(slot, &bytes)))
            }
            Self::Gone => {
                let reason = "the sequence that it was to be copied from has ended".to_owned();
                (Position(0), Err(EngineError { reason }))
            }
        }
    }
}

/// What came of [`Moves`].
#[derive(Default)]
pub(crate) struct Moved {
    pub(crate) saved: Option<(SeqId, Position, Result<Vec<u8>, EngineError>)>,
    pub(crate) loaded: Option<(Position, Result<(), EngineError>)>,
}

impl Moves {
    pub(crate) const fn is_empty(&self) -> bool {
        self.save.is_none() && self.load.is_none()
    }

    fn execute(self, slot: Slot, engine: &mut dyn Engine) -> Moved {
        let saved = self.save.map(|(prefix, len)| {
            let saved = engine.truncate(slot, len).and_then(|()| engine.save(slot));
            (prefix, len, saved)
        });
        let loaded = self.load.map(|load| load.execute(slot, engine));
        Moved { saved, loaded }
    }
}

/// Rows of several sequences that share one weight pass.
#[derive(Default)]
pub(crate) struct Batch {
    /// What must be forgotten first.
    pub(crate) cuts: Vec<Cut>,
    /// What is computed, in ascending contiguous slots with equal row counts.
    pub(crate) spans: Vec<Span>,
    /// The frames behind `spans`, one each.
    pub(crate) items: Vec<Item>,
}

/// One sequence's frame in a batch.
pub(crate) struct Item {
    pub(crate) seq: SeqId,
    pub(crate) frame: Frame,
    pub(crate) arrived: Duration,
    pub(crate) order: u64,
}

/// A cut that makes a slot hold exactly the positions below a span's base.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Cut {
    pub(crate) slot: Slot,
    pub(crate) len: Position,
}

/// Memory that calls reuse.
#[derive(Default)]
pub(crate) struct Buffers {
    pub(crate) tokens: Vec<Token>,
    pub(crate) rows: Vec<f32>,
    pub(crate) out: Vec<f32>,
}

/// An executed [`Call`].
pub struct Done {
    pub(crate) outcome: Outcome,
    pub(crate) buffers: Buffers,
    pub(crate) started: Duration,
}

impl Done {
    /// Whether it was stopped half way. Whatever stopped it has to be told to the core before [`crate::StageCore::complete`].
    pub(crate) const fn was_cancelled(&self) -> bool {
        matches!(self.outcome, Outcome::Run(_, Err(RunError::Cancelled)))
    }
}

pub(crate) enum Outcome {
    /// The sampler is made on the tail only.
    Begin(Box<Open>, Moved, Option<Result<Box<dyn Sampler>, EngineError>>),
    Run(Batch, Result<(), RunError>),
    /// By sequence: the position of its draft's first token, and what came.
    Draft(Vec<(SeqId, Position)>, Result<Vec<Drafted>, EngineError>),
    Tended,
    Save(SeqId, Slot, Position, Result<Vec<u8>, EngineError>),
}

/// Why a batch did not run.
pub(crate) enum RunError {
    /// A slot could not be cut; nothing was computed.
    Cut(Slot, EngineError),
    /// The computation failed; the spans' slots are undefined.
    Run(EngineError),
    /// It was stopped since nobody wants the result; the slots hold what the spans begin behind.
    Cancelled,
}

impl Call {
    /// What is computed: empty for a call that only has a sequence begin, or that drafts.
    #[must_use]
    pub fn spans(&self) -> &[Span] {
        match &self.kind {
            Kind::Begin(_) | Kind::Draft(..) | Kind::Tend | Kind::Save(..) => &[],
            Kind::Run(batch) => &batch.spans,
        }
    }

    /// Rows of all spans together.
    #[must_use]
    pub fn n_rows(&self) -> usize {
        self.spans().iter().map(|span| span.n_rows).sum()
    }

    /// Has the engine do it. A failure is kept for the core, which knows whom it concerns.
    #[must_use]
    pub fn execute(self, engine: &mut dyn Engine) -> Done {
        let Self { kind, mut buffers, started } = self;
        let outcome = match kind {
            Kind::Begin(Begin { open, slot, moves }) => {
                let moved = moves.execute(slot, engine);
                let sampler = engine.shape().is_tail.then(|| engine.sampler(&open));
                Outcome::Begin(open, moved, sampler)
            }
            Kind::Draft(sequences, wishes) => {
                let bases = wishes.iter().map(|wish| wish.position.plus(1));
                let of: Vec<_> = sequences.into_iter().zip(bases).collect();
                Outcome::Draft(of, engine.draft(wishes))
            }
            Kind::Tend => {
                engine.tend();
                Outcome::Tended
            }
            Kind::Save(prefix, slot, len) => {
                let saved = engine.truncate(slot, len).and_then(|()| engine.save(slot));
                Outcome::Save(prefix, slot, len, saved)
            }
            Kind::Run(batch) => {
                let result = batch.run(engine, &mut buffers);
                Outcome::Run(batch, result)
            }
        };
        Done { outcome, buffers, started }
    }
}

impl Batch {
    fn run(&self, engine: &mut dyn Engine, buffers: &mut Buffers) -> Result<(), RunError> {
        for cut in &self.cuts {
            engine.truncate(cut.slot, cut.len).map_err(|error| RunError::Cut(cut.slot, error))?;
        }
        let Buffers { tokens, rows, out } = buffers;
        tokens.clear();
        self.items.iter().for_each(|item| tokens.extend_from_slice(item.frame.work.tokens()));
        let input = if engine.shape().is_first {
            Input::Tokens(tokens)
        } else {
            rows.clear();
            self.items.iter().flat_map(|item| &item.frame.rows).for_each(|packed| packed.unpack_into(rows));
            Input::Rows(rows, tokens)
        };
        engine.run(&self.spans, input, out).map_err(|error| match engine.was_cancelled() {
            true => RunError::Cancelled,
            false => RunError::Run(error),
        })
    }
}
