//! The front's own requests: one window each, to see that the line answers and to learn how long a width takes; and
//! echoes, which show that it lives and cost next to nothing.

use std::time::Duration;

use protocol::{Close, Position, SamplerParams, SeqId, Token, Work};
use spec::{Filler, Sources, Speculate};

use crate::{Refusal, Request, RequestId, Scheduler};

/// Probes that teach nothing before no more are wanted: stages may share a probe's call with a client that came
/// meanwhile, but that they never say how long they took would be their fault.
const MOST_VAIN: u32 = 8;

impl Scheduler {
    /// Sends a token of the front's own around the line, to see that one passes. Where guesses are wanted its window
    /// has a width whose time nobody knows yet, so that the controller knows what it chooses from before the first
    /// client comes: see [`Scheduler::wants_probe`]. It ends with the first verdict.
    ///
    /// # Errors
    /// As [`Scheduler::submit`].
    pub fn probe(&mut self, token: Token, now: Duration) -> Result<RequestId, Refusal> {
        let width = self.unknown_width().unwrap_or(1);
        let request = Request {
            sampler: SamplerParams { temperature: 0.0, ..SamplerParams::default() },
            max_tokens: Some(width),
            ignore_eos: true,
            ..Request::new(vec![token])
        };
        self.take(request, vec![Box::new(Filler)], Some(width), now)
    }

    /// Whether a probe would teach how long windows of some width take. Each probe answers for one width, so a line
    /// that came up wants eight of them; nobody has to wait for them.
    #[must_use]
    pub fn wants_probe(&self) -> bool {
        self.unknown_width().is_some()
    }

    /// Sends the end of a sequence that never was around the line: no stage computes anything for it or gives it memory, but
    /// it passes through every link and every engine thread, and the tail says that it is [`Closed`](protocol::Report::Closed).
    /// Whose it is; none while no line is up.
    pub fn echo(&mut self) -> Option<SeqId> {
        let seq = self.line_is_up().then(|| self.next_seq())?;
        self.send(Work::Close(Close { seq, inputs: Position(0) }));
        Some(seq)
    }

    fn unknown_width(&self) -> Option<u32> {
        let Speculate { sources, reach, .. } = &self.config.speculate;
        let is_free = *sources != Sources::Off && reach.width.is_none();
        // The window and the token of the prompt must fit.
        let most = reach.max_width.min(self.config.context.saturating_sub(1));
        self.pace.unknown_width(most).filter(|_| is_free && self.vain_probes < MOST_VAIN)
    }

    /// A probe has come back, computed by the first stage in a call of so many rows.
    pub(crate) fn note_probe(&mut self, n_rows: u32) {
        let taught = n_rows > 0 && self.unknown_width() != Some(n_rows);
        self.vain_probes = if taught { 0 } else { self.vain_probes + 1 };
    }
}
