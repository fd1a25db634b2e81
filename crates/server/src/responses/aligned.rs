//! Which tokens belong to which text: a model's turn also holds marks, reasoning and calls, and their tokens have no
//! place in the text of a message.

use std::collections::VecDeque;

use crate::logprobs::TokenLogprob;

/// Tokens whose text has not come yet, in order.
#[derive(Debug)]
pub(super) struct Waiting<T = TokenLogprob>(VecDeque<Piece<T>>);

/// What is left of a token's bytes.
#[derive(Debug)]
struct Piece<T> {
    bytes: Vec<u8>,
    /// Absent once it was given out.
    entry: Option<T>,
}

impl<T> Default for Waiting<T> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<T> Waiting<T> {
    /// One more token, as clients see it.
    pub(super) fn push(&mut self, bytes: Vec<u8>, entry: T) {
        self.0.push_back(Piece { bytes, entry: Some(entry) });
    }

    /// The tokens that have a share in `text`, which is what comes next of the turn; those before it are no text. If the
    /// text is not what the tokens say, as where bytes are no characters, all of them.
    pub(super) fn take(&mut self, text: &str) -> Vec<T> {
        if text.is_empty() {
            return Vec::new();
        }
        let Some(start) = self.find(text.as_bytes()) else {
            return self.0.drain(..).filter_map(|piece| piece.entry).collect();
        };
        let end = start + text.len();
        let (mut at, mut taken) = (0, Vec::new());
        while at < end {
            let Some(mut piece) = self.0.pop_front() else { break };
            let next = at + piece.bytes.len();
            if next > start {
                taken.extend(piece.entry.take());
            }
            if next > end {
                piece.bytes.drain(..end - at);
                self.0.push_front(piece);
            }
            at = next;
        }
        taken
    }

    /// Where the text begins: with a token if it can, else anywhere.
    fn find(&self, text: &[u8]) -> Option<usize> {
        let all: Vec<u8> = self.0.iter().flat_map(|piece| piece.bytes.iter().copied()).collect();
        let mut starts = self.0.iter().scan(0, |at, piece| {
            let start = *at;
            *at += piece.bytes.len();
            Some(start)
        });
        let at_token = starts.find(|&start| all[start..].starts_with(text));
        at_token.or_else(|| all.windows(text.len()).position(|window| window == text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting<'a>(pieces: &[&'a str]) -> Waiting<&'a str> {
        let mut waiting = Waiting::default();
        pieces.iter().for_each(|piece| waiting.push(piece.as_bytes().to_vec(), *piece));
        waiting
    }

    #[test]
    fn marks_and_white_space_belong_to_no_text() {
        let mut waiting = waiting(&["Hm", "</think>", "\n\n", "i", "t", "<call>"]);
        assert_eq!(waiting.take("Hm"), ["Hm"]);
        assert_eq!(waiting.take("it"), ["i", "t"]);
        assert_eq!(waiting.0.len(), 1);
    }

    #[test]
    fn a_token_of_two_texts_belongs_to_the_first() {
        let mut waiting = waiting(&["ab<", "c"]);
        assert_eq!(waiting.take("ab"), ["ab<"]);
        assert_eq!(waiting.take("<c"), ["c"]);
        assert!(waiting.take("").is_empty() && waiting.0.is_empty());
    }

    #[test]
    fn text_that_begins_within_a_token_is_found() {
        assert_eq!(waiting(&["x", "\n\nYes", "."]).take("Yes."), ["\n\nYes", "."]);
    }

    #[test]
    fn text_that_no_tokens_say_has_all_of_them() {
        assert_eq!(waiting(&["a", "b"]).take("a\u{fffd}"), ["a", "b"]);
    }
}
