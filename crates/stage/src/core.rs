//! The stage's state machine.

use std::collections::VecDeque;
use std::time::Duration;

use protocol::{Frame, Hint, Report, RowDtype};

use crate::call::{Call, Done};
use crate::port::{Engine, EngineShape};
use crate::stats::{Load, Stats};

/// How a stage differs from others with the same engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// How hidden rows arrive and leave.
    pub row_dtype: RowDtype,
}

/// What a stage says.
#[derive(Clone, Debug, PartialEq)]
pub enum Output {
    /// For the next stage.
    Forward(Frame),
    /// For the front.
    Report(Report),
}

/// The state of one stage.
pub struct StageCore {
    shape: EngineShape,
    outputs: VecDeque<Output>,
    stats: Stats,
    load: Load,
}

impl StageCore {
    /// A stage that holds nothing.
    #[must_use]
    pub fn new(shape: EngineShape, config: Config) -> Self {
        let _ = config;
        Self { shape, outputs: VecDeque::new(), stats: Stats::default(), load: Load::default() }
    }

    /// What its engine can do.
    #[must_use]
    pub const fn shape(&self) -> &EngineShape {
        &self.shape
    }

    /// A frame has arrived from the stage before, or from the front.
    pub fn handle_frame(&mut self, frame: Frame, now: Duration) {
        let _ = (frame, now);
        todo!()
    }

    /// A hint has arrived. It may save work and changes nothing else.
    pub fn handle_hint(&mut self, hint: Hint) {
        let _ = hint;
        todo!()
    }

    /// Forgets every sequence and everything not yet said.
    pub fn reset(&mut self) {
        todo!()
    }

    /// What the engine shall do next; none if nothing is ready or a call is under way.
    pub fn next_call(&mut self, now: Duration) -> Option<Call> {
        let _ = now;
        todo!()
    }

    /// A call has been executed; `engine` still holds its logits.
    pub fn complete(&mut self, done: Done, engine: &dyn Engine, now: Duration) {
        let _ = (done, engine, now);
        todo!()
    }

    /// The next thing to say, in order.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// What happened so far.
    #[must_use]
    pub const fn stats(&self) -> &Stats {
        &self.stats
    }

    /// Frames that wait here or are being computed.
    #[must_use]
    pub const fn load(&self) -> Load {
        self.load
    }
}
