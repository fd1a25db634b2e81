//! What must hold in every run, and the checkers that watch for it.
//!
//! [`Stories`] watches requests from the front's side, [`Order`] the frames that arrive at one stage.

use std::collections::BTreeMap;
use std::time::Duration;

use protocol::{End, Epoch, Found, Position, SeqId, StageIndex, Token, WindowId, Work};

use crate::prompts::Told;

/// Something that must never happen.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// An answer that differs from decoding one token after another.
    #[error("request {request}: token {index} is {got}, sequential decoding gives {expected:?}")]
    WrongToken {
        /// Which request.
        request: usize,
        /// Index in the answer.
        index: usize,
        /// The token.
        got: Token,
        /// What it should be; nothing behind the end.
        expected: Option<Token>,
    },
    /// Something about a prompt that differs from what one token after another gives.
    #[error("request {request}: part {part} of what was wanted of its prompt is wrong")]
    WrongPrompt {
        /// Which request.
        request: usize,
        /// Which part, from 1.
        part: u32,
    },
    /// An answer that ended too early, or for another reason.
    #[error("request {request} ended with {ending:?} after {n_tokens} of {expected} tokens")]
    WrongEnd {
        /// Which request.
        request: usize,
        /// How it ended.
        ending: Ending,
        /// Tokens until then.
        n_tokens: usize,
        /// Tokens of sequential decoding.
        expected: usize,
    },
    /// An event of a request after its end, or before its start.
    #[error("request {request}: {event} out of turn")]
    OutOfTurn {
        /// Which request.
        request: usize,
        /// Which event.
        event: &'static str,
    },
    /// A request that never ended.
    #[error("request {request} never ended; it has {n_tokens} tokens")]
    NeverEnded {
        /// Which request.
        request: usize,
        /// Tokens until then.
        n_tokens: usize,
    },
    /// The front found a report impossible.
    #[error("the front refused a report: {reason}")]
    ReportRefused {
        /// Why.
        reason: String,
    },
    /// A stage reported a fault.
    #[error("stage {stage} reported a fault: {reason}")]
    StageFault {
        /// Which stage.
        stage: StageIndex,
        /// What it said.
        reason: String,
    },
    /// A stage asked its engine for what no engine promises.
    #[error("stage {stage} called its engine with {what}")]
    Call {
        /// Which stage.
        stage: StageIndex,
        /// What was wrong.
        what: String,
    },
    /// Frames of one sequence that arrived in an order that the front never gave.
    #[error("stage {stage}, sequence {seq}: {what}")]
    Order {
        /// Which stage.
        stage: StageIndex,
        /// Which sequence.
        seq: SeqId,
        /// What was wrong.
        what: String,
    },
    /// A stage computed what it knew to be in vain.
    #[error("stage {stage} computed {what}")]
    InVain {
        /// Which stage.
        stage: StageIndex,
        /// What it computed.
        what: String,
    },
    /// Memory in use when no request was left.
    #[error("stage {stage} still holds {what}")]
    Held {
        /// Which stage.
        stage: StageIndex,
        /// What it holds.
        what: String,
    },
    /// The front kept something for requests that had all ended.
    #[error("the front still holds {n_sequences} sequences")]
    FrontHeld {
        /// How many.
        n_sequences: usize,
    },
    /// More was held or waited than may.
    #[error("{what}")]
    Budget {
        /// What, and how much of it.
        what: String,
    },
    /// A client had nothing running, and others were served in its place.
    #[error("request {request} of client {client} waited while client {other} was served {turns} times")]
    Starved {
        /// Which request waited.
        request: usize,
        /// Whose it is.
        client: u64,
        /// Who was served.
        other: u64,
        /// How often.
        turns: u32,
    },
    /// A request that had run already waited for too long, and another one was served.
    #[error("request {request} was interrupted {waited:?} ago, and request {other} went before it")]
    Overtaken {
        /// Which request waited.
        request: usize,
        /// How long.
        waited: Duration,
        /// Who was served.
        other: usize,
    },
    /// Nothing was lost that makes a line silent, and yet the front gave it up for its silence.
    #[error("the line was given up, and nobody was lost")]
    GivenUp,
    /// A message that its receiver could not read.
    #[error("a message was not understood: {reason}")]
    Undecodable {
        /// The decoder's words.
        reason: String,
    },
    /// More events than any run needs: something goes in circles.
    #[error("no end after {n_events} events")]
    Endless {
        /// Events until then.
        n_events: u64,
    },
}

/// How a request ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ending {
    /// By itself.
    Done(End),
    /// By its caller.
    Cancelled,
    /// With the line.
    LineLost,
    /// In the queue, by its deadline or for somebody else.
    TurnedAway,
    /// With any other reason.
    Failed(String),
}

/// What every request is told, compared with what it should be told.
#[derive(Debug, Default)]
pub(crate) struct Stories {
    stories: Vec<Story>,
    line_is_lost: bool,
    violations: Vec<Violation>,
}

/// What a request may be told.
#[derive(Debug)]
pub(crate) struct Expected {
    /// What is wanted of its prompt.
    pub(crate) told: Told,
    /// Of sequential decoding.
    pub(crate) tokens: Vec<Token>,
    pub(crate) end: End,
    /// Whether its tail refuses it: it fails before it has any token.
    pub(crate) is_refused: bool,
    /// Whether it may fail at any time, because engines do.
    pub(crate) may_fail: bool,
    /// Whether it may fail with the line: it does not wait for the next one as long as that takes.
    pub(crate) may_be_lost: bool,
    /// Whether it comes when nothing goes wrong any more, and has time: then it must be answered.
    pub(crate) is_late: bool,
}

#[derive(Debug)]
struct Story {
    expected: Expected,
    told: Told,
    n_parts: u32,
    got: Vec<Token>,
    stage: Stage,
    cancelled: bool,
    interrupted: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    New,
    Waiting,
    Running,
    Over,
}

impl Stories {
    pub(crate) fn new(expected: impl IntoIterator<Item = Expected>) -> Self {
        let story = |expected| Story {
            expected,
            told: Told::default(),
            n_parts: 0,
            got: Vec::new(),
            stage: Stage::New,
            cancelled: false,
            interrupted: false,
        };
        Self {
            stories: expected.into_iter().map(story).collect(),
            line_is_lost: false,
            violations: Vec::new(),
        }
    }

    pub(crate) fn expected(&self, request: usize) -> &[Token] {
        &self.stories[request].expected.tokens
    }

    pub(crate) fn accepted(&mut self, request: usize) {
        self.step(request, "acceptance", &[Stage::New], Stage::Waiting);
        self.stories[request].interrupted = self.line_is_lost;
    }

    pub(crate) fn started(&mut self, request: usize) {
        // It may begin once more, as long as nobody has heard a token: with a prefix that a stage had lost.
        let story = &self.stories[request];
        let is_silent = story.got.is_empty() && story.told.is_empty();
        let from: &[Stage] = if is_silent { &[Stage::Waiting, Stage::Running] } else { &[] };
        self.step(request, "start", from, Stage::Running);
    }

    pub(crate) fn cancelled(&mut self, request: usize) {
        self.stories[request].cancelled = true;
    }

    /// The line was lost: whatever runs may fail, and what comes meanwhile.
    pub(crate) fn interrupted(&mut self) {
        self.line_is_lost = true;
        for story in self.stories.iter_mut().filter(|story| story.stage == Stage::Running) {
            story.interrupted = true;
        }
    }

    /// A line is there.
    pub(crate) fn healed(&mut self) {
        self.line_is_lost = false;
    }

    pub(crate) fn found(&mut self, request: usize, found: Found) {
        let from: &[Stage] = if self.stories[request].got.is_empty() { &[Stage::Running] } else { &[] };
        self.step(request, "something about the prompt", from, Stage::Running);
        let story = &mut self.stories[request];
        story.told.hear(found);
        story.n_parts += 1;
        if story.expected.is_refused || !story.told.begins(&story.expected.told) {
            self.violations.push(Violation::WrongPrompt { request, part: story.n_parts });
        }
    }

    pub(crate) fn tokens(&mut self, request: usize, tokens: &[Token]) {
        self.step(request, "tokens", &[Stage::Running], Stage::Running);
        let story = &mut self.stories[request];
        for &got in tokens {
            let index = story.got.len();
            let expected = story.expected.tokens.get(index).copied().filter(|_| !story.expected.is_refused);
            if expected != Some(got) {
                self.violations.push(Violation::WrongToken { request, index, got, expected });
            }
            story.got.push(got);
        }
    }

    pub(crate) fn ended(&mut self, request: usize, ending: Ending) {
        let is_queued = self.stories[request].stage == Stage::Waiting;
        self.step(request, "end", &[Stage::Waiting, Stage::Running], Stage::Over);
        let story = &self.stories[request];
        let is_right = match &ending {
            Ending::Done(end) => {
                let expected = &story.expected;
                story.got.len() == expected.tokens.len()
                    && *end == expected.end
                    && story.told == expected.told
            }
            Ending::Cancelled => story.cancelled,
            Ending::LineLost => story.interrupted && story.expected.may_be_lost,
            Ending::TurnedAway => is_queued,
            Ending::Failed(_) => story.expected.is_refused || story.expected.may_fail,
        };
        let is_late = story.expected.is_late && !matches!(ending, Ending::Done(_));
        if !is_right || is_late {
            let (n_tokens, expected) = (story.got.len(), story.expected.tokens.len());
            self.violations.push(Violation::WrongEnd { request, ending, n_tokens, expected });
        }
    }

    pub(crate) fn n_tokens(&self) -> u64 {
        self.stories.iter().map(|story| story.got.len() as u64).sum()
    }

    pub(crate) fn n_prompt_parts(&self) -> u64 {
        self.stories.iter().map(|story| u64::from(story.n_parts)).sum()
    }

    /// Everything that was wrong, now that nothing can happen any more.
    pub(crate) fn conclude(&mut self) -> Vec<Violation> {
        let open = self.stories.iter().enumerate().filter(|(_, story)| story.stage != Stage::Over);
        let never_ended =
            open.map(|(request, story)| Violation::NeverEnded { request, n_tokens: story.got.len() });
        self.violations.extend(never_ended.collect::<Vec<_>>());
        std::mem::take(&mut self.violations)
    }

    fn step(&mut self, request: usize, event: &'static str, from: &[Stage], to: Stage) {
        let story = &mut self.stories[request];
        if !from.contains(&story.stage) {
            self.violations.push(Violation::OutOfTurn { request, event });
        }
        story.stage = to;
    }
}

/// The order in which one stage hears of each sequence.
#[derive(Debug, Default)]
pub(crate) struct Order {
    sequences: BTreeMap<SeqId, Heard>,
}

#[derive(Clone, Copy, Debug)]
struct Heard {
    /// The position at which the next chunk, or the next window of the same epoch, begins.
    next: Position,
    /// Of the last window.
    window: Option<(Epoch, WindowId)>,
    is_parked: bool,
    is_closed: bool,
}

impl Order {
    /// A frame arrives. Windows of one epoch must tile the positions, epochs and windows must never go back.
    pub(crate) fn check(&mut self, work: &Work) -> Result<(), String> {
        let seq = work.seq();
        if let Work::Open(open) = work {
            let heard = Heard { next: open.start, window: None, is_parked: false, is_closed: false };
            return match self.sequences.insert(seq, heard) {
                None => Ok(()),
                Some(_) => Err("opened twice".into()),
            };
        }
        if matches!(work, Work::Close(_)) && !self.sequences.contains_key(&seq) {
            // The stages above were told to drop the sequence before they passed its `Open` on.
            let heard = Heard { next: Position(0), window: None, is_parked: false, is_closed: true };
            self.sequences.insert(seq, heard);
            return Ok(());
        }
        let heard = self.sequences.get_mut(&seq).ok_or("not open yet")?;
        if heard.is_closed {
            return Err("more after its close".into());
        }
        if heard.is_parked && !matches!(work, Work::Close(_)) {
            return Err("more than its close after it was parked".into());
        }
        match work {
            Work::Park(_) => {
                heard.is_parked = true;
                Ok(())
            }
            Work::Chunk(chunk) => heard.chunk(chunk.base, chunk.tokens.len()),
            Work::Window(window) => {
                heard.window(window.base, window.tokens.len(), (window.epoch, window.window))
            }
            Work::Close(_) => {
                heard.is_closed = true;
                Ok(())
            }
            Work::Open(_) => Err("work that no front sends".into()),
        }
    }
}

impl Heard {
    fn chunk(&mut self, base: Position, n_tokens: usize) -> Result<(), String> {
        if self.window.is_some() {
            return Err(format!("chunk at {base} after a window"));
        }
        let expected = std::mem::replace(&mut self.next, base.plus(n_tokens));
        if base == expected { Ok(()) } else { Err(format!("chunk at {base}, expected {expected}")) }
    }

    fn window(&mut self, base: Position, n_tokens: usize, id: (Epoch, WindowId)) -> Result<(), String> {
        let expected = std::mem::replace(&mut self.next, base.plus(n_tokens));
        let last = self.window.replace(id);
        let (epoch, window) = id;
        match last {
            Some((before, _)) if epoch < before => {
                Err(format!("window of epoch {epoch} after epoch {before}"))
            }
            Some((_, before)) if window <= before => Err(format!("window {window} after window {before}")),
            Some((before, _)) if epoch > before && base <= expected => Ok(()),
            Some((before, _)) if epoch > before => Err(format!("epoch {epoch} at {base}, beyond {expected}")),
            _ if base != expected => Err(format!("window at {base}, but the last one ends at {expected}")),
            _ => Ok(()),
        }
    }
}
