//! A line of cores over toys: links keep a sequence's frames in order and shuffle sequences freely; calls take time.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use protocol::{Frame, Hint, Report, RowDtype, SeqId};
use stage::{Call, Cancel, Config, Engine as _, Interest, Output, Rewind, StageCore};

use crate::toy::{Rng, Toy};

pub(crate) const CONFIG: Config =
    Config { row_dtype: RowDtype::F32, prefix_bytes: 1 << 20, has_store: false };

pub(crate) struct Stage {
    pub(crate) core: StageCore,
    pub(crate) engine: Toy,
    /// On the link towards it.
    arriving: BTreeMap<SeqId, VecDeque<Frame>>,
    hints: Vec<Hint>,
    running: Option<(Call, Interest)>,
    cancel: Cancel,
}

pub(crate) struct Line {
    pub(crate) stages: Vec<Stage>,
    pub(crate) reports: VecDeque<Report>,
    now: Duration,
}

/// Something that the line can do next.
#[derive(Clone, Copy)]
enum Move {
    Deliver(usize, SeqId),
    Hint(usize),
    Start(usize),
    Complete(usize),
}

impl Stage {
    pub(crate) fn new(mut engine: Toy) -> Self {
        let cancel = Cancel::default();
        engine.heed(cancel.clone());
        Self {
            core: StageCore::new(engine.shape().clone(), CONFIG),
            engine,
            arriving: BTreeMap::new(),
            hints: Vec::new(),
            running: None,
            cancel,
        }
    }

    /// Computes until nothing is ready; returns what it said.
    pub(crate) fn settle(&mut self) -> Vec<Output> {
        while let Some(call) = self.core.next_call(Duration::ZERO) {
            let done = call.execute(&mut self.engine);
            self.core.complete(done, &self.engine, Duration::ZERO);
        }
        std::iter::from_fn(|| self.core.poll_output()).collect()
    }

    /// Hears a frame and computes until nothing is ready.
    pub(crate) fn hear(&mut self, frame: Frame) -> Vec<Output> {
        self.core.handle_frame(frame, Duration::ZERO);
        self.settle()
    }
}

impl Line {
    pub(crate) fn new(n_stages: u32, n_slots: u16, max_rows: usize, rewind: Rewind) -> Self {
        let toy = |index| Stage::new(Toy::new(index, n_stages, n_slots, max_rows, rewind));
        Self { stages: (0..n_stages).map(toy).collect(), reports: VecDeque::new(), now: Duration::ZERO }
    }

    pub(crate) fn send(&mut self, frame: Frame) {
        self.stages[0].arriving.entry(frame.work.seq()).or_default().push_back(frame);
    }

    pub(crate) fn hint(&mut self, stage: usize, hint: Hint) {
        self.stages[stage].hints.push(hint);
    }

    fn moves(&self) -> Vec<Move> {
        let mut moves = Vec::new();
        for (i, stage) in self.stages.iter().enumerate() {
            moves.extend(stage.arriving.keys().map(|&seq| Move::Deliver(i, seq)));
            if !stage.hints.is_empty() {
                moves.push(Move::Hint(i));
            }
            moves.push(if stage.running.is_some() { Move::Complete(i) } else { Move::Start(i) });
        }
        moves
    }

    /// Does one thing at random. False if nothing can move any more.
    pub(crate) fn step(&mut self, rng: &mut Rng) -> bool {
        let mut moves = self.moves();
        while !moves.is_empty() {
            let chosen = moves.swap_remove(rng.below(moves.len()));
            self.now += Duration::from_micros(rng.below(500) as u64);
            if self.make(chosen, rng) {
                return true;
            }
        }
        false
    }

    fn make(&mut self, chosen: Move, rng: &mut Rng) -> bool {
        let (Move::Deliver(i, _) | Move::Hint(i) | Move::Start(i) | Move::Complete(i)) = chosen;
        let stage = &mut self.stages[i];
        match chosen {
            Move::Deliver(_, seq) => {
                let queue = stage.arriving.get_mut(&seq).expect("a move over this link");
                let frame = queue.pop_front().expect("links keep no empty queues");
                if queue.is_empty() {
                    stage.arriving.remove(&seq);
                }
                if let Some((_, interest)) = &mut stage.running {
                    interest.note_frame(&frame);
                }
                stage.core.handle_frame(frame, self.now);
            }
            Move::Hint(_) => {
                let at = rng.below(stage.hints.len());
                let hint = stage.hints.swap_remove(at);
                if let Some((_, interest)) = &mut stage.running {
                    interest.note_hint(&hint);
                }
                stage.core.handle_hint(hint);
            }
            Move::Start(_) => {
                let Some(call) = stage.core.next_call(self.now) else { return false };
                let interest = Interest::in_call(&call, stage.core.shape().rewind);
                stage.running = Some((call, interest));
                assert!(stage.core.next_call(self.now).is_none(), "one call at a time");
            }
            Move::Complete(_) => {
                let (call, interest) = stage.running.take().expect("a call under way");
                // Nobody wants it: the engine may have stopped in time, or not.
                stage.cancel.clear();
                if interest.is_gone() && rng.below(2) == 0 {
                    stage.cancel.raise();
                }
                let done = call.execute(&mut stage.engine);
                stage.core.complete(done, &stage.engine, self.now);
            }
        }
        while let Some(output) = self.stages[i].core.poll_output() {
            match output {
                Output::Forward(frame) => {
                    let next = &mut self.stages[i + 1];
                    next.arriving.entry(frame.work.seq()).or_default().push_back(frame);
                }
                Output::Report(report) => self.reports.push_back(report),
                Output::Store(work) => panic!("there is no store: {work:?}"),
            }
        }
        true
    }
}
