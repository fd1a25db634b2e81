//! Log-probabilities as completions have them: four lists side by side, for the answer and for a prompt that is echoed.

use protocol::{Token, TokenLogprobs};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value, json};

use crate::answer::TokenInfo;
use crate::{Tokenizer, logprobs};

/// A prompt that its answers begin with.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Echo {
    pub text: String,
    /// Its tokens, if their log-probabilities are shown.
    pub tokens: Vec<Token>,
}

/// One token in the lists.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Entry<'a> {
    token: Token,
    /// None for the first token of a prompt, which nothing predicts.
    logprobs: Option<&'a TokenLogprobs>,
    /// Where its text begins, in characters.
    offset: usize,
}

impl<'a> Entry<'a> {
    /// A token of an answer that begins behind so many characters.
    pub(crate) fn of_answer(info: &'a TokenInfo, before: usize) -> Self {
        Self { token: info.token, logprobs: Some(&info.logprobs), offset: before + info.start }
    }

    /// The tokens of a prompt, given the log-probabilities of all but the first.
    pub(crate) fn of_prompt(tokenizer: &dyn Tokenizer, echo: &Echo, found: &'a [TokenLogprobs]) -> Vec<Self> {
        let found = std::iter::once(None).chain(found.iter().map(Some));
        let tokens = echo.tokens.iter().zip(offsets(tokenizer, echo)).zip(found);
        tokens.map(|((&token, offset), logprobs)| Self { token, logprobs, offset }).collect()
    }
}

/// Where each token's text begins in the text, in characters. Tokens that the text does not show, as the one that begins
/// a sequence, have no place of their own; nor has the space that some vocabularies put before every text.
fn offsets(tokenizer: &dyn Tokenizer, echo: &Echo) -> Vec<usize> {
    let (mut rest, mut at) = (echo.text.as_bytes(), 0);
    let place = |token: &Token| {
        let bytes = logprobs::bytes(tokenizer, *token);
        let offset = at;
        let shown = [&bytes[..], bytes.strip_prefix(b" ").unwrap_or(&bytes)];
        if let Some(shown) = shown.into_iter().find(|shown| rest.starts_with(shown)) {
            let (token, behind) = rest.split_at(shown.len());
            rest = behind;
            at += token.iter().filter(|&&byte| !is_inner(byte)).count();
            // Of a character that several tokens make, all begin where it does.
            return offset - usize::from(token.first().is_some_and(|&byte| is_inner(byte)));
        }
        offset
    };
    echo.tokens.iter().map(place).collect()
}

/// Whether a byte of UTF-8 is not the first of its character.
const fn is_inner(byte: u8) -> bool {
    byte & 0xc0 == 0x80
}

/// Four lists side by side.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct TokenLists {
    tokens: Vec<String>,
    /// Null for the first token of a prompt, which nothing predicts.
    token_logprobs: Vec<Option<f64>>,
    /// Null if no alternatives were asked for.
    top_logprobs: Option<Vec<Option<Map<String, Value>>>>,
    /// Where each token's text begins, in characters.
    text_offset: Vec<usize>,
}

impl TokenLists {
    /// The lists; alternatives only if some were asked for.
    pub(crate) fn new(tokenizer: &dyn Tokenizer, entries: &[Entry<'_>], top: u8) -> Self {
        let name = |token| String::from_utf8_lossy(&logprobs::bytes(tokenizer, token)).into_owned();
        let alternatives = |entry: &Entry<'_>| {
            let logprobs = entry.logprobs?;
            let top = logprobs.top.iter();
            let mut map: Map<String, Value> =
                top.map(|&(token, logprob)| (name(token), json!(logprob))).collect();
            map.entry(name(entry.token)).or_insert(json!(logprobs.logprob));
            Some(map)
        };
        let logprob = |entry: &Entry<'_>| entry.logprobs.map(|logprobs| logprobs.logprob.into());
        Self {
            tokens: entries.iter().map(|entry| name(entry.token)).collect(),
            token_logprobs: entries.iter().map(logprob).collect(),
            top_logprobs: (top > 0).then(|| entries.iter().map(alternatives).collect()),
            text_offset: entries.iter().map(|entry| entry.offset).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Bytes256;

    fn placed(text: &str, tokens: &[u8]) -> Vec<usize> {
        let tokens = tokens.iter().map(|&byte| Token(i32::from(byte))).collect();
        offsets(&Bytes256, &Echo { text: text.into(), tokens })
    }

    #[test]
    fn tokens_begin_where_their_text_does() {
        assert_eq!(placed("abc", b"abc"), [0, 1, 2]);
        assert_eq!(placed("aé!", "aé!".as_bytes()), [0, 1, 1, 2], "two tokens of one character");
        assert_eq!(placed("abc", b" abc"), [0, 0, 1, 2], "a space that was put before the text");
        assert_eq!(placed("ab", b"a\nb"), [0, 1, 1], "what is not in the text");
        assert_eq!(placed("", b"ab"), [0, 0]);
    }
}
