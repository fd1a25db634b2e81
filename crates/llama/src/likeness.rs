//! Whether two vocabularies are the same, and where they differ first.

use protocol::Token;

use crate::vocab::Vocab;

/// The first difference of a vocabulary from another one, in which it is otherwise; "it" is the former.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum VocabDifference {
    /// Numbers of entries.
    #[error("it has {own} tokens instead of {other}")]
    Count {
        /// Its entries.
        own: usize,
        /// The other's.
        other: usize,
    },
    /// What an entry says.
    #[error("its token {token} is {own:?} instead of {other:?}")]
    Text {
        /// Which entry.
        token: Token,
        /// Its text there, as written in the vocabulary.
        own: String,
        /// The other's.
        other: String,
    },
    /// What kind of token an entry is: text, control, unused.
    #[error("its token {token} ({text:?}) is of another kind")]
    Kind {
        /// Which entry.
        token: Token,
        /// The text of both.
        text: String,
    },
    /// The token with a special meaning.
    #[error("its token that {role} is {} instead of {}", named(own), named(other))]
    Special {
        /// What it does.
        role: &'static str,
        /// Its token.
        own: Option<Token>,
        /// The other's.
        other: Option<Token>,
    },
    /// Whether an entry ends a generation.
    #[error("its token {token} ({text:?}) {}", if *ends { "ends a generation" } else { "does not end a generation" })]
    End {
        /// Which entry.
        token: Token,
        /// The text of both.
        text: String,
        /// Whether it does in this vocabulary.
        ends: bool,
    },
    /// Whether a text begins with a token of its own.
    #[error("it {} before every text", if *own { "puts a token" } else { "puts no token" })]
    Beginning {
        /// Whether it does.
        own: bool,
    },
}

fn named(token: &Option<Token>) -> String {
    token.map_or_else(|| "none".to_owned(), |token| token.to_string())
}

impl Vocab {
    /// Where this vocabulary differs from `other` first; none if every token means the same in both.
    #[must_use]
    pub fn difference(&self, other: &Self) -> Option<VocabDifference> {
        if self.n_tokens() != other.n_tokens() {
            return Some(VocabDifference::Count { own: self.n_tokens(), other: other.n_tokens() });
        }
        let tokens = (0..self.n_tokens()).map(|id| Token(id as i32));
        tokens
            .into_iter()
            .find_map(|token| self.token_difference(other, token))
            .or_else(|| {
                let roles =
                    [("begins a text", self.bos(), other.bos()), ("ends a text", self.eos(), other.eos())];
                let special = roles.into_iter().find(|(_, own, other)| own != other);
                special.map(|(role, own, other)| VocabDifference::Special { role, own, other })
            })
            .or_else(|| {
                let own = self.adds_bos();
                (own != other.adds_bos()).then_some(VocabDifference::Beginning { own })
            })
    }

    fn token_difference(&self, other: &Self, token: Token) -> Option<VocabDifference> {
        let text = |vocab: &Self| vocab.text(token).unwrap_or_default();
        let (own, others) = (text(self), text(other));
        if own != others {
            return Some(VocabDifference::Text { token, own, other: others });
        }
        if self.attributes(token) != other.attributes(token) {
            return Some(VocabDifference::Kind { token, text: own });
        }
        let ends = self.ends_generation(token);
        (ends != other.ends_generation(token)).then_some(VocabDifference::End { token, text: own, ends })
    }
}
