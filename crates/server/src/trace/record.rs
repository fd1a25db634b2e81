//! A request while it is traced, and the record that is left of it.
//!
//! Everything that works for the request holds a share of its [`RequestTrace`]: the response's body, and every choice,
//! also one in the background. When the last share is dropped the request is over, and its record goes to the sink.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use scheduler::{Journal, SharedJournal, StageSeen};

use super::parent::Parent;
use super::spans::{self, Choice, Span, Value, Whole};
use super::{TraceSink, Tracing};
use crate::generation::draw_seed;

/// Characters of a prompt, and of an answer, that a trace carries if it carries any: collectors cut long texts anyway.
const MAX_CONTENT: usize = 16 << 10;

/// A trace, ready to be sent.
#[derive(Clone, Debug, PartialEq)]
pub struct Trace {
    /// Not 0.
    pub id: u128,
    /// The caller's span, if it named one.
    pub parent: Option<u64>,
    /// What vendors wrote into the caller's `tracestate`.
    pub state: Option<String>,
    /// When the root started.
    pub started: SystemTime,
    /// The stages that the request ran on, stage 0 first; empty if it did not run.
    pub stages: Vec<StageSeen>,
    /// The root first.
    pub spans: Vec<Span>,
}

/// What is left of a request that is over.
pub struct Record {
    trace: u128,
    parent: Option<Parent>,
    head: Head,
    started: (Instant, SystemTime),
    took: Duration,
    first_id: u64,
    state: State,
}

/// What a request is known by before it is read.
#[derive(Clone, Debug)]
pub(crate) struct Head {
    pub method: &'static str,
    pub route: String,
    /// As the client's `x-request-id`.
    pub id: String,
}

/// A share of a traced request.
#[derive(Clone)]
pub(crate) struct RequestTrace(Arc<Inner>);

struct Inner {
    sink: Arc<dyn TraceSink>,
    content: bool,
    trace: u128,
    parent: Option<Parent>,
    head: Head,
    started: (Instant, SystemTime),
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    status: Option<u16>,
    model: Option<String>,
    choices: Vec<Traced>,
}

/// A choice so far.
#[derive(Default)]
struct Traced {
    journal: SharedJournal,
    finish: &'static str,
    prompt: String,
    answer: String,
}

/// A choice's share.
pub(crate) struct ChoiceTrace {
    trace: RequestTrace,
    at: usize,
}

impl RequestTrace {
    /// A trace of a request that has just come, if it is to be traced.
    pub(crate) fn begin(
        tracing: &Tracing,
        parent: Option<Parent>,
        head: impl FnOnce() -> Head,
    ) -> Option<Self> {
        let own = || (u128::from(draw_seed()) << 64 | u128::from(draw_seed())).max(1);
        let trace = parent.as_ref().map_or_else(own, |parent| parent.trace);
        if !tracing.sampler.takes(trace, parent.as_ref()) {
            return None;
        }
        Some(Self(Arc::new(Inner {
            sink: Arc::clone(&tracing.sink),
            content: tracing.content,
            trace,
            parent,
            head: head(),
            started: now(),
            state: Mutex::default(),
        })))
    }

    /// The trace's id, as logs have it.
    pub(crate) fn id(&self) -> String {
        format!("{:032x}", self.0.trace)
    }

    /// The head of the answer goes out.
    pub(crate) fn answered(&self, status: u16) {
        self.state().status = Some(status);
    }

    /// A choice goes to the line; `prompt` is only asked for if it is to be told.
    pub(crate) fn choice(&self, model: &str, prompt: impl FnOnce() -> String) -> ChoiceTrace {
        let prompt = if self.0.content { cut(prompt()) } else { String::new() };
        let mut state = self.state();
        state.model.get_or_insert_with(|| model.to_owned());
        state.choices.push(Traced { prompt, finish: "cancelled", ..Traced::default() });
        let at = state.choices.len() - 1;
        drop(state);
        ChoiceTrace { trace: self.clone(), at }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ChoiceTrace {
    /// For the line to write.
    pub(crate) fn journal(&self) -> SharedJournal {
        Arc::clone(&self.trace.state().choices[self.at].journal)
    }

    /// More of the answer, kept only if it is to be told.
    pub(crate) fn said(&self, text: &str) {
        if self.trace.0.content {
            let answer = &mut self.trace.state().choices[self.at].answer;
            if answer.len() < MAX_CONTENT {
                answer.push_str(text);
            }
        }
    }

    /// How it ended; nothing said is `cancelled`.
    pub(crate) fn finished(&self, finish: &'static str) {
        self.trace.state().choices[self.at].finish = finish;
    }
}

impl Drop for Inner {
    fn drop(&mut self) {
        let state = std::mem::take(self.state.get_mut().unwrap_or_else(PoisonError::into_inner));
        self.sink.take(Record {
            trace: self.trace,
            parent: self.parent.take(),
            head: self.head.clone(),
            started: self.started,
            took: now().0.saturating_duration_since(self.started.0),
            // Half of all numbers: the spans behind it never come round to 0.
            first_id: (draw_seed() >> 1).max(1),
            state,
        });
    }
}

impl Record {
    /// The trace of it. Takes about as long as encoding it, so it is not for those who serve.
    #[must_use]
    pub fn trace(self) -> Trace {
        let attributes = self.attributes();
        let Self { trace, parent, head, started, took, first_id, state } = self;
        let mut choices = Vec::with_capacity(state.choices.len());
        for Traced { journal, finish, .. } in state.choices {
            let journal = std::mem::take(&mut *journal.lock().unwrap_or_else(PoisonError::into_inner));
            choices.push(Choice { journal, finish });
        }
        let at = |journal: &Journal, moment: Duration| {
            let moment = journal.origin.map(|origin| origin + moment);
            moment.map_or(Duration::ZERO, |moment| moment.saturating_duration_since(started.0))
        };
        let failed = state.status.is_some_and(|status| status >= 500);
        let name = format!("{} {}", head.method, head.route);
        let spans = spans::of(Whole { name, took, attributes, failed, choices: &choices, at: &at, first_id });
        let stages =
            choices.into_iter().map(|choice| choice.journal.stages).find(|stages| !stages.is_empty());
        let (span, state) = parent.map_or((None, None), |parent| (Some(parent.span), parent.state));
        let stages = stages.unwrap_or_default();
        Trace { id: trace, parent: span, state, started: started.1, stages, spans }
    }

    fn attributes(&self) -> Vec<(&'static str, Value)> {
        let Head { method, route, id } = &self.head;
        let operation = match route.as_str() {
            "/v1/completions" => "text_completion",
            "/v1/embeddings" => "embeddings",
            _ => "chat",
        };
        let mut attributes = vec![
            ("http.request.method", Value::from(*method)),
            ("http.route", Value::Text(route.clone())),
            ("gen_ai.operation.name", operation.into()),
            ("gen_ai.provider.name", "paceline".into()),
            ("paceline.request_id", Value::Text(id.clone())),
        ];
        match self.state.status {
            Some(status) => {
                attributes.push(("http.response.status_code", Value::Number(u64::from(status))));
                if status >= 500 {
                    attributes.push(("error.type", Value::Text(status.to_string())));
                }
            }
            // The client left before there was an answer.
            None => attributes.push(("paceline.outcome", "cancelled".into())),
        }
        if let Some(model) = &self.state.model {
            attributes.push(("gen_ai.request.model", Value::Text(model.clone())));
        }
        let told = |text: fn(&Traced) -> &String| -> Vec<String> {
            self.state.choices.iter().map(text).filter(|text| !text.is_empty()).cloned().collect()
        };
        for (name, texts) in [
            ("paceline.prompts", told(|choice| &choice.prompt)),
            ("paceline.answers", told(|choice| &choice.answer)),
        ] {
            if !texts.is_empty() {
                attributes.push((name, Value::Words(texts)));
            }
        }
        attributes
    }
}

/// At most [`MAX_CONTENT`] bytes of a text, in whole characters.
fn cut(mut text: String) -> String {
    let end = (0..=MAX_CONTENT.min(text.len())).rev().find(|&end| text.is_char_boundary(end));
    text.truncate(end.unwrap_or(0));
    text
}

/// The time, by both clocks: one for durations, one for the people who look at them.
#[expect(clippy::disallowed_methods, reason = "a driver: the time goes into the trace, and decides nothing")]
fn now() -> (Instant, SystemTime) {
    (Instant::now(), SystemTime::now())
}

impl fmt::Debug for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Record").field("head", &self.head).finish_non_exhaustive()
    }
}

impl fmt::Debug for RequestTrace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RequestTrace").field("id", &self.id()).finish_non_exhaustive()
    }
}

impl PartialEq for RequestTrace {
    /// Whether they are shares of the same one.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}
