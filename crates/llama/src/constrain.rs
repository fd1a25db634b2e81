//! Grammars over a model's vocabulary.

use std::sync::Arc;

use grammar::{Constraint, LazyGrammars, Vocabulary};
use protocol::{Grammar, Token};
use stage::EngineError;

use crate::sampler::Place;
use crate::vocab::Vocab;

impl Vocabulary for Vocab {
    fn n_tokens(&self) -> usize {
        Self::n_tokens(self)
    }

    fn append_bytes(&self, token: Token, out: &mut Vec<u8>) {
        Self::append_bytes(self, token, false, out);
    }

    fn name(&self, token: Token) -> Option<String> {
        let is_special = !self.is_text(token) || self.ends_generation(token);
        is_special.then(|| self.text(token).unwrap_or_default())
    }

    fn end_tokens(&self) -> Vec<Token> {
        Self::end_tokens(self)
    }

    fn tokenize(&self, text: &str) -> Vec<Token> {
        // Fails only for texts of more than 2^31 bytes, which no grammar can force.
        Self::tokenize(self, text, false, false).unwrap_or_default()
    }
}

/// A tail's grammars. Its vocabulary is prepared when the first one comes.
#[derive(Default)]
pub(crate) struct GrammarCache(LazyGrammars);

impl GrammarCache {
    /// A place at the beginning of the grammar.
    ///
    /// # Errors
    /// If the model has no tokenizer, or the grammar cannot be followed.
    pub(crate) fn start(&self, grammar: &Grammar, place: &Place<'_>) -> Result<Constraint, EngineError> {
        let vocab = place
            .vocab
            .ok_or_else(|| EngineError { reason: "a grammar needs a model with a tokenizer".to_owned() })?;
        let started = self.0.start(|| Arc::new(vocab.clone()), grammar);
        started.map_err(|error| EngineError { reason: error.to_string() })
    }
}
