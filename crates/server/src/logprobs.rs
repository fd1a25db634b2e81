//! Log-probabilities of tokens as OpenAI's APIs write them.

use protocol::Token;
use serde_json::{Value, json};

use crate::Tokenizer;
use crate::answer::TokenInfo;

/// A token's bytes, special tokens included.
pub(crate) fn bytes(tokenizer: &dyn Tokenizer, token: Token) -> Vec<u8> {
    let mut bytes = Vec::new();
    tokenizer.piece(token, true, &mut bytes);
    bytes
}

/// A token of a chat with its alternatives.
pub(crate) fn entry(tokenizer: &dyn Tokenizer, info: &TokenInfo) -> Value {
    let one = |token, logprob: f32| {
        let bytes = bytes(tokenizer, token);
        json!({ "token": String::from_utf8_lossy(&bytes), "logprob": logprob, "bytes": bytes })
    };
    let mut entry = one(info.token, info.logprobs.logprob);
    let top = info.logprobs.top.iter();
    entry["top_logprobs"] = top.map(|&(token, logprob)| one(token, logprob)).collect();
    entry
}
