//! Grammars for one vocabulary: read within limits, and kept for the next request that brings the same.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use llguidance::api::{ParserLimits, TopLevelGrammar};
use llguidance::toktrie::{InferenceCapabilities, TokEnv};
use llguidance::{JsonCompileOptions, Matcher, ParserFactory};
use protocol::limits::MAX_GRAMMAR_BYTES;
use protocol::{Grammar, GrammarKind};
use serde_json::Value;

use crate::constraint::Constraint;
use crate::error::GrammarError;
use crate::gbnf;
use crate::words::{self, Vocabulary};

/// Grammars kept; clients send the same few again and again. One takes from some KB to a few MB.
const KEPT: usize = 16;
/// Lexer states of one sequence: some 60 MB at the very most.
const MAX_LEXER_STATES: usize = 50_000;
/// Symbols of a grammar: a few hundred KB of JSON schema.
const MAX_GRAMMAR_SIZE: usize = 200_000;
/// Nodes of the regular expressions, 50,000 a millisecond.
const INITIAL_LEXER_FUEL: u64 = 1_000_000;
/// Lexer steps for one token, 14,000 a millisecond.
const STEP_LEXER_FUEL: u64 = 200_000;
/// Parser items for one token, 20,000 a millisecond.
const STEP_MAX_ITEMS: usize = 50_000;
/// Parser items for one byte: four for each property that may be left out.
const MAX_ITEMS_IN_ROW: usize = 8_000;
/// Properties of one object: reading takes their square.
const MAX_PROPERTIES: usize = 1000;
/// The digits of `multipleOf`: reading takes as many states.
const MAX_MULTIPLE: u64 = 10_000;
/// The key by which llguidance hears how JSON is laid out.
const LAYOUT: &str = "x-guidance";

/// Reads grammars for a model. Usable from any thread.
pub struct Grammars {
    factory: ParserFactory,
    /// The newest last.
    kept: Mutex<VecDeque<(Grammar, Matcher)>>,
}

impl std::fmt::Debug for Grammars {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Grammars").finish_non_exhaustive()
    }
}

/// [`Grammars`] over one vocabulary, which is prepared when the first grammar comes.
#[derive(Default)]
pub struct LazyGrammars(OnceLock<Result<Grammars, GrammarError>>);

impl LazyGrammars {
    /// As [`Grammars::start`]. The vocabulary is asked for once. Takes from less than a millisecond to a second.
    ///
    /// # Errors
    /// If the vocabulary cannot be used, or as [`Grammars::start`].
    pub fn start(
        &self,
        vocabulary: impl FnOnce() -> Arc<dyn Vocabulary>,
        grammar: &Grammar,
    ) -> Result<Constraint, GrammarError> {
        self.0.get_or_init(|| Grammars::new(vocabulary())).as_ref().map_err(Clone::clone)?.start(grammar)
    }
}

impl Grammars {
    /// Prepares a vocabulary: for a hundred thousand tokens about a tenth of a second.
    ///
    /// # Errors
    /// If it is not usable.
    pub fn new(vocabulary: Arc<dyn Vocabulary>) -> Result<Self, GrammarError> {
        Self::of(&words::env(vocabulary)?)
    }

    pub(crate) fn of(env: &TokEnv) -> Result<Self, GrammarError> {
        let capabilities = InferenceCapabilities { ff_tokens: true, ..InferenceCapabilities::default() };
        let slices = llguidance::earley::SlicedBiasComputer::general_slices();
        let mut factory = ParserFactory::new(env, capabilities, &slices)
            .map_err(|error| GrammarError::Vocabulary { reason: crate::error::first_line(&error) })?;
        factory.quiet();
        *factory.limits_mut() = ParserLimits {
            initial_lexer_fuel: INITIAL_LEXER_FUEL,
            step_lexer_fuel: STEP_LEXER_FUEL,
            step_max_items: STEP_MAX_ITEMS,
            max_items_in_row: MAX_ITEMS_IN_ROW,
            max_lexer_states: MAX_LEXER_STATES,
            max_grammar_size: MAX_GRAMMAR_SIZE,
            // Takes long for exactly the grammars that are long already.
            precompute_large_lexemes: false,
            verbose_errors: false,
        };
        Ok(Self { factory, kept: Mutex::default() })
    }

    /// The place in the grammar behind what was said already; usually its beginning.
    ///
    /// # Errors
    /// If it cannot be read or followed, or what was said is not in it.
    pub fn start(&self, grammar: &Grammar) -> Result<Constraint, GrammarError> {
        let mut constraint = Constraint::new(self.matcher(grammar)?, grammar.after.as_ref());
        for &token in &grammar.said {
            match constraint.say(token) {
                Ok(_) => {}
                // It was given up before the interruption.
                Err(_) if constraint.is_optional() => constraint.give_up(),
                Err(error) => return Err(error),
            }
        }
        Ok(constraint)
    }

    fn matcher(&self, grammar: &Grammar) -> Result<Matcher, GrammarError> {
        if let Some(matcher) = self.known(grammar) {
            return Ok(matcher);
        }
        let matcher = self.compile(grammar)?;
        let first = matcher.deep_clone();
        let mut kept = self.kept();
        if kept.len() >= KEPT {
            kept.pop_front();
        }
        kept.push_back((Grammar::new(grammar.kind, grammar.text.clone()), matcher));
        Ok(first)
    }

    fn known(&self, grammar: &Grammar) -> Option<Matcher> {
        let mut kept = self.kept();
        let at =
            kept.iter().position(|(known, _)| (known.kind, &known.text) == (grammar.kind, &grammar.text))?;
        let entry = kept.remove(at)?;
        let matcher = entry.1.deep_clone();
        kept.push_back(entry);
        Some(matcher)
    }

    fn kept(&self) -> MutexGuard<'_, VecDeque<(Grammar, Matcher)>> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn compile(&self, grammar: &Grammar) -> Result<Matcher, GrammarError> {
        let bytes = grammar.text.len();
        if bytes > MAX_GRAMMAR_BYTES {
            return Err(GrammarError::TooLong { bytes, limit: MAX_GRAMMAR_BYTES });
        }
        // Checked for schemas alone; inside of another grammar nobody needs it.
        if grammar.kind != GrammarKind::JsonSchema && grammar.text.contains("multipleOf") {
            return Err(GrammarError::Unusable {
                reason: "multipleOf inside of a grammar is not supported".into(),
            });
        }
        let read = match grammar.kind {
            GrammarKind::JsonSchema => TopLevelGrammar::from_json_schema(schema(&grammar.text)?),
            GrammarKind::Regex => TopLevelGrammar::from_regex(&grammar.text),
            GrammarKind::Lark => TopLevelGrammar::from_lark(grammar.text.clone()),
            GrammarKind::Gbnf => TopLevelGrammar::from_lark(gbnf::to_lark(&grammar.text)?),
        };
        let parser = self.factory.create_parser(read).map_err(|error| GrammarError::unusable(&error))?;
        let mut matcher = Matcher::new(Ok(parser));
        // A grammar that allows nothing at all is found out before anything is computed for it.
        matcher.compute_mask_or_eos().map_err(|error| GrammarError::unusable(&error))?;
        Ok(matcher)
    }
}

/// Refuses what llguidance would take too long to read.
fn bound(schema: &Value) -> Result<(), GrammarError> {
    let mut ahead = vec![schema];
    while let Some(value) = ahead.pop() {
        match value {
            Value::Array(list) => ahead.extend(list),
            Value::Object(map) => {
                if map.len() > MAX_PROPERTIES {
                    let reason = format!(
                        "an object has {} properties, but may have at most {MAX_PROPERTIES}",
                        map.len()
                    );
                    return Err(GrammarError::Unusable { reason });
                }
                if let Some(step @ Value::Number(_)) = map.get("multipleOf") {
                    let digits: String = step.to_string().chars().filter(char::is_ascii_digit).collect();
                    if digits.parse().map_or(true, |digits: u64| digits > MAX_MULTIPLE) {
                        let reason =
                            format!("multipleOf is {step}, but its digits may make at most {MAX_MULTIPLE}");
                        return Err(GrammarError::Unusable { reason });
                    }
                }
                ahead.extend(map.values());
            }
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
    Ok(())
}

/// A schema for JSON without free white space.
fn schema(text: &str) -> Result<Value, GrammarError> {
    let mut schema: Value = serde_json::from_str(text).map_err(|error| GrammarError::unusable(&error))?;
    if schema == Value::Bool(true) {
        schema = Value::Object(serde_json::Map::new());
    }
    bound(&schema)?;
    let Value::Object(map) = &mut schema else {
        return Err(GrammarError::Unusable { reason: "a JSON schema is an object".into() });
    };
    // Layout is not the client's to choose.
    map.remove(LAYOUT);
    JsonCompileOptions { whitespace_flexible: false, ..JsonCompileOptions::default() }.apply_to(&mut schema);
    Ok(schema)
}
