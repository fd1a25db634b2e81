//! What is refused: proposals that cannot be tokens, verdicts that no honest tail gives, and drafts of its own that it has
//! not announced.

use protocol::{Epoch, Position, Token, WindowId};

/// A proposal that was refused; nothing of it was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProposalError {
    /// A token outside the vocabulary.
    #[error("proposed token {token} is outside the vocabulary of {n_vocab}")]
    UnknownToken {
        /// The token.
        token: Token,
        /// Vocabulary entries.
        n_vocab: u32,
    },
}

/// A verdict that contradicts what was sent or committed: a bug of one of the two sides, never a race.
/// The pipeline is as it was before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VerdictFault {
    /// The sequence has ended.
    #[error("verdict for window {window} after the end of the sequence")]
    AfterEnd {
        /// The verdict's window.
        window: WindowId,
    },
    /// No such window is in flight: it was never sent, or was answered already.
    #[error("verdict for window {window}, which is not in flight")]
    UnknownWindow {
        /// The verdict's window.
        window: WindowId,
    },
    /// The window belongs to an epoch that a contradiction has closed: the tail must have dropped it.
    #[error("verdict for window {window} of epoch {epoch}, but epoch {current} is open")]
    StaleWindow {
        /// The verdict's window.
        window: WindowId,
        /// The epoch in which it was sent.
        epoch: Epoch,
        /// The epoch that is open.
        current: Epoch,
    },
    /// An earlier window of the same epoch has no verdict yet.
    #[error("verdict for window {window} while window {expected} is unanswered")]
    SkippedWindow {
        /// The verdict's window.
        window: WindowId,
        /// The window that had to be answered first.
        expected: WindowId,
    },
    /// The verdict's epoch is not its window's.
    #[error("verdict for window {window} says epoch {epoch}, sent was {expected}")]
    WrongEpoch {
        /// The verdict's window.
        window: WindowId,
        /// The verdict's epoch.
        epoch: Epoch,
        /// The window's epoch.
        expected: Epoch,
    },
    /// The verdict's base is not its window's.
    #[error("verdict for window {window} says base {base}, sent was {expected}")]
    WrongBase {
        /// The verdict's window.
        window: WindowId,
        /// The verdict's base.
        base: Position,
        /// The window's base.
        expected: Position,
    },
    /// No token at all: every verdict commits at least one.
    #[error("verdict for window {window} has no tokens")]
    Empty {
        /// The verdict's window.
        window: WindowId,
    },
    /// More tokens than the window has rows.
    #[error("verdict for window {window} has {n_tokens} tokens for {n_rows} rows")]
    TooLong {
        /// The verdict's window.
        window: WindowId,
        /// Tokens in the verdict.
        n_tokens: usize,
        /// Rows in the window.
        n_rows: usize,
    },
    /// A token outside the vocabulary.
    #[error("verdict for window {window} holds token {token}, outside the vocabulary of {n_vocab}")]
    UnknownToken {
        /// The verdict's window.
        window: WindowId,
        /// The token.
        token: Token,
        /// Vocabulary entries.
        n_vocab: u32,
    },
    /// A token other than the last differs from the one sent: the tail must have stopped there.
    #[error("verdict for window {window} goes on after token {token} at {position}, sent was {sent}")]
    Disagrees {
        /// The verdict's window.
        window: WindowId,
        /// Where they differ.
        position: Position,
        /// The verdict's token.
        token: Token,
        /// The token sent.
        sent: Token,
    },
    /// The last token agrees with the one sent, yet the remaining rows have none.
    #[error("verdict for window {window} stops at {position} without a contradiction or an end")]
    StoppedShort {
        /// The verdict's window.
        window: WindowId,
        /// Position of its last token.
        position: Position,
    },
    /// It announces a draft that was not asked for with its window, or that could follow on nothing.
    #[error("verdict for window {window} announces a draft that was not asked for")]
    UnaskedDraft {
        /// The verdict's window.
        window: WindowId,
    },
    /// The last position was reached, yet the sequence goes on.
    #[error("verdict for window {window} reaches the limit {limit} but does not end the sequence")]
    LimitPassed {
        /// The verdict's window.
        window: WindowId,
        /// The sequence's limit.
        limit: Position,
    },
    /// The tail says that the limit was reached, but it was not.
    #[error("verdict for window {window} says limit {limit}, but its last token is at {position}")]
    LimitNotReached {
        /// The verdict's window.
        window: WindowId,
        /// Position of its last token.
        position: Position,
        /// The sequence's limit.
        limit: Position,
    },
}

/// A draft of the tail's own that contradicts what was asked for and announced. Nothing has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum DraftFault {
    /// No verdict has announced one there, or it has come already.
    #[error("a draft at {base}, which was not announced")]
    Unannounced {
        /// Where it begins.
        base: Position,
    },
    /// It has more tokens than were asked for.
    #[error("a draft of {n_tokens} tokens at {base}, where {n_asked} were asked for")]
    TooLong {
        /// Where it begins.
        base: Position,
        /// Tokens in it.
        n_tokens: usize,
        /// Tokens asked for.
        n_asked: u8,
    },
    /// It holds a token outside the vocabulary.
    #[error("a draft at {base} that holds token {token}, outside the vocabulary of {n_vocab}")]
    UnknownToken {
        /// Where it begins.
        base: Position,
        /// The token.
        token: Token,
        /// Vocabulary entries.
        n_vocab: u32,
    },
}
