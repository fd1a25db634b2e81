//! Links in virtual time: each message takes a random time, messages of one stream never pass each other, those of
//! different streams may. Also the faults of a broken link that the checkers must see.

use std::collections::BTreeMap;
use std::time::Duration;

use protocol::{Frame, Generation, Report, SeqId, Work};

use crate::random::Random;

/// One direction of one link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Link {
    /// Work on its way to this machine. Each sequence is a stream of its own.
    Rows(usize),
    /// Commands and hints on their way to this machine.
    Commands(usize),
    /// Reports of this machine.
    Reports(usize),
}

impl Link {
    /// Both directions of the connection between the front and this machine.
    pub(crate) const fn control(machine: usize) -> [Self; 2] {
        [Self::Commands(machine), Self::Reports(machine)]
    }
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
    /// When the last message of a stream arrives. Every generation has connections of its own.
    arrivals: BTreeMap<(Generation, Link, Option<SeqId>), Duration>,
    /// What takes messages and delivers none, with the generation whose connection it is.
    cut: Vec<(Generation, Link)>,
    /// What delivers nothing before that time.
    stalled: Vec<(Link, Duration)>,
    /// Messages that cut links have taken.
    n_cut: u64,
    /// Messages that had to wait for a link that had stalled.
    n_stalled: u64,
    breakage: Option<Breakage>,
    /// Frames that could be broken and pass before one is.
    until_breakage: u32,
    held_back: Option<(usize, Generation, Frame)>,
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
            cut: Vec::new(),
            stalled: Vec::new(),
            n_cut: 0,
            n_stalled: 0,
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

    pub(crate) const fn n_cut(&self) -> u64 {
        self.n_cut
    }

    pub(crate) const fn n_stalled(&self) -> u64 {
        self.n_stalled
    }

    /// Whether a report arrives. Once one is lost, so is everything else that the tail says about that sequence.
    pub(crate) fn is_heard(&mut self, report: &Report) -> bool {
        let Some(seq) = report.answers() else { return true };
        match self.until_mute {
            Some(0) => (self.until_mute, self.mute, self.n_muted) = (None, Some(seq), self.n_muted + 1),
            Some(n) => self.until_mute = Some(n - 1),
            None => {}
        }
        self.mute != Some(seq)
    }

    /// When a message that leaves now on a generation's connection arrives; never if that is cut.
    pub(crate) fn arrival(
        &mut self,
        (generation, link): (Generation, Link),
        stream: Option<SeqId>,
        now: Duration,
    ) -> Option<Duration> {
        let least = self.delays.least.as_micros() as u32;
        let most = self.delays.most.as_micros() as u32;
        let slower = if self.random.percent(self.delays.stalls) { 10 } else { 1 };
        let mut at = now + self.random.micros(least, most) * slower;
        if self.cut.contains(&(generation, link)) {
            self.n_cut += 1;
            return None;
        }
        if let Some(&(_, until)) =
            self.stalled.iter().find(|&&(stalled, until)| stalled == link && now < until)
        {
            self.n_stalled += 1;
            at = at.max(until);
        }
        let last = self.arrivals.entry((generation, link, stream)).or_default();
        *last = at.max(*last);
        Some(*last)
    }

    /// From now on a generation's connection delivers nothing.
    pub(crate) fn cut(&mut self, generation: Generation, link: Link) {
        self.cut.push((generation, link));
    }

    /// A link delivers nothing before that time.
    pub(crate) fn stall(&mut self, link: Link, until: Duration) {
        self.stalled.push((link, until));
    }

    /// How often a hint arrives: hints may be lost and repeated.
    pub(crate) const fn copies_of_hint(&mut self) -> usize {
        match self.random.between(0, 19) {
            0 => 0,
            1 => 2,
            _ => 1,
        }
    }

    /// From now on every message arrives: what a cut link has lost was missed long ago, if it has lost anything.
    pub(crate) fn calm(&mut self) {
        self.until_mute = None;
        self.breakage = None;
        self.cut.clear();
    }

    /// A new generation has new connections.
    pub(crate) fn reconnect(&mut self) {
        self.held_back = None;
        self.mute = None;
    }

    /// What a link to stage `to` makes of a frame: in good order the frame itself.
    pub(crate) fn pass(&mut self, to: usize, generation: Generation, frame: Frame) -> Vec<Frame> {
        if let Some((link, generation, held)) = self.held_back.take() {
            if link == to && held.work.seq() == frame.work.seq() {
                self.n_broken += 1;
                self.breakage = None;
                return vec![frame, held];
            }
            self.held_back = Some((link, generation, held));
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
            Breakage::Reorder => self.held_back = Some((to, generation, frame)),
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
    pub(crate) const fn release(&mut self) -> Option<(usize, Generation, Frame)> {
        self.held_back.take()
    }
}
