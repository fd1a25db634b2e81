//! One machine: its core, its engine, its disk, its place in a line, and its lives.

use std::collections::BTreeMap;
use std::time::Duration;

use ::stage::{Blob, Call, Cancel, Config, Engine as _, EngineShape, Interest, Kept, StageCore};
use protocol::{Close, Frame, Generation, Open, Position, PrefixKey, SeqId, Work};

use super::formation::Place;
use super::{Counts, Happening};
use crate::check::Order;
use crate::known::Known;
use crate::scenario::CallTime;
use crate::toy::{Flaws, Model, ToyEngine};
use crate::watch::Watched;

/// The tenure of who has never worked.
const NEVER: (Generation, Generation) = (Generation(u64::MAX), Generation(0));

pub(super) struct Stage {
    pub(super) core: StageCore,
    pub(super) engine: Watched<ToyEngine>,
    pub(super) time: CallTime,
    /// Of its last assignment.
    pub(super) place: Place,
    /// The last one in which it was assigned: whatever was said before it was said on connections that are gone.
    pub(super) newest: Generation,
    /// Whether it is not ready for its place yet.
    pub(super) is_loading: bool,
    /// How far its clock is ahead.
    pub(super) clock: Duration,
    /// While it does nothing: what has come meanwhile.
    pub(super) pile: Option<Vec<Happening>>,
    /// Whether the front knows that it is not there.
    pub(super) is_missed: bool,
    /// What its store was asked for and has not given yet.
    pub(super) n_reading: u32,
    /// The call under way, and the generation in which it began.
    pub(super) running: Option<(Call, Generation)>,
    /// Who wants its result, and the word to the engine if nobody does.
    pub(super) interest: Interest,
    pub(super) cancel: Cancel,
    /// What outlives the line, and the process.
    pub(super) store: BTreeMap<PrefixKey, Blob>,
    pub(super) order: Order,
    pub(super) known: Known,
    /// Between two lines: what it has kept.
    kept: Option<Kept>,
    /// Since which generation it has forgotten nothing, and up to which it has worked.
    tenure: (Generation, Generation),
    /// Stale windows of the lines that are over.
    n_stale: u64,
    /// How often it has begun anew.
    pub(super) life: u32,
    /// While it dies and until it is back: how much it still says.
    last_words: Option<u32>,
    /// What it is when it begins.
    born: Box<dyn Fn() -> (StageCore, ToyEngine)>,
    is_calm: bool,
}

impl Stage {
    pub(super) fn new(
        model: &Model,
        shape: EngineShape,
        config: Config,
        flaws: Flaws,
        time: CallTime,
    ) -> Self {
        let model = model.clone();
        let cancel = Cancel::default();
        let heeded = cancel.clone();
        let born = move || {
            let mut engine = ToyEngine::new(model.clone(), shape.clone(), flaws.clone());
            engine.heed(heeded.clone());
            (StageCore::new(shape.clone(), config), engine)
        };
        let (core, engine) = born();
        Self {
            core,
            engine: Watched::new(engine),
            time,
            place: Place::default(),
            newest: Generation(0),
            is_loading: false,
            clock: Duration::ZERO,
            pile: None,
            is_missed: false,
            n_reading: 0,
            running: None,
            interest: Interest::default(),
            cancel,
            store: BTreeMap::new(),
            order: Order::default(),
            known: Known::default(),
            kept: None,
            tenure: NEVER,
            n_stale: 0,
            life: 0,
            last_words: None,
            born: Box::new(born),
            is_calm: false,
        }
    }

    /// From now on its engine does not fail.
    pub(super) const fn calm(&mut self) {
        self.is_calm = true;
        self.engine.inner_mut().calm();
    }

    pub(super) const fn is_dead(&self) -> bool {
        self.last_words.is_some()
    }

    pub(super) const fn is_frozen(&self) -> bool {
        self.pile.is_some()
    }

    /// Its process, or the next one, is there.
    pub(super) const fn lives(&mut self) {
        self.last_words = None;
    }

    /// Its process is about to end.
    pub(super) const fn dies(&mut self, says: u32) {
        self.last_words = Some(says);
    }

    /// Whether what it says leaves it.
    pub(super) const fn speaks(&mut self) -> bool {
        match &mut self.last_words {
            None => true,
            Some(0) => false,
            Some(left) => {
                *left -= 1;
                true
            }
        }
    }

    /// Adds what is counted of its life.
    pub(super) fn add_to(&self, counts: &mut Counts) {
        counts.dropped += self.n_stale + self.core.stats().stale_windows;
        counts.spoiled_calls += self.engine.inner().spoiled_calls();
        counts.drafted += self.engine.inner().drafted();
    }

    /// Its process ends, and another one begins with nothing but the disk, if that.
    pub(super) fn begins_anew(&mut self, forgets: bool) {
        self.takes_other_engine();
        self.last_words = Some(0);
        self.is_loading = false;
        self.place = Place::default();
        self.clock = Duration::ZERO;
        if forgets {
            self.store.clear();
        }
    }

    /// What it had in memory is gone, and what was under way with it.
    fn takes_other_engine(&mut self) {
        let (core, mut engine) = (self.born)();
        if self.is_calm {
            engine.calm();
        }
        (self.core, self.engine, self.running) = (core, Watched::new(engine), None);
        self.kept = None;
        self.tenure = NEVER;
        (self.order, self.known) = (Order::default(), Known::default());
        self.n_reading = 0;
        self.life += 1;
    }

    /// Gets a place in a new line, for which it is not ready yet.
    pub(super) fn assign(&mut self, place: Place) {
        if place.is_other {
            self.takes_other_engine();
        }
        self.leave(self.place.generation);
        (self.place, self.newest, self.is_loading) = (place, place.generation, true);
    }

    /// This generation is over for it; another one goes on.
    pub(super) fn leave(&mut self, generation: Generation) {
        if generation != self.place.generation {
            return;
        }
        self.place = Place { generation: Generation(0), downstream: None, ..self.place };
        self.is_loading = false;
        self.interest.note_end();
        self.order = Order::default();
        self.known = Known::default();
        if self.running.is_none() && generation != Generation(0) {
            self.rest();
        }
    }

    /// Its line is over, and no call is under way any more: what it has computed stays. An engine that cannot forget the rest
    /// makes room for another.
    pub(super) fn rest(&mut self) {
        let core = std::mem::replace(&mut self.core, (self.born)().0);
        self.n_stale += core.stats().stale_windows;
        let mut kept = core.retire();
        if kept.tidy(&mut self.engine).is_ok() {
            self.kept = Some(kept);
        } else {
            self.takes_other_engine();
        }
    }

    /// Begins to work in its new place. Whether with what it held before: only if that is of the right line, and not if it
    /// shall forget.
    pub(super) fn takes_up_work(&mut self, forgets: bool) -> bool {
        let (since, last) = self.tenure;
        let is_of_use = self.place.keep.is_some_and(|keep| since <= keep && keep <= last);
        let kept = self.kept.take();
        let generation = self.place.generation;
        self.tenure.1 = generation;
        if let Some(kept) = kept {
            if is_of_use && !forgets {
                self.core = StageCore::resume(self.core.shape().clone(), *self.core.config(), kept);
                return true;
            }
            if kept.forget(&mut self.engine).is_err() {
                self.takes_other_engine();
            }
        }
        self.tenure = (generation, generation);
        false
    }

    /// What is left of sequences that are over: frames that wait, or slots that are not free for as many new ones.
    pub(super) fn holds(&mut self, now: Duration) -> Option<String> {
        let frames = self.core.load().frames;
        if frames > 0 {
            return Some(format!("{frames} frames"));
        }
        let n_slots = self.core.shape().n_slots;
        let before = self.core.stats().opened;
        for i in 0..u64::from(n_slots) {
            self.core.handle_frame(Frame::new(Work::Open(Box::new(fresh(SeqId(u64::MAX - i))))), now);
        }
        let opened = self.core.stats().opened - before;
        for i in 0..u64::from(n_slots) {
            self.core.handle_frame(
                Frame::new(Work::Close(Close { seq: SeqId(u64::MAX - i), inputs: Position(0) })),
                now,
            );
        }
        let taken = u64::from(n_slots) - opened;
        (taken > 0).then(|| format!("{taken} of {n_slots} slots"))
    }
}

fn fresh(seq: SeqId) -> Open {
    Open {
        seq,
        start: Position(0),
        reuse: None,
        held: None,
        seed: 0,
        choice: 0,
        sampler: protocol::SamplerParams::default(),
        limit: Position(2),
        ignore_eos: false,
        top_logprobs: None,
        of_prompt: None,
        history: Vec::new(),
    }
}
