//! The journal of one request: what happened to it on the line, and when, for whoever traces it.
//!
//! Owns: which moments are noted, and how many. Nothing depends on it, and only requests whose callers ask for one have
//! one. Never what was said: neither tokens nor text.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use protocol::{LayerRange, Report, StageTiming, Work};

use crate::Event;

/// A journal that the line writes while its owner waits. Read it when the request is over.
pub type SharedJournal = Arc<Mutex<Journal>>;

/// Pieces of work that one journal holds: a thousand windows are a long answer, and some 100 KiB. More are only counted.
pub const MAX_PIECES: usize = 1024;
/// Times on the line that one journal holds. A request that was interrupted so often is no longer worth a close look.
pub const MAX_STAYS: usize = 16;

/// See the module. All times but `origin` are since the front's start.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Journal {
    /// The front's start, by this process's clock.
    pub origin: Option<Instant>,
    /// When the line took the request; absent if it refused it.
    pub submitted: Option<Duration>,
    /// The stages that it last ran on, stage 0 first.
    pub stages: Vec<StageSeen>,
    /// Its times on the line: one, unless it was interrupted.
    pub stays: Vec<Stay>,
    /// Its last event, and when.
    pub ended: Option<(Duration, Event)>,
    /// Pieces of work that there was no room for.
    pub left_out: u32,
    n_pieces: usize,
}

/// A stage as a traced request met it.
#[derive(Clone, Debug, PartialEq)]
pub struct StageSeen {
    /// `host:port`, if it has one.
    pub address: Option<String>,
    /// Its layers.
    pub layers: LayerRange,
    /// Whether it lives in the front's process.
    pub is_local: bool,
    /// Round trip of the front's heartbeat to it.
    pub rtt: Option<Duration>,
}

/// One time on the line, from the sequence's `Open` until it is given up, parked or closed.
#[derive(Clone, Debug, PartialEq)]
pub struct Stay {
    /// When a slot was free for it.
    pub opened: Duration,
    /// Tokens taken over from a prefix.
    pub cached: u32,
    /// What was sent, oldest first.
    pub pieces: Vec<Piece>,
    /// When it ended.
    pub over: Option<Duration>,
}

/// A chunk or a window.
#[derive(Clone, Debug, PartialEq)]
pub struct Piece {
    /// Which one.
    pub name: PieceName,
    /// Its tokens.
    pub rows: u32,
    /// When it left the front.
    pub sent: Duration,
    /// What became of it.
    pub fate: Fate,
}

/// How reports name a piece of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PieceName {
    /// A piece of the prompt.
    Chunk {
        /// One past its last position.
        end: u32,
    },
    /// A window.
    Window {
        /// Its number within the sequence.
        window: u32,
        /// The period in which it was sent.
        epoch: u32,
    },
}

/// What became of a piece of work.
#[derive(Clone, Debug, PartialEq)]
pub enum Fate {
    /// Nobody has said anything yet.
    UnderWay,
    /// It came round.
    Back {
        /// When.
        at: Duration,
        /// Tokens that it brought; none for a chunk.
        tokens: u32,
        /// What each stage measured, stage 0 first.
        timings: Vec<StageTiming>,
    },
    /// A contradiction, or the end of the stay, left it without an answer.
    Gone {
        /// When the front knew.
        at: Duration,
    },
}

impl Journal {
    /// The line takes the request.
    pub const fn submit(&mut self, origin: Instant, now: Duration) {
        self.origin = Some(origin);
        self.submitted = Some(now);
    }

    /// Work of the request leaves the front; `stages` says on what it runs, and is asked when a sequence begins.
    pub fn sent(&mut self, work: &Work, stages: impl FnOnce() -> Vec<StageSeen>, now: Duration) {
        let rows = work.tokens().len() as u32;
        match work {
            Work::Open(open) => {
                self.over(now);
                if self.stays.len() < MAX_STAYS {
                    self.stages = stages();
                    self.stays.push(Stay {
                        opened: now,
                        cached: open.start.0,
                        pieces: Vec::new(),
                        over: None,
                    });
                }
            }
            Work::Chunk(chunk) => {
                self.add(PieceName::Chunk { end: chunk.base.0.saturating_add(rows) }, rows, now);
            }
            Work::Window(window) => {
                let epoch = window.epoch.0;
                self.give_up(now, |name| matches!(name, PieceName::Window { epoch: old, .. } if old < epoch));
                self.add(PieceName::Window { window: window.window.0, epoch }, rows, now);
            }
            Work::Park(_) | Work::Close(_) => self.over(now),
        }
    }

    /// A report about the request has come.
    pub fn heard(&mut self, report: &Report, now: Duration) {
        let (tokens, timings) = match report {
            Report::Verdict(verdict) => (verdict.tokens.len() as u32, &verdict.timings),
            Report::Progress(progress) => (0, &progress.timings),
            Report::State(_)
            | Report::Closed(_)
            | Report::Fault(_)
            | Report::Counters(_)
            | Report::Leaving
            | Report::Notice(_)
            | Report::Stored(_)
            | Report::Draft(_)
            | Report::Prompt(_) => return,
        };
        let is_it = |name| match (report, name) {
            (Report::Verdict(verdict), PieceName::Window { window, .. }) => window == verdict.window.0,
            (Report::Progress(progress), PieceName::Chunk { end }) => end == progress.next.0,
            _ => false,
        };
        let answered = self.under_way().find(|piece| is_it(piece.name));
        if let Some(piece) = answered {
            piece.fate = Fate::Back { at: now, tokens, timings: timings.clone() };
        }
    }

    /// The caller hears something.
    pub fn event(&mut self, event: &Event, now: Duration) {
        if matches!(event, Event::Done { .. } | Event::Failed(_)) {
            self.over(now);
            self.ended = Some((now, event.clone()));
        }
    }

    /// Its time on the line ends, for good or not.
    pub fn over(&mut self, now: Duration) {
        self.give_up(now, |_| true);
        if let Some(stay) = self.stays.last_mut() {
            stay.over.get_or_insert(now);
        }
    }

    fn add(&mut self, name: PieceName, rows: u32, now: Duration) {
        let stay = self.stays.last_mut().filter(|stay| stay.over.is_none());
        match stay.filter(|_| self.n_pieces < MAX_PIECES) {
            Some(stay) => {
                self.n_pieces += 1;
                stay.pieces.push(Piece { name, rows, sent: now, fate: Fate::UnderWay });
            }
            None => self.left_out += 1,
        }
    }

    fn give_up(&mut self, now: Duration, is_it: impl Fn(PieceName) -> bool) {
        for piece in self.under_way().filter(|piece| is_it(piece.name)) {
            piece.fate = Fate::Gone { at: now };
        }
    }

    /// What is under way, newest first. What comes round comes in order, so nothing is before something that has.
    fn under_way(&mut self) -> impl Iterator<Item = &mut Piece> {
        let pieces = self.stays.last_mut().into_iter().flat_map(|stay| stay.pieces.iter_mut().rev());
        pieces
            .take_while(|piece| !matches!(piece.fate, Fate::Back { .. }))
            .filter(|piece| matches!(piece.fate, Fate::UnderWay))
    }
}

#[cfg(test)]
mod tests {
    use protocol::{
        Chunk, Close, Company, Epoch, Open, Position, Progress, SamplerParams, SeqId, Token, Verdict, Window,
        WindowId,
    };

    use super::*;
    use crate::{Finish, Timings};

    const SEQ: SeqId = SeqId(3);

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    fn open() -> Work {
        Work::Open(Box::new(Open {
            of_prompt: None,
            seq: SEQ,
            start: Position(2),
            reuse: None,
            held: None,
            seed: 0,
            choice: 0,
            sampler: SamplerParams::default(),
            limit: Position(100),
            ignore_eos: false,
            top_logprobs: None,
            history: Vec::new(),
        }))
    }

    fn chunk(base: u32) -> Work {
        Work::Chunk(Chunk { seq: SEQ, base: Position(base), tokens: vec![Token(1); 4], follows: None })
    }

    fn window(number: u32, epoch: u32) -> Work {
        Work::Window(Window {
            seq: SEQ,
            epoch: Epoch(epoch),
            window: WindowId(number),
            base: Position(10),
            tokens: vec![Token(1); 2],
            run_ahead: false,
            want_draft: None,
        })
    }

    fn timings() -> Vec<StageTiming> {
        vec![StageTiming { queue_us: 1, compute_us: 2, batch_rows: 3 }]
    }

    fn verdict(number: u32) -> Report {
        Report::Verdict(Box::new(Verdict {
            seq: SEQ,
            epoch: Epoch(0),
            window: WindowId(number),
            base: Position(10),
            tokens: vec![Token(7)],
            ended: None,
            logprobs: Vec::new(),
            mu: None,
            timings: timings(),
            company: Company::Alone,
            drafts: false,
        }))
    }

    fn sent(journal: &mut Journal, work: &[Work], now: u64) {
        work.iter().for_each(|work| journal.sent(work, Vec::new, ms(now)));
    }

    fn fates(journal: &Journal) -> Vec<(u64, String)> {
        let pieces = journal.stays.iter().flat_map(|stay| &stay.pieces);
        let fate = |piece: &Piece| match &piece.fate {
            Fate::UnderWay => "under way".to_owned(),
            Fate::Back { at, tokens, timings } => format!("back {at:?} {tokens} {}", timings.len()),
            Fate::Gone { at } => format!("gone {at:?}"),
        };
        pieces.map(|piece| (piece.sent.as_millis() as u64, fate(piece))).collect()
    }

    #[test]
    fn what_comes_round_is_noted_where_it_left() {
        let mut journal = Journal::default();
        sent(&mut journal, &[open(), chunk(2), chunk(6), window(0, 0)], 1);
        let progress =
            |next| Report::Progress(Progress { seq: SEQ, next: Position(next), timings: timings() });
        journal.heard(&progress(6), ms(2));
        journal.heard(&progress(10), ms(3));
        journal.heard(&verdict(0), ms(4));
        let expected = ["back 2ms 0 1", "back 3ms 0 1", "back 4ms 1 1"];
        assert_eq!(fates(&journal), expected.map(|fate| (1, fate.to_owned())));
        assert_eq!((journal.stays[0].cached, journal.stays[0].over), (2, None));
    }

    #[test]
    fn a_new_epoch_leaves_older_windows_behind() {
        let mut journal = Journal::default();
        sent(&mut journal, &[open(), window(0, 0), window(1, 0), window(2, 0)], 1);
        journal.heard(&verdict(0), ms(5));
        sent(&mut journal, &[window(3, 1)], 5);
        let fates = fates(&journal);
        let told: Vec<&str> = fates.iter().map(|(_, fate)| fate.as_str()).collect();
        assert_eq!(told, ["back 5ms 1 1", "gone 5ms", "gone 5ms", "under way"]);
    }

    #[test]
    fn the_end_is_noted_once_and_ends_what_is_under_way() {
        let mut journal = Journal::default();
        sent(&mut journal, &[open(), window(0, 0)], 1);
        sent(&mut journal, &[Work::Close(Close { seq: SEQ, inputs: Position(1) })], 2);
        let done = Event::Done { finish: Finish::Cancelled, timings: Timings::default() };
        journal.event(&Event::Started { cached: 0, queued: ms(1) }, ms(2));
        journal.event(&done, ms(3));
        journal.heard(&verdict(0), ms(4));
        assert_eq!(fates(&journal), [(1, "gone 2ms".to_owned())]);
        assert_eq!((journal.stays[0].over, journal.ended), (Some(ms(2)), Some((ms(3), done))));
    }

    #[test]
    fn an_interrupted_request_stays_again() {
        let mut journal = Journal::default();
        sent(&mut journal, &[open(), window(0, 0)], 1);
        journal.over(ms(2));
        sent(&mut journal, &[open(), window(0, 0)], 9);
        journal.heard(&verdict(0), ms(10));
        assert_eq!(fates(&journal), [(1, "gone 2ms".to_owned()), (9, "back 10ms 1 1".to_owned())]);
        assert_eq!((journal.stays[0].over, journal.stays[1].opened), (Some(ms(2)), ms(9)));
    }

    #[test]
    fn a_journal_is_bounded() {
        let mut journal = Journal::default();
        sent(&mut journal, &[open()], 0);
        for number in 0..MAX_PIECES as u32 + 7 {
            sent(&mut journal, &[window(number, 0)], 1);
        }
        assert_eq!((fates(&journal).len(), journal.left_out), (MAX_PIECES, 7));
        for _ in 0..2 * MAX_STAYS {
            sent(&mut journal, &[open(), window(0, 0)], 2);
        }
        assert_eq!(journal.stays.len(), MAX_STAYS);
        assert_eq!(journal.left_out, 7 + 2 * MAX_STAYS as u32);
    }
}
