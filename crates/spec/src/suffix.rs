//! `suffix`: what came after the longest earlier occurrence of the text's end.
//!
//! The text is the prompt and what is committed; guesses in flight are read but never indexed. A place that has been
//! right so far is kept unless a longer match is found elsewhere, so that a copy goes straight on.

use protocol::Token;

use crate::follow::{Ahead, Follow, MAX_RUN, copy};
use crate::index::{Cursor, Index};
use crate::proposer::{Answer, Ask, Prior, Proposer, Trust};

/// Short matches are mostly chance, long ones mostly copies. Measured on chats and code the shares vary a lot; these
/// are middling, and a few tokens of a text overrule them.
const PRIOR: Prior = [0.7, 0.55, 0.4, 0.25, 0.15, 0.08, 0.05, 0.03];

/// See the module. Takes O(1) amortised per committed token and per guess in flight; its memory is bounded by
/// 2^17 tokens (17 MB), beyond which the older half of the text is forgotten.
#[derive(Clone, Debug)]
pub struct Suffix {
    index: Index,
    here: Option<Follow>,
    ahead: Option<Ahead<Reader>>,
}

#[derive(Clone, Copy, Debug)]
struct Reader {
    cursor: Cursor,
    follow: Option<Follow>,
}

impl Suffix {
    /// A source that has read nothing.
    #[must_use]
    pub fn new() -> Self {
        Self { index: Index::new(), here: None, ahead: None }
    }

    fn better(&self, kept: Option<Follow>, cursor: Cursor) -> Option<Follow> {
        if kept.is_some_and(|kept| kept.run >= cursor.len.min(MAX_RUN)) {
            return kept;
        }
        self.index.place(cursor).map(|place| Follow::new(place, cursor.len))
    }
}

impl Default for Suffix {
    fn default() -> Self {
        Self::new()
    }
}

impl Proposer for Suffix {
    fn name(&self) -> &'static str {
        "suffix"
    }

    fn prior(&self) -> Prior {
        PRIOR
    }

    fn begin(&mut self, prompt: &[Token]) {
        (1..=prompt.len()).for_each(|n| self.commit(&prompt[..n]));
    }

    fn commit(&mut self, committed: &[Token]) {
        let Some((&token, before)) = committed.split_last() else { return };
        let kept = self.here.and_then(|here| here.step(before, token));
        if !self.index.push(committed) {
            self.ahead = None;
        }
        self.here = self.better(kept, self.index.end_match());
    }

    fn shadow(&self, committed: &[Token]) -> Option<(Token, Trust)> {
        let here = self.here?;
        committed.get(here.place).map(|&token| (token, Trust::Run(here.run)))
    }

    fn propose(&mut self, ask: &Ask<'_>, n: usize) -> Answer {
        let here = Reader { cursor: self.index.end_match(), follow: self.here };
        let (ahead, reader) = Ahead::reach(self.ahead, here, ask, |reader, tokens| {
            let (&token, before) = tokens.split_last().expect("a step reads a token");
            let kept = reader.follow.and_then(|follow| follow.step(before, token));
            let cursor = self.index.step(reader.cursor, token);
            Reader { cursor, follow: self.better(kept, cursor) }
        });
        self.ahead = Some(ahead);
        match reader.follow {
            Some(follow) if n > 0 && follow.place < ask.tokens.len() => {
                Answer::Guesses(copy(ask.tokens, follow, n))
            }
            _ => Answer::Nothing,
        }
    }
}

#[cfg(test)]
mod tests {
    use protocol::Epoch;

    use super::*;

    fn tokens(text: &str) -> Vec<Token> {
        text.bytes().map(|byte| Token(i32::from(byte))).collect()
    }

    fn text(tokens: &[Token]) -> String {
        tokens.iter().map(|token| token.0 as u8 as char).collect()
    }

    /// What follows `committed` and the guesses `sent`, and with which run.
    fn guess(committed: &str, sent: &str, n: usize) -> (String, u32) {
        let mut source = Suffix::new();
        source.begin(&tokens(committed));
        ask(&mut source, committed, sent, 0, n)
    }

    fn ask(source: &mut Suffix, committed: &str, sent: &str, epoch: u32, n: usize) -> (String, u32) {
        let all = tokens(&[committed, sent].concat());
        let ask = Ask { tokens: &all, n_committed: committed.len(), n_sent: all.len(), epoch: Epoch(epoch) };
        match source.propose(&ask, n) {
            Answer::Guesses(block) => (text(&block.tokens), block.run),
            answer => (format!("{answer:?}"), 0),
        }
    }

    #[test]
    fn the_longest_match_is_followed_without_a_limit() {
        assert_eq!(guess("one two three. one t", "", 12), ("wo three. on".into(), 5));
        assert_eq!(guess("xab-ab_xab", "", 3), ("-ab".into(), 3));
        assert_eq!(guess("abc", "", 4), ("Nothing".into(), 0));
        assert_eq!(guess("", "", 4), ("Nothing".into(), 0));
    }

    #[test]
    fn a_repetition_goes_on_beyond_the_end_of_the_text() {
        assert_eq!(guess("la la ", "", 9), ("la la la ".into(), 3));
        assert_eq!(guess("aaaa", "", 5), ("aaaaa".into(), 3));
    }

    #[test]
    fn guesses_in_flight_are_read_but_not_indexed() {
        assert_eq!(guess("one two. on", "e t", 3), ("wo.".into(), 5));
        assert_eq!(guess("one two. on", "q", 3), ("Nothing".into(), 0));
        assert_eq!(guess("abcdXabq", "qZabqZ", 2), ("Nothing".into(), 0));
    }

    #[test]
    fn a_new_epoch_forgets_the_guesses_of_the_last() {
        let mut source = Suffix::new();
        let committed = "one two. one three. on";
        source.begin(&tokens(committed));
        assert_eq!(ask(&mut source, committed, "e th", 0, 4).0, "ree.");
        let corrected = "one two. one three. one";
        source.commit(&tokens(corrected));
        assert_eq!(ask(&mut source, corrected, "", 1, 5), (" thre".into(), 5));
        assert_eq!(ask(&mut source, corrected, " tw", 1, 5), ("o. on".into(), 6));
    }

    #[test]
    fn the_shadow_is_the_first_guess_after_what_is_committed() {
        let text = tokens("function f() { return g(); } function f() { return h(); }");
        let mut source = Suffix::new();
        for n in 1..=text.len() {
            source.commit(&text[..n]);
            let ask = Ask { tokens: &text[..n], n_committed: n, n_sent: n, epoch: Epoch(0) };
            let guess = match source.propose(&ask, 1) {
                Answer::Guesses(block) => Some((block.tokens[0], Trust::Run(block.run))),
                _ => None,
            };
            assert_eq!(source.shadow(&text[..n]), guess, "after {n} tokens");
        }
    }

    #[test]
    fn a_copy_stays_where_it_is_while_it_is_right() {
        // The line "x;" occurs everywhere, but the copy of the first block goes on with the first block.
        let source_text = "<begin> x; a x; b x; c <end> x; z x; z <begin> x; a";
        assert_eq!(guess(source_text, "", 8).0, " x; b x;");
    }
}
