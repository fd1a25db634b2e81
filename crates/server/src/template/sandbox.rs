//! Where templates run: apart from whoever wants their text.
//!
//! minijinja bounds a template's steps, and [`script`](super::script) what it writes. Neither bounds what a step takes: a
//! text that is doubled forty times, or lists within lists without end, would take all memory or the whole stack. So the
//! template is run by a process that may lose both, and is asked from here in one message and answered in another.
//!
//! Owns: these messages, and both sides of them. Does not know processes: who starts them implements [`TemplateHost`].

use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, SystemTime};

use minijinja::value::Value;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};

use super::TemplateError;
use super::script::{Script, Traits};
use crate::limits::MAX_TEMPLATE_BYTES;

/// Bytes in an answer of [`TemplateWriter`] at most: a text behind the byte that says so.
pub const MAX_TEMPLATE_ANSWER: usize = MAX_TEMPLATE_BYTES + 1;
/// Bytes of what a template says when it fails: people read it.
const MAX_SAID: usize = 4096;

/// Runs [`TemplateWriter`], usually in a process of its own.
pub trait TemplateHost: fmt::Debug + Send + Sync + 'static {
    /// What [`TemplateWriter::answer`] gives for this question. Blocks until it is there.
    ///
    /// # Errors
    /// If there is none.
    fn ask(&self, question: Vec<u8>) -> Result<Vec<u8>, TemplateHostError>;
}

/// Why a template's text did not come.
#[derive(Debug, thiserror::Error)]
pub enum TemplateHostError {
    /// The process that ran it did not survive it.
    #[error("it ends the process that runs it, by taking more than {} MiB of memory or by nesting too deep", memory >> 20)]
    Ended {
        /// What it may take, in bytes.
        memory: usize,
    },
    /// It was given up.
    #[error("it takes longer than {} s", limit.as_secs_f32())]
    TooLong {
        /// What it may take.
        limit: Duration,
    },
    /// There is no process to run it.
    #[error("its process could not be started: {0}")]
    NotStarted(#[source] std::io::Error),
    /// All processes were busy with other conversations.
    #[error("others' conversations take too long")]
    Busy,
}

impl From<TemplateHostError> for TemplateError {
    fn from(error: TemplateHostError) -> Self {
        match error {
            TemplateHostError::Ended { .. } | TemplateHostError::TooLong { .. } => {
                Self::Failed(error.to_string())
            }
            TemplateHostError::NotStarted(_) | TemplateHostError::Busy => Self::NotRun(error.to_string()),
        }
    }
}

/// Runs templates right here: for models whose templates are trusted as much as this program is, as in tests.
#[derive(Default)]
pub struct SameProcess(Mutex<TemplateWriter>);

impl TemplateHost for SameProcess {
    fn ask(&self, question: Vec<u8>) -> Result<Vec<u8>, TemplateHostError> {
        Ok(self.0.lock().unwrap_or_else(PoisonError::into_inner).answer(question))
    }
}

impl fmt::Debug for SameProcess {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SameProcess").finish_non_exhaustive()
    }
}

/// What a template makes use of.
pub(super) fn look(host: &dyn TemplateHost, source: &str) -> Result<Traits, TemplateError> {
    match ask(host, source, &Asked::Traits)? {
        Answer::Traits(traits) => Ok(traits),
        Answer::Text(_) => Err(unreadable()),
    }
}

/// What a template writes for these variables.
pub(super) fn write(
    host: &dyn TemplateHost,
    source: &str,
    variables: &Map<String, Json>,
    now: SystemTime,
) -> Result<String, TemplateError> {
    let now = now.duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    match ask(host, source, &Asked::Text { variables, now })? {
        Answer::Text(text) => Ok(text),
        Answer::Traits(_) => Err(unreadable()),
    }
}

fn ask(
    host: &dyn TemplateHost,
    source: &str,
    asked: &Asked<&Map<String, Json>>,
) -> Result<Answer, TemplateError> {
    // The template goes first and as it is: it is the same every time, and comparing it is cheaper than reading it.
    let mut question = Vec::with_capacity(source.len() + 1024);
    question.extend_from_slice(&(source.len() as u64).to_le_bytes());
    question.extend_from_slice(source.as_bytes());
    serde_json::to_writer(&mut question, asked).map_err(|error| TemplateError::NotRun(error.to_string()))?;
    read(&host.ask(question)?)
}

/// What is asked of a template.
#[derive(Serialize, Deserialize)]
enum Asked<V> {
    /// What it makes use of.
    Traits,
    /// Its text.
    Text {
        variables: V,
        /// Since 1970.
        now: Duration,
    },
}

/// What a template gave.
enum Answer {
    Traits(Traits),
    Text(String),
}

/// The first byte of an answer.
mod kind {
    pub(super) const TRAITS: u8 = 0;
    pub(super) const TEXT: u8 = 1;
    pub(super) const SYNTAX: u8 = 2;
    pub(super) const REFUSED: u8 = 3;
    pub(super) const FAILED: u8 = 4;
    pub(super) const NOT_RUN: u8 = 5;
}

fn read(answer: &[u8]) -> Result<Answer, TemplateError> {
    let (&kind, said) = answer.split_first().ok_or_else(unreadable)?;
    let text = || String::from_utf8(said.to_vec()).map_err(|_| unreadable());
    match kind {
        kind::TRAITS => serde_json::from_slice(said).map(Answer::Traits).map_err(|_| unreadable()),
        kind::TEXT => text().map(Answer::Text),
        kind::SYNTAX => Err(TemplateError::Syntax(text()?)),
        kind::REFUSED => Err(TemplateError::Refused(text()?)),
        kind::FAILED => Err(TemplateError::Failed(text()?)),
        kind::NOT_RUN => Err(TemplateError::NotRun(text()?)),
        _ => Err(unreadable()),
    }
}

fn unreadable() -> TemplateError {
    TemplateError::NotRun("its process answers something else than was asked".to_owned())
}

/// The side that runs templates. Keeps the last one compiled.
#[derive(Default)]
pub struct TemplateWriter {
    script: Option<Script>,
}

impl TemplateWriter {
    /// The answer to a question. May take any memory and any stack, and as long as the template's steps do.
    pub fn answer(&mut self, question: Vec<u8>) -> Vec<u8> {
        let (kind, said) = match self.result_of(question) {
            Ok(Answer::Traits(traits)) => match serde_json::to_vec(&traits) {
                Ok(traits) => (kind::TRAITS, traits),
                Err(error) => (kind::NOT_RUN, error.to_string().into_bytes()),
            },
            Ok(Answer::Text(text)) => (kind::TEXT, text.into_bytes()),
            Err(TemplateError::Syntax(said)) => (kind::SYNTAX, beginning(said)),
            Err(TemplateError::Refused(said)) => (kind::REFUSED, beginning(said)),
            Err(TemplateError::Failed(said)) => (kind::FAILED, beginning(said)),
            Err(TemplateError::NotRun(said)) => (kind::NOT_RUN, beginning(said)),
        };
        let mut answer = said;
        answer.insert(0, kind);
        answer
    }

    fn result_of(&mut self, question: Vec<u8>) -> Result<Answer, TemplateError> {
        let (source, asked) = parts_of(&question)
            .ok_or_else(|| TemplateError::NotRun("the question has no template".to_owned()))?;
        let script = match self.script.take() {
            Some(script) if script.source() == source => script,
            _ => Script::new(source)?,
        };
        let script = self.script.insert(script);
        let mut asked = serde_json::Deserializer::from_slice(asked);
        // Who asks has read all this within limits, and what it was put into makes it a little deeper.
        asked.disable_recursion_limit();
        let asked = Asked::<Value>::deserialize(&mut asked)
            .map_err(|error| TemplateError::NotRun(error.to_string()))?;
        drop(question);
        match asked {
            Asked::Traits => Ok(Answer::Traits(script.traits())),
            Asked::Text { variables, now } => {
                script.write(variables, SystemTime::UNIX_EPOCH + now).map(Answer::Text)
            }
        }
    }
}

/// The template, and what is asked of it.
fn parts_of(question: &[u8]) -> Option<(&str, &[u8])> {
    let (length, rest) = question.split_first_chunk()?;
    let (source, asked) = rest.split_at_checked(usize::try_from(u64::from_le_bytes(*length)).ok()?)?;
    Some((std::str::from_utf8(source).ok()?, asked))
}

/// As much of a message as people read.
fn beginning(mut said: String) -> Vec<u8> {
    let end = (0..=MAX_SAID.min(said.len())).rev().find(|&end| said.is_char_boundary(end));
    said.truncate(end.unwrap_or_default());
    said.into_bytes()
}
