//! One sequence on one stage: its frames in the front's order, how far it is computed, and what to do with the next.

use std::collections::VecDeque;

use protocol::{Epoch, FaultKind, Frame, Position, RowDtype, SeqId, Token, Work};

use crate::call::{Item, Moves};
use crate::policy::{Candidate, Class};
use crate::port::{EngineShape, Rewind, Slot, Want, Wish};
use crate::tail::{Sight, Tail};

pub(crate) struct Sequence {
    pub(crate) phase: Phase,
    /// Arrived and not yet dealt with, in the front's order.
    pub(crate) queue: VecDeque<Item>,
    /// The newest epoch heard of, on a frame's arrival or by a hint: older windows are stale.
    pub(crate) newest: Epoch,
    /// Nothing of it need be computed: `Drop` or its `Close` has arrived.
    pub(crate) given_up: bool,
    /// Its first frame is in the call under way; nothing else of it moves meanwhile.
    pub(crate) busy: bool,
    /// The call that served it last.
    pub(crate) served: u64,
    /// When its first frame came.
    pub(crate) order: u64,
}

pub(crate) enum Phase {
    /// Its `Open` waits for a slot.
    Waiting,
    /// It has a slot; its `Open` waits for the engine: for the sampler on the tail, for prefixes that are moved anywhere.
    Beginning(Slot, Moves),
    Running(Running),
    /// Only its `Close` is heard.
    Poisoned(Option<Slot>),
}

pub(crate) struct Running {
    pub(crate) slot: Slot,
    /// The first position not computed.
    next: Position,
    /// The oldest position that can be computed again.
    oldest: Position,
    /// Chunks below this are here already.
    held: Position,
    /// And below this, at the next stage.
    held_by_next: Position,
    pub(crate) tail: Option<Tail>,
    /// The draft that its last verdict has announced, until the engine makes it.
    pub(crate) wish: Option<Wish>,
}

/// What to do with a sequence's first waiting frame.
#[derive(Debug, PartialEq)]
pub(crate) enum Step {
    /// Nothing yet: it is ready for the engine.
    Ready,
    /// Give it a slot, if one is free.
    Begin,
    /// Drop it: its sequence is given up, ended or poisoned.
    PassOver,
    /// Pass it on as it is: a chunk that is here already.
    Held,
    /// Drop it: a window of an older epoch.
    Stale,
    /// End the sequence, by `Close` or by `Park`.
    End,
    /// Poison the sequence.
    Fault(FaultKind),
}

impl Sequence {
    pub(crate) const fn new(phase: Phase, order: u64) -> Self {
        Self {
            phase,
            queue: VecDeque::new(),
            newest: Epoch(0),
            given_up: false,
            busy: false,
            served: 0,
            order,
        }
    }

    /// What to do with the first frame; none if nothing waits or its frame is being computed.
    pub(crate) fn step(&mut self, shape: &EngineShape, dtype: RowDtype) -> Option<Step> {
        let item = self.queue.front().filter(|_| !self.busy)?;
        let work = &item.frame.work;
        if matches!(work, Work::Close(_) | Work::Park(_)) {
            return Some(Step::End);
        }
        if self.given_up {
            return Some(Step::PassOver);
        }
        Some(match (&mut self.phase, work) {
            (Phase::Poisoned(_), _) => Step::PassOver,
            (Phase::Waiting, Work::Open(_)) => Step::Begin,
            (Phase::Beginning(..), Work::Open(_)) => Step::Ready,
            (Phase::Waiting | Phase::Beginning(..), _) => Step::Fault(FaultKind::UnknownSequence),
            (Phase::Running(_), Work::Open(_)) => Step::Fault(FaultKind::AlreadyOpen),
            (Phase::Running(_), Work::Window(window)) if window.epoch < self.newest => Step::Stale,
            (Phase::Running(running), Work::Chunk(_) | Work::Window(_)) => {
                running.check(&item.frame, shape, dtype).unwrap_or_else(Step::Fault)
            }
            (_, Work::Park(_) | Work::Close(_)) => Step::End,
        })
    }

    /// The first frame, if it waits for the engine's rows. [`Sequence::step`] has found it ready. It comes after a draft that
    /// was announced before it.
    pub(crate) fn candidate(&self, seq: SeqId) -> Option<Candidate> {
        let item = self.queue.front().filter(|_| !self.busy && !self.wishes())?;
        let Phase::Running(running) = &self.phase else { return None };
        let class = match &item.frame.work {
            // The tail computes live windows only: somebody waits for each of them.
            Work::Window(window) if window.run_ahead && running.tail.is_none() => Class::RunAhead,
            Work::Window(_) => Class::Anchor,
            _ => Class::Prefill,
        };
        let n_rows = item.frame.work.tokens().len();
        Some(Candidate { seq, slot: running.slot, n_rows, class, served: self.served, order: item.order })
    }

    /// What the rows of its first frame must leave behind; nothing but on the tail.
    pub(crate) fn want(&self, work: &Work) -> Want {
        match &self.phase {
            Phase::Running(Running { tail: Some(tail), .. }) => tail.want(work),
            _ => Want::Nothing,
        }
    }

    /// Rows computed at `base` and behind it: those that a window there will cut.
    pub(crate) const fn n_beyond(&self, base: Position) -> u32 {
        match &self.phase {
            Phase::Running(running) => running.next.0.saturating_sub(base.0),
            Phase::Waiting | Phase::Beginning(..) | Phase::Poisoned(_) => 0,
        }
    }

    /// Whether its `Open` waits for the engine.
    pub(crate) fn wants_to_begin(&self) -> bool {
        let is_open = |item: &Item| matches!(item.frame.work, Work::Open(_));
        !self.busy && matches!(self.phase, Phase::Beginning(..)) && self.queue.front().is_some_and(is_open)
    }

    /// Whether it has announced a draft that somebody waits for.
    pub(crate) const fn wishes(&self) -> bool {
        matches!(&self.phase, Phase::Running(running) if !self.given_up && running.wish.is_some())
    }

    /// The draft that it has announced and that somebody waits for; taken.
    pub(crate) fn take_wish(&mut self) -> Option<Wish> {
        match &mut self.phase {
            Phase::Running(running) if !self.given_up => running.wish.take(),
            _ => None,
        }
    }

    /// Whether the next stage has the positions of a chunk already.
    pub(crate) fn is_held_by_next(&self, work: &Work) -> bool {
        matches!(&self.phase, Phase::Running(running) if is_chunk_below(work, running.held_by_next))
    }

    /// Whether nobody wants the result of computing a frame any more.
    pub(crate) fn is_unwanted(&self, work: &Work) -> bool {
        let stale = matches!(work, Work::Window(window) if window.epoch < self.newest);
        self.given_up || stale
    }
}

impl Phase {
    pub(crate) const fn slot(&self) -> Option<Slot> {
        match self {
            Self::Waiting => None,
            Self::Beginning(slot, _) => Some(*slot),
            Self::Running(running) => Some(running.slot),
            Self::Poisoned(slot) => *slot,
        }
    }
}

impl Phase {
    /// The slot of a sequence that runs, and the first position that is not computed there.
    pub(crate) const fn computed(&self) -> Option<(Slot, Position)> {
        match self {
            Self::Running(running) => Some((running.slot, running.next)),
            Self::Waiting | Self::Beginning(..) | Self::Poisoned(_) => None,
        }
    }
}

impl Running {
    /// A sequence that holds the positions before `start`, for good.
    pub(crate) const fn new(slot: Slot, start: Position, held_by_next: Position, tail: Option<Tail>) -> Self {
        Self { slot, next: start, oldest: start, held: start, held_by_next, tail, wish: None }
    }

    /// Whether its first `len` positions are here and what lies behind them can be cut.
    pub(crate) fn can_park(&self, len: Position, rewind: Rewind) -> bool {
        let can_cut = match rewind {
            Rewind::Anywhere | Rewind::InPlace { .. } => self.next >= len,
            Rewind::Recent { .. } | Rewind::LastCall { .. } => self.next == len,
        };
        can_cut && len > Position(0)
    }

    /// Whether a chunk or window may be computed now.
    fn check(&mut self, frame: &Frame, shape: &EngineShape, dtype: RowDtype) -> Result<Step, FaultKind> {
        check_tokens(frame.work.tokens(), shape)?;
        let (base, sight) = match (&frame.work, &mut self.tail) {
            (Work::Chunk(chunk), Some(tail)) => (chunk.base, tail.look_at_chunk(chunk)?),
            (Work::Window(window), Some(tail)) => (window.base, tail.look_at_window(window)?),
            (work, _) => (base_of(work), Sight::Live),
        };
        match sight {
            Sight::Live if is_chunk_below(&frame.work, self.held) => return Ok(Step::Held),
            Sight::Live => {}
            Sight::Stale => return Ok(Step::Stale),
            Sight::PastEnd => return Ok(Step::PassOver),
        }
        check_rows(frame, shape, dtype)?;
        check_width(&frame.work, shape.rewind)?;
        if base > self.next {
            return Err(FaultKind::Gap { base, next: self.next });
        }
        if base < self.oldest {
            return Err(FaultKind::Rewind { base, oldest: self.oldest });
        }
        let end = base.plus(frame.work.tokens().len());
        if end.0 > shape.context {
            return Err(FaultKind::ContextFull { end, context: shape.context });
        }
        Ok(Step::Ready)
    }

    /// Rows at `base` were computed.
    pub(crate) fn advance(&mut self, base: Position, n_rows: usize, rewind: Rewind) {
        self.next = base.plus(n_rows);
        match rewind {
            Rewind::Anywhere | Rewind::InPlace { .. } => {}
            Rewind::Recent { rows } => {
                self.oldest = self.oldest.max(Position(self.next.0.saturating_sub(rows)));
            }
            Rewind::LastCall { rows } => {
                self.oldest = base.plus(1).max(Position(self.next.0.saturating_sub(rows)));
            }
        }
    }
}

/// Whether work is a chunk that ends at `end` or before.
fn is_chunk_below(work: &Work, end: Position) -> bool {
    matches!(work, Work::Chunk(chunk) if chunk.base.plus(chunk.tokens.len()) <= end)
}

/// Position of a chunk's or window's first token.
pub(crate) const fn base_of(work: &Work) -> Position {
    match work {
        Work::Chunk(chunk) => chunk.base,
        Work::Window(window) => window.base,
        Work::Open(_) | Work::Park(_) | Work::Close(_) => Position(0),
    }
}

/// A frame's tokens can be computed in one call.
fn check_tokens(tokens: &[Token], shape: &EngineShape) -> Result<(), FaultKind> {
    if tokens.is_empty() || tokens.len() > shape.max_rows {
        return bad_rows(format!("{} tokens, but a call takes 1 to {}", tokens.len(), shape.max_rows));
    }
    if shape.n_vocab == 0 {
        return Ok(());
    }
    match tokens.iter().find(|token| usize::try_from(token.0).map_or(true, |id| id >= shape.n_vocab)) {
        Some(token) => bad_rows(format!("token {token}, but the vocabulary has {}", shape.n_vocab)),
        None => Ok(()),
    }
}

/// All guesses of a window can be undone: every row but the first.
fn check_width(work: &Work, rewind: Rewind) -> Result<(), FaultKind> {
    match (work, rewind) {
        (Work::Window(window), Rewind::Recent { rows } | Rewind::LastCall { rows })
            if window.tokens.len() > rows as usize + 1 =>
        {
            bad_rows(format!("a window of {} tokens, but only {rows} can be undone", window.tokens.len()))
        }
        _ => Ok(()),
    }
}

/// A frame's rows are what this stage takes in.
fn check_rows(frame: &Frame, shape: &EngineShape, dtype: RowDtype) -> Result<(), FaultKind> {
    let n_tokens = frame.work.tokens().len();
    match &frame.rows {
        None if shape.is_first => Ok(()),
        None => bad_rows("none came, but this stage does not look up embeddings".into()),
        Some(_) if shape.is_first => bad_rows("some came, but this stage looks up embeddings".into()),
        Some(rows) if rows.width() as usize != shape.row_width => {
            bad_rows(format!("rows of {} values, but the model's have {}", rows.width(), shape.row_width))
        }
        Some(rows) if rows.dtype() != dtype => {
            bad_rows(format!("rows of {:?}, but the line's are {dtype:?}", rows.dtype()))
        }
        Some(rows) if rows.n_rows() as usize != n_tokens => {
            bad_rows(format!("{} rows for {n_tokens} tokens", rows.n_rows()))
        }
        Some(_) => Ok(()),
    }
}

fn bad_rows(reason: String) -> Result<(), FaultKind> {
    Err(FaultKind::BadRows { reason })
}
