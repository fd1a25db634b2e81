//! Log-probabilities of tokens as OpenAI's APIs write them.

use protocol::Token;
use schemars::JsonSchema;
use serde::Serialize;

use crate::Tokenizer;
use crate::answer::TokenInfo;

/// A token of a chat with its alternatives.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub(crate) struct TokenLogprob {
    #[serde(flatten)]
    token: OneToken,
    /// The likeliest first.
    top_logprobs: Vec<OneToken>,
}

/// A token and how likely it is.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
struct OneToken {
    token: String,
    logprob: f64,
    /// Of its text; several tokens may make one character.
    bytes: Vec<u8>,
}

impl OneToken {
    fn new(tokenizer: &dyn Tokenizer, token: Token, logprob: f32) -> Self {
        let bytes = bytes(tokenizer, token);
        Self { token: String::from_utf8_lossy(&bytes).into_owned(), logprob: logprob.into(), bytes }
    }
}

impl TokenLogprob {
    pub(crate) fn new(tokenizer: &dyn Tokenizer, info: &TokenInfo) -> Self {
        let one = |token, logprob| OneToken::new(tokenizer, token, logprob);
        let top = info.logprobs.top.iter();
        Self {
            token: one(info.token, info.logprobs.logprob),
            top_logprobs: top.map(|&(token, logprob)| one(token, logprob)).collect(),
        }
    }
}

/// A token's bytes, special tokens included.
pub(crate) fn bytes(tokenizer: &dyn Tokenizer, token: Token) -> Vec<u8> {
    let mut bytes = Vec::new();
    tokenizer.piece(token, true, &mut bytes);
    bytes
}
