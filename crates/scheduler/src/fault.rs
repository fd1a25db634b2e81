//! Reports that contradict what the front sent.

use protocol::{Position, SeqId, StageIndex};
use spec::{DraftFault, VerdictFault};

/// A report that no honest stage sends on a line that is in order. The request concerned, if any, has failed already (but
/// see [`ReportFault::Disorder`]); the driver decides what the stage that sent it deserves.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ReportFault {
    /// Only the tail speaks of tokens and memory. Nothing changed.
    #[error("stage {from} sent a report that only the tail (stage {tail}) sends")]
    NotTail {
        /// Who sent it.
        from: StageIndex,
        /// Who alone may.
        tail: StageIndex,
    },
    /// The front never opened such a sequence. Nothing changed.
    #[error("report about sequence {seq}, which was never opened")]
    NeverOpened {
        /// The sequence.
        seq: SeqId,
    },
    /// A verdict that the pipeline refuses.
    #[error("sequence {seq}: {fault}")]
    Verdict {
        /// The sequence.
        seq: SeqId,
        /// Why.
        #[source]
        fault: VerdictFault,
    },
    /// A draft of the tail's own that was not announced, or is not what was asked for.
    #[error("sequence {seq}: {fault}")]
    Draft {
        /// The sequence.
        seq: SeqId,
        /// Why.
        #[source]
        fault: DraftFault,
    },
    /// A verdict before the last chunk of the prompt was reported.
    #[error("sequence {seq}: verdict before the prompt has passed through")]
    PromptPending {
        /// The sequence.
        seq: SeqId,
    },
    /// One entry per token was asked for, or none at all.
    #[error("sequence {seq}: {n_logprobs} log-probabilities, expected {expected}")]
    Logprobs {
        /// The sequence.
        seq: SeqId,
        /// Entries in the verdict.
        n_logprobs: usize,
        /// What was asked for.
        expected: usize,
    },
    /// Something about a prompt that is not what was wanted, or not what comes next.
    #[error("sequence {seq}: {n_found} results of its prompt from {base} on, expected was {expected}")]
    OfPrompt {
        /// The sequence.
        seq: SeqId,
        /// Where the report begins.
        base: Position,
        /// What it holds.
        n_found: u32,
        /// Where it should begin.
        expected: u32,
    },
    /// A chunk has passed, but not all that was wanted of it has come.
    #[error(
        "sequence {seq}: its prompt is computed up to {next}, but not all that was wanted of it has come"
    )]
    PromptUntold {
        /// The sequence.
        seq: SeqId,
        /// The first position not computed.
        next: Position,
    },
    /// Progress that is not the end of the oldest chunk in flight.
    #[error("sequence {seq}: progress to {next}, expected {}", expected.map_or_else(|| "none".into(), |p| p.to_string()))]
    Progress {
        /// The sequence.
        seq: SeqId,
        /// What the report says.
        next: Position,
        /// The end of the oldest chunk in flight, if there is any.
        expected: Option<Position>,
    },
    /// A stage has heard of a sequence what the front did not send, or not so. Nothing has changed: the line must be formed
    /// anew, and the request goes on there. If it happens to the same request again it has failed instead, since then the
    /// reason may be its own.
    #[error("sequence {seq}: stage {from} has not heard what was sent to it: {reason}")]
    Disorder {
        /// The sequence.
        seq: SeqId,
        /// Which stage.
        from: StageIndex,
        /// What it said.
        reason: String,
    },
    /// The tail has closed a sequence that the front had not. The slot stays in use until the front's own `Close`
    /// has come back, or the line is lost.
    #[error("sequence {seq}: closed before the front asked for it")]
    ClosedEarly {
        /// The sequence.
        seq: SeqId,
    },
}
