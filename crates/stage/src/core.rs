//! The stage's state machine: frames and hints in, engine calls, frames for the next stage and reports out.
//!
//! Frames of one sequence are dealt with strictly in the front's order; the policy chooses among sequences only.
//!
//! # Why a dropped window leaves no gap further down
//! A stage passes over windows that are older than the newest epoch it has heard of, and the stages below never see
//! them. Still `base <= next` holds there for every window that does reach them. Say that stage `i` drops a window of
//! epoch `e`, and let `V`, of epoch `v`, be the next window of the sequence that it passes on.
//!
//! 1. The newest epoch never falls, and windows of one sequence leave in order, so `v > e`; and no window of epoch `v`
//!    was dropped before `V`, else `V` would have been too. So `V` is the first window of its epoch.
//! 2. An epoch opens only by a contradiction in a verdict, at the corrected position: `V.base` is that position, and
//!    the verdict came from a window `X` of the epoch before whose row for position `V.base - 1` the tail had computed.
//!    To get there `X` was computed by every stage: when it was, `next >= V.base` on each of them.
//! 3. Afterwards `next` falls only by computing a window with a lower base. Windows between `X` and `V` in the front's
//!    order are of `X`'s epoch, tile the positions from `X`'s end on, and `X`'s end is not below `V.base`. So
//!    `next >= V.base` still holds when `V` arrives.
//!
//! A sequence that is given up (`Drop`, or its `Close` has arrived) never computes again, so there only `Close` follows.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use protocol::{Fault, FaultKind, Frame, Hint, Position, PrefixKey, Report, RowDtype, SeqId, Stored, Work};

use crate::call::{Buffers, Item, Moves};
use crate::policy::Policy;
use crate::port::{Blob, EngineShape};
use crate::prefixes::Prefixes;
use crate::sequence::{Phase, Sequence, Step};
use crate::slots::Slots;
use crate::stats::{Load, Stats};
use crate::store::Keeping;

mod begin;
mod compute;
mod kept;

pub use kept::Kept;

/// How a stage differs from others with the same engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// How hidden rows arrive and leave.
    pub row_dtype: RowDtype,
    /// Bytes for prefixes whose slot was needed; 0 keeps prefixes only while their slot is free.
    pub prefix_bytes: u64,
    /// Whether there is a store where prefixes outlive the engine.
    pub has_store: bool,
}

/// What a stage says.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// For the next stage.
    Forward(Frame),
    /// For the front.
    Report(Report),
    /// For the store; only if there is one. At most one of each kind for a sequence that waits or a prefix that is parked.
    Store(StoreWork),
}

/// What a store is asked.
#[derive(Clone, Debug, PartialEq)]
pub enum StoreWork {
    /// To keep a prefix; [`StageCore::handle_kept`] hears what came of it.
    Write {
        /// Which one.
        prefix: SeqId,
        /// Under which key.
        key: PrefixKey,
        /// What it is.
        blob: Blob,
    },
    /// To give one back; [`StageCore::handle_fetched`] hears it.
    Read {
        /// Which one it shall be.
        prefix: SeqId,
        /// Under which key it was kept.
        key: PrefixKey,
    },
}

/// The state of one stage. What it holds is bounded by [`StageCore::max_sequences`] and by what its driver lets in
/// (see [`StageCore::load`]).
pub struct StageCore {
    shape: EngineShape,
    config: Config,
    sequences: BTreeMap<SeqId, Sequence>,
    /// Sequences whose `Open` waits for a slot or for a prefix, by the order in which they came.
    waiting: BTreeMap<u64, SeqId>,
    slots: Slots,
    prefixes: Prefixes,
    policy: Policy,
    outputs: VecDeque<Output>,
    stats: Stats,
    load: Load,
    /// Windows still to come of groups whose first ones are here, see [`Company`]; below 0 while others came first.
    awaited: i32,
    /// Sequences whose windows the first stage may take into one call.
    together: usize,
    /// Frames heard so far.
    arrivals: u64,
    /// Rows computed since the engine was last asked to tend to what it has put off; only where it drafts.
    untended: usize,
    /// Calls given out so far.
    calls: u64,
    /// The memory of calls; absent while one is under way.
    buffers: Option<Buffers>,
}

impl StageCore {
    /// A stage that holds nothing.
    #[must_use]
    pub fn new(shape: EngineShape, config: Config) -> Self {
        Self {
            slots: Slots::new(shape.n_slots),
            prefixes: Prefixes::new(config.prefix_bytes),
            shape,
            config,
            sequences: BTreeMap::new(),
            waiting: BTreeMap::new(),
            policy: Policy::default(),
            outputs: VecDeque::new(),
            stats: Stats::default(),
            load: Load::default(),
            awaited: 0,
            together: usize::MAX,
            arrivals: 0,
            untended: 0,
            calls: 0,
            buffers: Some(Buffers::default()),
        }
    }

    /// What its engine can do.
    #[must_use]
    pub const fn shape(&self) -> &EngineShape {
        &self.shape
    }

    /// How it differs from others.
    #[must_use]
    pub const fn config(&self) -> &Config {
        &self.config
    }

    /// Sequences known at once, those included that wait for a slot or for their `Close`. The front opens one only when
    /// a slot should be free, but the `Close` that frees it may be overtaken: twice the slots and a few cover that.
    #[must_use]
    pub const fn max_sequences(&self) -> usize {
        2 * self.shape.n_slots as usize + 16
    }

    /// Sequences known now, at most [`StageCore::max_sequences`].
    #[must_use]
    pub fn n_sequences(&self) -> usize {
        self.sequences.len()
    }

    /// Bytes of prefixes beside the slots: [`Config::prefix_bytes`] at most, but for one that the store gave and nobody has
    /// used yet.
    #[must_use]
    pub const fn prefix_bytes(&self) -> u64 {
        self.prefixes.bytes()
    }

    /// What happened so far.
    #[must_use]
    pub const fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Frames that wait here or are being computed. The core takes whatever it is given; whoever feeds it bounds this.
    #[must_use]
    pub const fn load(&self) -> Load {
        self.load
    }

    /// The next thing to say, in order.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// A frame has arrived from the stage before, or from the front, at `now`.
    pub fn handle_frame(&mut self, frame: Frame, now: Duration) {
        let seq = frame.work.seq();
        self.arrivals += 1;
        self.awaited += frame.company.awaited();
        self.take_in(Item { seq, frame, arrived: now, order: self.arrivals });
    }

    /// A hint has arrived. It may save work or time and changes nothing else; of an unknown sequence it means nothing.
    pub fn handle_hint(&mut self, hint: Hint) {
        match hint {
            Hint::Advance { seq, epoch } => {
                self.tell(seq, |sequence| sequence.newest = sequence.newest.max(epoch));
            }
            Hint::Drop { seq } => self.tell(seq, |sequence| sequence.given_up = true),
            Hint::Together { sequences } => self.together = usize::from(sequences.max(1)),
        }
    }

    /// The store has given a prefix back, or does not have it.
    pub fn handle_fetched(&mut self, prefix: SeqId, key: PrefixKey, blob: Option<Blob>) {
        let is_here = blob.is_some();
        if !self.prefixes.fetched(prefix, key, blob) {
            // Dropped meanwhile: who waits for it asks again, or hears that it is lost.
            return self.wake();
        }
        if is_here {
            self.stats.restored_prefixes += 1;
        } else {
            self.stats.missed_prefixes += 1;
            self.give_up_waiting(prefix);
        }
        self.wake();
    }

    /// The store has taken a prefix, or not.
    pub fn handle_kept(&mut self, prefix: SeqId, keeping: Keeping) {
        let kept = match keeping {
            Keeping::Kept => true,
            Keeping::Failed => false,
            Keeping::Skipped => return,
        };
        self.stats.stored_prefixes += u64::from(kept);
        self.outputs.push_back(Output::Report(Report::Stored(Stored { prefix, kept })));
    }

    fn tell(&mut self, seq: SeqId, hint: impl FnOnce(&mut Sequence)) {
        let Some(sequence) = self.sequences.get_mut(&seq) else { return };
        hint(sequence);
        self.settle(seq);
    }

    fn take_in(&mut self, item: Item) {
        let seq = item.seq;
        if !self.sequences.contains_key(&seq) && !self.admit(&item) {
            return;
        }
        let Some(sequence) = self.sequences.get_mut(&seq) else { return };
        match &item.frame.work {
            Work::Window(window) => sequence.newest = sequence.newest.max(window.epoch),
            Work::Close(_) | Work::Park(_) => sequence.given_up = true,
            Work::Open(_) | Work::Chunk(_) => {}
        }
        self.load = self.load + Load::of(&item.frame);
        sequence.queue.push_back(item);
        self.settle(seq);
    }

    /// Makes room for a sequence's first frame. False if the frame is dealt with already.
    fn admit(&mut self, item: &Item) -> bool {
        let has_room = self.sequences.len() < self.max_sequences();
        let phase = match &item.frame.work {
            Work::Close(_) | Work::Park(_) => {
                self.prefixes.remove(item.seq);
                self.say_closed(item.frame.clone());
                self.wake();
                return false;
            }
            Work::Open(_) if has_room => Phase::Waiting,
            Work::Open(_) => {
                let limit = self.max_sequences() as u32;
                self.say_fault(item.seq, FaultKind::TooManySequences { limit });
                return false;
            }
            Work::Chunk(_) | Work::Window(_) => {
                self.say_fault(item.seq, FaultKind::UnknownSequence);
                if !has_room {
                    return false;
                }
                Phase::Poisoned(None)
            }
        };
        self.sequences.insert(item.seq, Sequence::new(phase, item.order));
        true
    }

    /// Deals with a sequence's frames up to the first that needs the engine, a slot, or the end of the call under way.
    fn settle(&mut self, seq: SeqId) {
        while let Some(sequence) = self.sequences.get_mut(&seq) {
            match sequence.step(&self.shape, self.config.row_dtype) {
                None | Some(Step::Ready) => return,
                Some(Step::Begin) => {
                    if !self.begin(seq) {
                        return;
                    }
                }
                Some(Step::PassOver) => {
                    if let Some(item) = self.drop_first(seq) {
                        self.stats.count_passed_over(&item.frame.work);
                        self.need_no_more(&item.frame.work);
                    }
                }
                Some(Step::Held) => self.pass_held(seq),
                Some(Step::Stale) => {
                    let n_rows = self.drop_first(seq).map_or(0, |item| item.frame.work.tokens().len());
                    self.stats.stale_windows += 1;
                    self.stats.stale_rows += n_rows as u64;
                }
                Some(Step::End) => return self.end(seq),
                Some(Step::Fault(kind)) => self.poison(seq, kind),
            }
        }
    }

    fn drop_first(&mut self, seq: SeqId) -> Option<Item> {
        let item = self.sequences.get_mut(&seq)?.queue.pop_front()?;
        self.load = self.load - Load::of(&item.frame);
        Some(item)
    }

    /// A sequence's `Close` or `Park` is the next of its frames.
    fn end(&mut self, seq: SeqId) {
        let Some(item) = self.drop_first(seq) else { return };
        let Some(sequence) = self.sequences.remove(&seq) else { return };
        self.waiting.remove(&sequence.order);
        self.stats.closed += 1;
        let certain = match &item.frame.work {
            Work::Close(close) => close.inputs,
            Work::Park(park) => park.len,
            _ => Position(0),
        };
        self.stats.wasted_rows += u64::from(sequence.n_beyond(certain));
        if let Some(slot) = sequence.phase.slot() {
            self.slots.release(slot);
        }
        match (&sequence.phase, &item.frame.work) {
            (Phase::Running(running), Work::Park(park)) if running.can_park(park.len, self.shape.rewind) => {
                let store = park.store.filter(|_| self.config.has_store);
                self.prefixes.park(seq, park.len, running.slot, store);
                if park.store.is_some() && store.is_none() {
                    self.handle_kept(seq, Keeping::Failed);
                }
            }
            (Phase::Beginning(slot, Moves { save: Some((prefix, _)), .. }), _) => {
                self.prefixes.give_back(*prefix, *slot);
            }
            _ => {}
        }
        self.say_closed(item.frame);
        // Whatever came behind it speaks of a sequence that is not open.
        for item in sequence.queue {
            self.load = self.load - Load::of(&item.frame);
            self.take_in(item);
        }
        self.wake();
    }

    /// A slot or a prefix may have come free.
    fn wake(&mut self) {
        for seq in self.waiting.values().copied().collect::<Vec<_>>() {
            self.settle(seq);
        }
    }

    fn poison(&mut self, seq: SeqId, kind: FaultKind) {
        if let Some(sequence) = self.sequences.get_mut(&seq) {
            self.waiting.remove(&sequence.order);
            sequence.phase = Phase::Poisoned(sequence.phase.slot());
            self.say_fault(seq, kind);
        }
    }

    fn say_fault(&mut self, seq: SeqId, kind: FaultKind) {
        self.stats.faults += 1;
        tracing::warn!(%seq, "{kind}");
        self.outputs.push_back(Output::Report(Report::Fault(Fault { seq: Some(seq), kind })));
    }

    fn say_closed(&mut self, frame: Frame) {
        let output = if self.shape.is_tail {
            Output::Report(Report::Closed(frame.work.seq()))
        } else {
            Output::Forward(frame)
        };
        self.outputs.push_back(output);
    }
}
