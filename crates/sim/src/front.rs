//! The front's side of a simulated line: one that drives the scheduler, and one that drives pipelines itself, with
//! any width, depth and guesses.

mod guesses;
mod proposals;
mod requests;
mod turns;

pub(crate) use guesses::{Guesses, Reach};
pub(crate) use requests::Requests;

use std::time::Duration;

use protocol::{Frame, Hint, Report, StageIndex};

use crate::check::{Stories, Violation};

/// What a front sends down the line.
#[derive(Debug)]
pub(crate) enum Sent {
    /// On the link to stage 0.
    Work(Frame),
    /// To every stage.
    Hint(Hint),
}

/// How often guessing happened; the tests look whether it happened at all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Guessed {
    pub(crate) windows: u64,
    pub(crate) stale_windows: u64,
    pub(crate) proposed: u64,
    pub(crate) accepted: u64,
    /// Proposals with tokens outside the vocabulary.
    pub(crate) refused: u64,
    /// Prompt tokens taken over from prefixes.
    pub(crate) reused_tokens: u64,
    /// Of those, from sequences that were still running.
    pub(crate) shared_tokens: u64,
    pub(crate) partly_reused_tokens: u64,
    /// Of those, from what the stages had stored.
    pub(crate) restored_tokens: u64,
    /// Prefixes that a stage did not have.
    pub(crate) lost_prefixes: u64,
    pub(crate) preempted: u64,
    pub(crate) resumed: u64,
}

/// What a front waits for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct UnderWay {
    /// That a prompt passes through.
    pub(crate) prefilling: bool,
    /// That a sequence's memory is free.
    pub(crate) closing: bool,
}

/// What a front thinks of its line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Judgement {
    Fine,
    /// It owes an answer for too long and must be formed anew.
    LineIsSilent,
    /// Frames came to a stage as they were not sent, and it must be formed anew.
    LineIsDisordered,
}

/// A front, driven by the line's loop.
pub(crate) trait Front {
    /// The line can be used (again). All its stages but the first `lost_by` still hold what they held when it was up last; if
    /// none is given, no stage does.
    fn line_up(&mut self, lost_by: Option<u16>, now: Duration);

    /// So many stages share the layers from the next line on, in another way, which has this name.
    fn reshape(&mut self, n_stages: u16, line: [u8; 32]);

    /// The line is gone.
    fn line_lost(&mut self, now: Duration);

    /// A stage speaks. An error is a report that no honest stage sends.
    fn handle_report(&mut self, from: StageIndex, report: Report, now: Duration)
    -> Result<Judgement, String>;

    /// The time has come that [`Front::next_wake`] named. What it thinks of the line.
    fn wake(&mut self, now: Duration) -> Judgement;

    /// When something is due, if nothing happens before.
    fn next_wake(&self) -> Option<Duration>;

    /// The next thing to send.
    fn poll_sent(&mut self) -> Option<Sent>;

    fn stories(&mut self) -> &mut Stories;

    fn guessed(&self) -> Guessed;

    /// What it did against its own rules, since the last time.
    fn misdeeds(&mut self) -> Vec<Violation>;

    fn under_way(&self) -> UnderWay;

    /// Sequences whose memory the front believes in use.
    fn n_sequences(&self) -> usize;
}
