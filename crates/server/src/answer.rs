//! The text of one choice, from its tokens: characters, stop strings, and log-probabilities that travel with the
//! text they belong to.

use std::collections::VecDeque;
use std::sync::Arc;

use protocol::{Token, TokenLogprobs};

use crate::Tokenizer;
use crate::stop::StopMatcher;
use crate::utf8::Utf8Stream;

/// A piece of an answer that may be sent: whole characters, certainly before any stop string.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Piece {
    pub text: String,
    /// Of the tokens whose text begins in this piece, if asked for.
    pub logprobs: Vec<TokenInfo>,
}

impl Piece {
    #[cfg(test)]
    const fn is_empty(&self) -> bool {
        self.text.is_empty() && self.logprobs.is_empty()
    }
}

/// One token with its log-probabilities.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct TokenInfo {
    pub token: Token,
    pub logprobs: TokenLogprobs,
    /// Where its text begins, in characters of the answer.
    pub start: usize,
}

/// Turns tokens into pieces.
pub(crate) struct AnswerText {
    tokenizer: Arc<dyn Tokenizer>,
    /// An end-of-generation token is a token like any other.
    ignore_eos: bool,
    /// Control tokens that have a text here, ascending.
    marks: Arc<[Token]>,
    utf8: Utf8Stream,
    stops: StopMatcher,
    /// Characters decoded, and characters given out.
    decoded: usize,
    emitted: usize,
    /// Tokens whose text has not begun to go out.
    waiting: VecDeque<TokenInfo>,
    n_tokens: u32,
}

impl AnswerText {
    pub(crate) fn new(
        tokenizer: Arc<dyn Tokenizer>,
        stops: Vec<String>,
        ignore_eos: bool,
        marks: Arc<[Token]>,
    ) -> Self {
        Self {
            tokenizer,
            ignore_eos,
            marks,
            utf8: Utf8Stream::default(),
            stops: StopMatcher::new(stops),
            decoded: 0,
            emitted: 0,
            waiting: VecDeque::new(),
            n_tokens: 0,
        }
    }

    /// Takes tokens, with log-probabilities for each or for none. True if a stop string was found: the piece is the
    /// last one, and the tokens after it do not count.
    pub(crate) fn push(&mut self, tokens: &[Token], logprobs: Vec<TokenLogprobs>) -> (Piece, bool) {
        let mut piece = Piece::default();
        let mut logprobs = logprobs.into_iter();
        let mut bytes = Vec::new();
        for &token in tokens {
            self.n_tokens += 1;
            let logprobs = logprobs.next();
            if !self.ignore_eos && self.tokenizer.is_end(token) {
                continue;
            }
            if let Some(logprobs) = logprobs {
                self.waiting.push_back(TokenInfo { token, logprobs, start: self.decoded });
            }
            bytes.clear();
            let is_mark = self.marks.binary_search(&token).is_ok();
            self.tokenizer.piece(token, is_mark, &mut bytes);
            let mut text = String::new();
            self.utf8.push(&bytes, &mut text);
            if self.take(&text, &mut piece) {
                return (piece, true);
            }
        }
        (piece, false)
    }

    /// No more tokens will come: gives what was held back. True if its text completes a stop string.
    pub(crate) fn finish(&mut self) -> (Piece, bool) {
        let mut piece = Piece::default();
        let mut text = String::new();
        self.utf8.finish(&mut text);
        if self.take(&text, &mut piece) {
            return (piece, true);
        }
        self.stops.finish(&mut piece.text);
        piece.logprobs.extend(self.waiting.drain(..));
        (piece, false)
    }

    /// Tokens that count towards the answer so far, including one that ended it.
    pub(crate) const fn n_tokens(&self) -> u32 {
        self.n_tokens
    }

    /// The stop string that was found.
    pub(crate) fn stop(&self) -> Option<&str> {
        self.stops.found()
    }

    fn take(&mut self, text: &str, piece: &mut Piece) -> bool {
        self.decoded += text.chars().count();
        let before = piece.text.len();
        let stopped = self.stops.push(text, &mut piece.text);
        self.emitted += piece.text[before..].chars().count();
        while self.waiting.front().is_some_and(|info| info.start < self.emitted) {
            piece.logprobs.extend(self.waiting.pop_front());
        }
        stopped
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Bytes256;

    fn answer(stops: &[&str]) -> AnswerText {
        AnswerText::new(
            Arc::new(Bytes256),
            stops.iter().map(ToString::to_string).collect(),
            false,
            Arc::new([]),
        )
    }

    fn tokens(bytes: &[u8]) -> Vec<Token> {
        bytes.iter().map(|&byte| Token(i32::from(byte))).collect()
    }

    fn logprobs(n: usize) -> Vec<TokenLogprobs> {
        vec![TokenLogprobs { logprob: -0.5, top: Vec::new() }; n]
    }

    #[test]
    fn the_end_token_counts_but_has_no_text() {
        let mut answer = answer(&[]);
        let (piece, stopped) = answer.push(&[Token(104), Token(105), Bytes256::END], logprobs(3));
        assert_eq!((piece.text.as_str(), piece.logprobs.len(), stopped), ("hi", 2, false));
        assert_eq!(answer.n_tokens(), 3);
    }

    #[test]
    fn log_probabilities_wait_for_the_text_of_their_token() {
        let mut answer = answer(&["xyz"]);
        let (piece, _) = answer.push(&tokens(b"ax"), logprobs(2));
        assert_eq!((piece.text.as_str(), piece.logprobs.len()), ("a", 1));
        let (piece, _) = answer.push(&tokens(b"y!"), logprobs(2));
        assert_eq!((piece.text.as_str(), piece.logprobs.len()), ("xy!", 3));
        assert_eq!(piece.logprobs[0].start, 1);
    }

    #[test]
    fn both_tokens_of_one_character_go_out_with_it() {
        let mut answer = answer(&[]);
        let bytes = "é".as_bytes();
        assert!(answer.push(&tokens(&bytes[..1]), logprobs(1)).0.is_empty());
        let (piece, _) = answer.push(&tokens(&bytes[1..]), logprobs(1));
        assert_eq!((piece.text.as_str(), piece.logprobs.len()), ("é", 2));
    }

    #[test]
    fn tokens_of_a_stop_string_and_after_are_left_out() {
        let mut answer = answer(&["ST"]);
        let (piece, stopped) = answer.push(&tokens(b"okSTmore"), logprobs(8));
        assert_eq!((piece.text.as_str(), piece.logprobs.len(), stopped), ("ok", 2, true));
        assert_eq!(answer.n_tokens(), 4);
    }

    #[test]
    fn what_was_held_back_comes_at_the_end() {
        let mut answer = answer(&["STOP"]);
        assert!(answer.push(&tokens(b"ST"), logprobs(2)).0.is_empty());
        let (piece, stopped) = answer.finish();
        assert_eq!((piece.text.as_str(), piece.logprobs.len(), stopped), ("ST", 2, false));
    }
}
