//! A vocabulary of single bytes and a few longer tokens, for tests.

use std::sync::Arc;

use protocol::{Grammar, Token};

use crate::{Constraint, Grammars, Vocabulary};

/// Tokens `0..256` are bytes; then these; then an end token and another special one.
pub(crate) const LONGER: [&str; 8] = ["true", "name", "{\"", "\":", "\",\"", "```", "\n\n", "ab"];
pub(crate) const END: Token = Token(256 + LONGER.len() as i32);

pub(crate) struct Toy;

impl Vocabulary for Toy {
    fn n_tokens(&self) -> usize {
        256 + LONGER.len() + 2
    }

    fn append_bytes(&self, token: Token, out: &mut Vec<u8>) {
        match u8::try_from(token.0) {
            Ok(byte) => out.push(byte),
            Err(_) => out.extend_from_slice(LONGER[token.0 as usize - 256].as_bytes()),
        }
    }

    fn name(&self, token: Token) -> Option<String> {
        match token.0 - END.0 {
            0 => Some("<|end|>".into()),
            1 => Some("<|call|>".into()),
            _ => None,
        }
    }

    fn end_tokens(&self) -> Vec<Token> {
        vec![END]
    }

    /// The longest token first.
    fn tokenize(&self, text: &str) -> Vec<Token> {
        let (mut rest, mut tokens) = (text.as_bytes(), Vec::new());
        while let Some(&byte) = rest.first() {
            let longest = (0..LONGER.len())
                .filter(|&i| rest.starts_with(LONGER[i].as_bytes()))
                .max_by_key(|&i| LONGER[i].len());
            let (token, len) = longest.map_or((i32::from(byte), 1), |i| (256 + i as i32, LONGER[i].len()));
            tokens.push(Token(token));
            rest = &rest[len..];
        }
        tokens
    }
}

pub(crate) fn grammars() -> Grammars {
    Grammars::new(Arc::new(Toy)).expect("the toy vocabulary is usable")
}

/// The tokens that may come next.
pub(crate) fn allowed(constraint: &mut Constraint) -> Vec<Token> {
    let mut logits = vec![0.0; Toy.n_tokens()];
    constraint.mask(&mut logits).expect("the grammar can be followed");
    (0..).map(Token).zip(logits).filter(|(_, logit)| *logit == 0.0).map(|(token, _)| token).collect()
}

/// Whether `answer` is one of the grammar's texts, said token by token as the masks allow.
pub(crate) fn follows(grammars: &Grammars, grammar: &Grammar, answer: &str) -> bool {
    let mut constraint = grammars.start(grammar).unwrap_or_else(|error| panic!("{error}"));
    let mut rest = answer.as_bytes();
    while !rest.is_empty() {
        if constraint.is_over() {
            return false;
        }
        let mut bytes = Vec::new();
        let longest = allowed(&mut constraint).into_iter().filter(|&token| token < END).filter(|&token| {
            bytes.clear();
            Toy.append_bytes(token, &mut bytes);
            rest.starts_with(&bytes)
        });
        let Some(token) = longest.max_by_key(|&token| {
            let mut bytes = Vec::new();
            Toy.append_bytes(token, &mut bytes);
            bytes.len()
        }) else {
            return false;
        };
        bytes.clear();
        Toy.append_bytes(token, &mut bytes);
        rest = &rest[bytes.len()..];
        constraint.say(token).expect("an allowed token may be said");
    }
    constraint.is_over() || allowed(&mut constraint).contains(&END)
}
