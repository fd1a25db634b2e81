//! Answers in a given language: which tokens may come next, and which must.
//!
//! Owns: reading grammars (JSON schemas, regular expressions, Lark, GBNF) within limits, a sequence's place in one, and
//! the source of guesses that knows what a grammar forces. The work is done by llguidance. Does not know: llama.cpp,
//! sampling, links, HTTP, or why somebody wants a grammar.
#![forbid(unsafe_code)]

#[cfg(test)]
mod calls;
mod compile;
mod constraint;
mod error;
mod forced;
mod gbnf;
#[cfg(test)]
mod spoiled;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;
mod words;

pub use compile::{Grammars, LazyGrammars};
pub use constraint::Constraint;
pub use error::GrammarError;
pub use forced::Forced;
pub use words::Vocabulary;
