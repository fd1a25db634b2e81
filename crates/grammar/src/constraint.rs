//! One sequence's place in its grammar.

use llguidance::Matcher;
use llguidance::api::StopReason;
use llguidance::toktrie::TokTrie;
use protocol::Token;

use crate::error::{GrammarError, first_line};

/// A place in a grammar. It moves with the tokens that are certain, one by one.
pub struct Constraint {
    matcher: Matcher,
    /// Tokens that `matcher` has heard.
    n_heard: usize,
    wait: Option<Wait>,
}

/// The text before the grammar begins.
struct Wait {
    mark: String,
    text: Vec<u8>,
    /// Where each token's text ends.
    ends: Vec<usize>,
    is_over: bool,
}

impl Wait {
    /// One more token; whether it completes the mark.
    fn hear(&mut self, bytes: &[u8]) {
        let before = self.text.len().saturating_sub(self.mark.len().saturating_sub(1));
        self.text.extend_from_slice(bytes);
        self.ends.push(self.text.len());
        self.is_over = self.text[before..].windows(self.mark.len()).any(|text| text == self.mark.as_bytes());
    }

    fn take_back(&mut self, n: usize) {
        self.is_over &= n == 0;
        self.ends.truncate(self.ends.len().saturating_sub(n));
        self.text.truncate(self.ends.last().copied().unwrap_or(0));
    }
}

impl std::fmt::Debug for Constraint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Constraint").field("stop", &self.matcher.stop_reason()).finish_non_exhaustive()
    }
}

impl Constraint {
    pub(crate) fn new(matcher: Matcher, after: Option<&str>) -> Self {
        let wait = after.filter(|mark| !mark.is_empty()).map(|mark| Wait {
            mark: mark.to_owned(),
            text: Vec::new(),
            ends: Vec::new(),
            is_over: false,
        });
        Self { matcher, n_heard: 0, wait }
    }

    const fn is_waiting(&self) -> bool {
        matches!(&self.wait, Some(wait) if !wait.is_over)
    }

    /// Forbids the tokens that cannot come next: their logits become minus infinity.
    ///
    /// # Errors
    /// If finding out takes more than a stage can spare. The grammar cannot be followed any further then.
    pub fn mask(&mut self, logits: &mut [f32]) -> Result<(), GrammarError> {
        if self.is_waiting() {
            let env = self.matcher.tok_env().map_err(|error| self.broken(&error))?;
            for &end in env.tok_trie().eos_tokens() {
                if let Some(logit) = logits.get_mut(end as usize) {
                    *logit = f32::NEG_INFINITY;
                }
            }
            return Ok(());
        }
        let allowed = self.matcher.compute_mask_or_eos().map_err(|error| self.broken(&error))?;
        for (words, logits) in allowed.as_slice().iter().zip(logits.chunks_mut(32)) {
            match words {
                0 => logits.fill(f32::NEG_INFINITY),
                &u32::MAX => {}
                &word => logits
                    .iter_mut()
                    .enumerate()
                    .filter(|(bit, _)| word & (1 << bit) == 0)
                    .for_each(|(_, logit)| *logit = f32::NEG_INFINITY),
            }
        }
        if let Some(beyond) = logits.get_mut(allowed.len()..) {
            beyond.fill(f32::NEG_INFINITY);
        }
        Ok(())
    }

    /// The token has been said. Whether the grammar allows nothing more after it.
    ///
    /// # Errors
    /// If it may not be said here. The place is lost then.
    pub fn say(&mut self, token: Token) -> Result<bool, GrammarError> {
        let id = u32::try_from(token.0).map_err(|_| GrammarError::Left { token })?;
        if let Some(wait) = self.wait.as_mut().filter(|wait| !wait.is_over) {
            let env = self.matcher.tok_env().map_err(|error| GrammarError::unusable(&error))?;
            let trie = env.tok_trie();
            if id as usize >= trie.vocab_size() || trie.eos_tokens().contains(&id) {
                return Err(GrammarError::Left { token });
            }
            let bytes = trie.token(id);
            wait.hear(bytes.strip_prefix(&[TokTrie::SPECIAL_TOKEN_MARKER]).unwrap_or(bytes));
            return Ok(false);
        }
        match self.matcher.try_consume_tokens(&[id]) {
            Ok(1) => {
                self.n_heard += 1;
                Ok(self.is_over())
            }
            Ok(_) => Err(GrammarError::Left { token }),
            Err(error) => Err(self.broken(&error)),
        }
    }

    /// Whether the grammar allows nothing more.
    #[must_use]
    pub fn is_over(&self) -> bool {
        self.matcher.is_stopped()
    }

    /// Says as many of these as are allowed, up to the grammar's end.
    pub(crate) fn try_say(&mut self, tokens: &[Token]) -> usize {
        let mut said = 0;
        for token in tokens {
            if self.is_over() || self.say(*token).is_err() {
                break;
            }
            said += 1;
        }
        said
    }

    /// Takes back the last `n` tokens; false if that is no longer possible.
    pub(crate) fn take_back(&mut self, n: usize) -> bool {
        let of_grammar = n.min(self.n_heard);
        if self.matcher.rollback(of_grammar).is_err() {
            return false;
        }
        self.n_heard -= of_grammar;
        if let Some(wait) = &mut self.wait {
            wait.take_back(n - of_grammar);
        }
        true
    }

    /// The tokens that must come next, as far as there is no choice.
    pub(crate) fn forced(&mut self) -> Vec<Token> {
        if self.is_waiting() || self.is_over() {
            return Vec::new();
        }
        self.matcher.compute_ff_tokens().into_iter().map(|id| Token(id.cast_signed())).collect()
    }

    fn broken(&self, error: &impl std::fmt::Display) -> GrammarError {
        let reason = match self.matcher.stop_reason() {
            StopReason::LexerTooComplex => "a regular expression in it has too many states".to_owned(),
            StopReason::ParserTooComplex => "it can be read in too many ways".to_owned(),
            _ => first_line(error),
        };
        GrammarError::TooComplex { reason }
    }
}
