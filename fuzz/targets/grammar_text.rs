//! Grammars that clients send: read, then walked for some tokens.
#![no_main]

use std::sync::{Arc, OnceLock};

use grammar::{Grammars, Vocabulary};
use libfuzzer_sys::fuzz_target;
use protocol::{Grammar, GrammarKind, Token};

/// Single bytes and an end token.
struct Bytes;

const END: i32 = 256;

impl Vocabulary for Bytes {
    fn n_tokens(&self) -> usize {
        257
    }

    fn append_bytes(&self, token: Token, out: &mut Vec<u8>) {
        out.extend(u8::try_from(token.0));
    }

    fn name(&self, token: Token) -> Option<String> {
        (token.0 == END).then(|| "<|end|>".to_owned())
    }

    fn end_tokens(&self) -> Vec<Token> {
        vec![Token(END)]
    }

    fn tokenize(&self, text: &str) -> Vec<Token> {
        text.bytes().map(|byte| Token(byte.into())).collect()
    }
}

fuzz_target!(|data: &[u8]| {
    static GRAMMARS: OnceLock<Grammars> = OnceLock::new();
    let grammars =
        GRAMMARS.get_or_init(|| Grammars::new(Arc::new(Bytes)).expect("the vocabulary is an ordinary one"));
    let Some((&kind, text)) = data.split_first() else { return };
    let Ok(text) = std::str::from_utf8(text) else { return };
    let kinds = [GrammarKind::JsonSchema, GrammarKind::Regex, GrammarKind::Lark, GrammarKind::Gbnf];
    let kind = kinds[usize::from(kind) % kinds.len()];
    let Ok(mut constraint) = grammars.start(&Grammar::new(kind, text)) else { return };
    for at in 0..8 {
        let mut logits = [0.0_f32; END as usize + 1];
        if constraint.is_over() || constraint.mask(&mut logits).is_err() {
            return;
        }
        let allowed: Vec<_> = (0..).map(Token).zip(logits).filter(|(_, logit)| *logit == 0.0).collect();
        let Some((token, _)) = allowed.get((at * 7919) % allowed.len().max(1)) else { return };
        if constraint.say(*token).is_err() {
            return;
        }
    }
});
