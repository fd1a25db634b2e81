//! What can be wrong with a grammar.

/// Why a grammar cannot be used, or can no longer be followed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GrammarError {
    /// It is not what its kind says, asks for what cannot be had, or is too big.
    #[error("the grammar cannot be used: {reason}")]
    Unusable {
        /// For people: one sentence.
        reason: String,
    },
    /// More than [`protocol::limits::MAX_GRAMMAR_BYTES`].
    #[error("the grammar has {bytes} bytes, but may have at most {limit}: make it shorter")]
    TooLong {
        /// Bytes of its text.
        bytes: usize,
        /// Bytes that it may have.
        limit: usize,
    },
    /// Finding out what may come next takes more than its share of the stage's time.
    #[error("the grammar is too complex to be followed here: {reason}")]
    TooComplex {
        /// For people: one sentence.
        reason: String,
    },
    /// The token is not allowed where it was said.
    #[error("token {token} does not follow the grammar")]
    Left {
        /// The token.
        token: protocol::Token,
    },
    /// The vocabulary cannot be used with grammars.
    #[error("this model's vocabulary cannot be used with grammars: {reason}")]
    Vocabulary {
        /// For people: one sentence.
        reason: String,
    },
}

impl GrammarError {
    /// llguidance's words: the first line says what is wrong, what follows shows its state.
    pub(crate) fn unusable(error: &impl std::fmt::Display) -> Self {
        Self::Unusable { reason: first_line(error) }
    }
}

/// Longest reason passed on, in bytes: a schema's path and a few words.
const MAX_REASON: usize = 400;

/// The first line of what llguidance says, without the traces of its insides.
pub(crate) fn first_line(error: &impl std::fmt::Display) -> String {
    let all = format!("{error:#}");
    let line = all.split("<state>").next().unwrap_or_default().split("<non-verbose/>").next();
    let text: Vec<&str> = line.unwrap_or_default().split_whitespace().collect();
    let mut text = text.join(" ");
    if text.len() > MAX_REASON {
        let mut end = MAX_REASON;
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
        text.push('…');
    }
    text
}
