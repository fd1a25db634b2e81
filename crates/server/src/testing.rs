//! A vocabulary for unit tests.

use protocol::{Grammar, Token};

use crate::Tokenizer;

/// One token per byte, and one that ends.
pub(crate) struct Bytes256;

impl Bytes256 {
    pub(crate) const END: Token = Token(256);
}

impl Tokenizer for Bytes256 {
    fn tokenize(&self, text: &str, _add_special: bool, _parse_special: bool) -> Vec<Token> {
        text.bytes().map(|byte| Token(i32::from(byte))).collect()
    }

    fn piece(&self, token: Token, special: bool, out: &mut Vec<u8>) {
        match u8::try_from(token.0) {
            Ok(byte) => out.push(byte),
            Err(_) if special && token == Self::END => out.extend_from_slice(b"<end>"),
            Err(_) => {}
        }
    }

    fn is_end(&self, token: Token) -> bool {
        token == Self::END
    }

    fn n_vocab(&self) -> u32 {
        257
    }

    fn check_grammar(&self, _grammar: &Grammar) -> Result<(), String> {
        Ok(())
    }
}
