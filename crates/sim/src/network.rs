//! Links in virtual time: each message takes a random time, messages of one stream never pass each other, those of
//! different streams may. Also the faults of a broken link that the checkers must see.

use std::collections::BTreeMap;
use std::time::Duration;

use protocol::{Frame, Report, SeqId, Work};

use crate::random::Random;

/// One direction of one link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Link {
    /// Work on its way to this stage. Each sequence is a stream of its own.
    Rows(usize),
    /// Hints on their way to this stage.
    Hints(usize),
    /// Reports of this stage.
    Reports(usize),
}

/// How long messages take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Delays {
    pub(crate) least: Duration,
    pub(crate) most: Duration,
    /// Percent of the messages that take ten times as long.
    pub(crate) stalls: u32,
}

/// What a broken link does to one frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Breakage {
    /// Delivers a frame with tokens after the next frame of its sequence.
    Reorder,
    /// Loses a frame that cannot be stale, so that the loss must show.
    Lose,
    /// Delivers any frame twice.
    Repeat,
}

impl Breakage {
    fn concerns(self, work: &Work) -> bool {
        match (work, self) {
            (_, Self::Repeat) => true,
            (Work::Window(window), Self::Lose) => !window.run_ahead,
            (Work::Chunk(_) | Work::Window(_), _) => true,
            (Work::Open(_) | Work::Park(_) | Work::Close(_), _) => false,
        }
    }
}

pub(crate) struct Network {
    delays: Delays,
    random: Random,
    /// When the last message of a stream arrives.
    arrivals: BTreeMap<(Link, Option<SeqId>), Duration>,
    breakage: Option<Breakage>,
    /// Frames that could be broken and pass before one is.
    until_breakage: u32,
    held_back: Option<(usize, Frame)>,
    n_broken: u64,
    /// Reports about sequences that still pass before one is lost, if one shall be.
    until_mute: Option<u32>,
    /// About this sequence nothing is heard any more.
    mute: Option<SeqId>,
    n_muted: u64,
}

impl Network {
    pub(crate) const fn new(
        delays: Delays,
        mut random: Random,
        breakage: Option<Breakage>,
        until_mute: Option<u32>,
    ) -> Self {
        let until_breakage = random.between(0, 40);
        Self {
            delays,
            random,
            arrivals: BTreeMap::new(),
            breakage,
            until_breakage,
            held_back: None,
            n_broken: 0,
            until_mute,
            mute: None,
            n_muted: 0,
        }
    }

    pub(crate) const fn n_broken(&self) -> u64 {
        self.n_broken
    }

    pub(crate) const fn n_muted(&self) -> u64 {
        self.n_muted
    }

    /// Whether a report arrives. Once one is lost, so is everything else that the tail says about that sequence.
    pub(crate) fn is_heard(&mut self, report: &Report) -> bool {
        let seq = match report {
            Report::Verdict(verdict) => verdict.seq,
            Report::Progress(progress) => progress.seq,
            Report::Draft(draft) => draft.seq,
            Report::Prompt(part) => part.seq,
            Report::Closed(seq) => *seq,
            Report::State(_)
            | Report::Counters(_)
            | Report::Leaving
            | Report::Notice(_)
            | Report::Stored(_)
            | Report::Fault(_) => return true,
        };
        match self.until_mute {
            Some(0) => (self.until_mute, self.mute, self.n_muted) = (None, Some(seq), self.n_muted + 1),
            Some(n) => self.until_mute = Some(n - 1),
            None => {}
        }
        self.mute != Some(seq)
    }

    /// When a message that leaves now arrives.
    pub(crate) fn arrival(&mut self, link: Link, stream: Option<SeqId>, now: Duration) -> Duration {
        let least = self.delays.least.as_micros() as u32;
        let most = self.delays.most.as_micros() as u32;
        let slower = if self.random.percent(self.delays.stalls) { 10 } else { 1 };
        let at = now + self.random.micros(least, most) * slower;
        let last = self.arrivals.entry((link, stream)).or_default();
        *last = at.max(*last);
        *last
    }

    /// How often a hint arrives: hints may be lost and repeated.
    pub(crate) const fn copies_of_hint(&mut self) -> usize {
        match self.random.between(0, 19) {
            0 => 0,
            1 => 2,
            _ => 1,
        }
    }

    /// From now on every report arrives.
    pub(crate) const fn calm(&mut self) {
        self.until_mute = None;
    }

    /// A new generation has new connections.
    pub(crate) fn reconnect(&mut self) {
        self.arrivals.clear();
        self.held_back = None;
        self.mute = None;
    }

    /// What a link to stage `to` makes of a frame: in good order the frame itself.
    pub(crate) fn pass(&mut self, to: usize, frame: Frame) -> Vec<Frame> {
        if let Some((link, held)) = self.held_back.take() {
            if link == to && held.work.seq() == frame.work.seq() {
                self.n_broken += 1;
                self.breakage = None;
                return vec![frame, held];
            }
            self.held_back = Some((link, held));
            return vec![frame];
        }
        let Some(breakage) = self.breakage.filter(|breakage| breakage.concerns(&frame.work)) else {
            return vec![frame];
        };
        if self.until_breakage > 0 {
            self.until_breakage -= 1;
            return vec![frame];
        }
        match breakage {
            Breakage::Reorder => self.held_back = Some((to, frame)),
            Breakage::Lose => {
                self.n_broken += 1;
                self.breakage = None;
            }
            Breakage::Repeat => {
                self.n_broken += 1;
                self.breakage = None;
                return vec![frame.clone(), frame];
            }
        }
        Vec::new()
    }

    /// Nothing else moves: a frame held back for one that never came goes on in its place.
    pub(crate) const fn release(&mut self) -> Option<(usize, Frame)> {
        self.held_back.take()
    }
}
