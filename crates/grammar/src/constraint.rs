//! One sequence's place in its grammar.

use llguidance::Matcher;
use llguidance::api::StopReason;
use llguidance::toktrie::TokTrie;
use protocol::{After, Token};

use crate::error::{GrammarError, first_line};

/// A place in a grammar. It moves with the tokens that are certain, one by one.
pub struct Constraint {
    matcher: Matcher,
    /// Tokens that `matcher` has heard since the wait was over.
    n_heard: usize,
    wait: Option<Wait>,
    /// A grammar that may never begin was given up: nothing is asked any more.
    is_given_up: bool,
}

/// The text before the grammar begins.
struct Wait {
    mark: String,
    /// Whether the answer may end in here.
    may_end: bool,
    text: Vec<u8>,
    /// Where each token's text ends.
    ends: Vec<usize>,
    /// How many tokens `matcher` has heard of what the mark's last token said beyond it, once that has come.
    over: Option<usize>,
}

impl Wait {
    fn of(after: &After) -> Self {
        let mark = after.text.clone();
        Self { mark, may_end: after.may_end, text: Vec::new(), ends: Vec::new(), over: None }
    }

    /// One more token. What it says beyond the mark, if it completes that.
    fn hear(&mut self, bytes: &[u8]) -> Option<&[u8]> {
        let len = self.mark.len();
        let before = self.text.len().saturating_sub(len - 1);
        self.text.extend_from_slice(bytes);
        self.ends.push(self.text.len());
        let at = self.text[before..].windows(len).position(|text| text == self.mark.as_bytes())?;
        Some(&self.text[before + at + len..])
    }

    /// Takes back the last `n` tokens; how many the matcher has to take back for it.
    fn take_back(&mut self, n: usize) -> usize {
        if n == 0 {
            return 0;
        }
        self.ends.truncate(self.ends.len().saturating_sub(n));
        self.text.truncate(self.ends.last().copied().unwrap_or(0));
        self.over.take().unwrap_or(0)
    }
}

impl std::fmt::Debug for Constraint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Constraint").field("stop", &self.matcher.stop_reason()).finish_non_exhaustive()
    }
}

impl Constraint {
    pub(crate) fn new(matcher: Matcher, after: Option<&After>) -> Self {
        let wait = after.filter(|after| !after.text.is_empty()).map(Wait::of);
        Self { matcher, n_heard: 0, wait, is_given_up: false }
    }

    const fn is_waiting(&self) -> bool {
        matches!(&self.wait, Some(Wait { over: None, .. }))
    }

    /// Whether the answer may end before the grammar begins.
    pub(crate) const fn is_optional(&self) -> bool {
        matches!(&self.wait, Some(Wait { may_end: true, .. }))
    }

    /// Asks nothing of what follows.
    pub(crate) const fn give_up(&mut self) {
        self.is_given_up = true;
    }

    /// Forbids the tokens that cannot come next: their logits become minus infinity.
    ///
    /// # Errors
    /// If finding out takes more than a stage can spare. The grammar cannot be followed any further then; one that did not
    /// have to begin is given up without an error.
    pub fn mask(&mut self, logits: &mut [f32]) -> Result<(), GrammarError> {
        if self.is_given_up || (self.is_waiting() && self.is_optional()) {
            return Ok(());
        }
        if self.is_waiting() {
            let env = self.matcher.tok_env().map_err(|error| self.broken(&error))?;
            for &end in env.tok_trie().eos_tokens() {
                if let Some(logit) = logits.get_mut(end as usize) {
                    *logit = f32::NEG_INFINITY;
                }
            }
            return Ok(());
        }
        let allowed = match self.matcher.compute_mask_or_eos() {
            Ok(allowed) => allowed,
            Err(_) if self.is_optional() => {
                self.is_given_up = true;
                return Ok(());
            }
            Err(error) => return Err(self.broken(&error)),
        };
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
        if self.is_given_up {
            return Ok(false);
        }
        if let Some(wait) = self.wait.as_mut().filter(|wait| wait.over.is_none()) {
            wait_on(&mut self.matcher, wait, id)?;
            return Ok(self.is_over());
        }
        match self.matcher.try_consume_tokens(&[id]) {
            Ok(1) => {
                self.n_heard += 1;
                Ok(self.is_over())
            }
            Ok(_) => Err(GrammarError::Left { token }),
            Err(_) if self.is_optional() => {
                self.is_given_up = true;
                Ok(false)
            }
            Err(error) => Err(self.broken(&error)),
        }
    }

    /// Whether the grammar allows nothing more.
    #[must_use]
    pub fn is_over(&self) -> bool {
        !self.is_given_up && self.matcher.is_stopped()
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
        let of_mark = self.wait.as_mut().map_or(0, |wait| wait.take_back(n - of_grammar));
        if self.is_given_up || self.matcher.rollback(of_grammar + of_mark).is_err() {
            return false;
        }
        self.n_heard -= of_grammar;
        true
    }

    /// The tokens that must come next, as far as there is no choice.
    pub(crate) fn forced(&mut self) -> Vec<Token> {
        if self.is_given_up || self.is_waiting() || self.is_over() {
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

/// One more token before the grammar begins. What it says beyond the mark belongs to the grammar, if it fits there; else a
/// grammar that must begin begins behind it, and one that may goes on waiting.
fn wait_on(matcher: &mut Matcher, wait: &mut Wait, id: u32) -> Result<(), GrammarError> {
    let token = Token(id.cast_signed());
    let env = matcher.tok_env().map_err(|error| GrammarError::unusable(&error))?;
    let trie = env.tok_trie();
    let ends = trie.eos_tokens().contains(&id);
    if id as usize >= trie.vocab_size() || (ends && !wait.may_end) {
        return Err(GrammarError::Left { token });
    }
    let bytes = if ends { &[][..] } else { trie.token(id) };
    let rest = match wait.hear(bytes.strip_prefix(&[TokTrie::SPECIAL_TOKEN_MARKER]).unwrap_or(bytes)) {
        None => return Ok(()),
        Some(rest) => env.tokenize_bytes(rest),
    };
    let fits = rest.is_empty() || matches!(matcher.validate_tokens(&rest), Ok(n) if n == rest.len());
    if fits {
        let heard = matcher.try_consume_tokens(&rest).map_err(|error| GrammarError::unusable(&error))?;
        wait.over = Some(heard);
    } else if !wait.may_end {
        wait.over = Some(0);
    }
    Ok(())
}
