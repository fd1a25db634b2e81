//! Answers in the making: all choices of a request side by side, collected or as server-sent events.
//!
//! What the events look like is each API's own matter: see [`Wire`].

use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

use axum::http::{HeaderName, HeaderValue};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream::{self, BoxStream, SelectAll, Stream, StreamExt};
use protocol::TokenLogprobs;
use serde_json::Value;

use crate::answer::TokenInfo;
use crate::error::ApiError;
use crate::generation::{Delta, Ending, Generation, Step};
use crate::progress::Progress;
use crate::turn::Part;

/// One event of a stream.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Frame {
    /// Its name, in APIs that name events.
    pub event: Option<&'static str>,
    pub data: String,
}

impl Frame {
    /// An event without a name.
    pub(crate) fn data(value: &Value) -> Self {
        Self { event: None, data: value.to_string() }
    }

    /// An event that is named after its `type`.
    pub(crate) fn named(event: &'static str, value: &Value) -> Self {
        Self { event: Some(event), data: value.to_string() }
    }
}

/// How one API writes a stream. Calls come in this order: `open`; of each choice `progress` where it was asked for, any
/// number of `delta`s and one `end`; then `close`; or `fail` at any time as the last.
pub(crate) trait Wire: Send + 'static {
    /// The stream begins, with so many choices.
    fn open(&mut self, n: usize) -> Vec<Frame>;
    /// A choice's prompt is so far. Most APIs have no place for it.
    fn progress(&mut self, _index: usize, _progress: Progress) -> Vec<Frame> {
        Vec::new()
    }
    /// More of a choice.
    fn delta(&mut self, index: usize, delta: Delta) -> Vec<Frame>;
    /// A choice is over; its last delta came before.
    fn end(&mut self, index: usize, ending: &Ending) -> Vec<Frame>;
    /// The request failed.
    fn fail(&mut self, error: &ApiError) -> Vec<Frame>;
    /// All choices are over.
    fn close(&mut self) -> Vec<Frame>;
}

/// A whole turn.
#[derive(Debug, Default)]
pub(crate) struct Message {
    /// As [`Delta::prompt`].
    pub prompt: Option<Vec<TokenLogprobs>>,
    pub reasoning: String,
    pub text: String,
    pub calls: Vec<Call>,
    pub logprobs: Vec<TokenInfo>,
}

/// A call of a tool.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Call {
    pub id: String,
    pub name: String,
    /// JSON.
    pub arguments: String,
}

impl Message {
    /// Adds what came later.
    pub(crate) fn append(&mut self, delta: Delta) {
        for part in delta.parts {
            match part {
                Part::Reasoning(text) => self.reasoning.push_str(&text),
                Part::Text(text) => self.text.push_str(&text),
                Part::Call { id, name } => self.calls.push(Call { id, name, arguments: String::new() }),
                Part::Arguments(json) => {
                    self.calls.last_mut().expect("arguments follow their call").arguments.push_str(&json);
                }
            }
        }
        self.logprobs.extend(delta.logprobs);
        self.prompt = delta.prompt.or(self.prompt.take());
    }
}

/// The steps of all choices as they come, each with its choice's index. Dropping it cancels every choice.
type Steps = SelectAll<BoxStream<'static, (usize, Result<Step, ApiError>)>>;

fn side_by_side(generations: Vec<Generation>) -> Steps {
    stream::select_all(generations.into_iter().enumerate().map(|(index, generation)| {
        stream::try_unfold(generation, |mut generation| async move {
            Ok(generation.next().await?.map(|step| (step, generation)))
        })
        .map(move |step| (index, step))
        .boxed()
    }))
}

/// Waits for all choices. The first failure is the answer's, and cancels the others.
pub(crate) async fn collect(generations: Vec<Generation>) -> Result<Vec<(Message, Ending)>, ApiError> {
    let mut messages: Vec<Message> = generations.iter().map(|_| Message::default()).collect();
    let mut endings: Vec<Option<Ending>> = generations.iter().map(|_| None).collect();
    let mut steps = side_by_side(generations);
    while let Some((index, step)) = steps.next().await {
        match step? {
            Step::Progress(_) => {}
            Step::Delta(delta) => messages[index].append(delta),
            Step::End(mut ending) => {
                messages[index].append(std::mem::take(&mut ending.delta));
                endings[index] = Some(*ending);
            }
        }
    }
    let endings = endings.into_iter().map(|ending| ending.expect("a generation fails or ends"));
    Ok(messages.into_iter().zip(endings).collect())
}

/// Lets a wire hear a whole answer without sending anything.
pub(crate) async fn drive<W: Wire>(generations: Vec<Generation>, wire: W) -> Result<W, ApiError> {
    let mut transcript = Transcript::new(generations, wire);
    while transcript.next().await.is_some() {}
    match transcript.error {
        Some(error) => Err(error),
        None => Ok(transcript.wire),
    }
}

/// Sends all choices as they come. Nothing is read from the line faster than the client takes it.
pub(crate) fn respond(generations: Vec<Generation>, wire: impl Wire, keep_alive: Duration) -> Response {
    let transcript = Transcript::new(generations, wire);
    let frames = stream::unfold(transcript, |mut transcript| async move {
        let frame = transcript.next().await?;
        Some((frame, transcript))
    });
    send(frames, keep_alive)
}

/// Sends events as they come.
pub(crate) fn send(frames: impl Stream<Item = Frame> + Send + 'static, keep_alive: Duration) -> Response {
    let events = frames.map(|Frame { event, data }| {
        let sent = event.map_or_else(Event::default, |name| Event::default().event(name));
        Ok::<_, Infallible>(sent.data(data))
    });
    let mut response = Sse::new(events).keep_alive(KeepAlive::new().interval(keep_alive)).into_response();
    // nginx would collect the whole stream before passing it on.
    response
        .headers_mut()
        .insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    response
}

/// The events of one stream, in order.
struct Transcript<W> {
    wire: W,
    /// `None` once the last event is in `ready`.
    steps: Option<Steps>,
    /// Events to send before the next step: a few per choice at most.
    ready: VecDeque<Frame>,
    error: Option<ApiError>,
}

impl<W: Wire> Transcript<W> {
    fn new(generations: Vec<Generation>, mut wire: W) -> Self {
        let ready = wire.open(generations.len()).into();
        Self { wire, steps: Some(side_by_side(generations)), ready, error: None }
    }

    async fn next(&mut self) -> Option<Frame> {
        while self.ready.is_empty() {
            let step = self.steps.as_mut()?.next().await;
            self.handle(step);
        }
        self.ready.pop_front()
    }

    fn handle(&mut self, step: Option<(usize, Result<Step, ApiError>)>) {
        match step {
            Some((index, Ok(Step::Progress(progress)))) => {
                self.ready.extend(self.wire.progress(index, progress));
            }
            Some((index, Ok(Step::Delta(delta)))) => self.ready.extend(self.wire.delta(index, delta)),
            Some((index, Ok(Step::End(mut ending)))) => {
                let last = std::mem::take(&mut ending.delta);
                if !last.is_empty() {
                    self.ready.extend(self.wire.delta(index, last));
                }
                self.ready.extend(self.wire.end(index, &ending));
            }
            Some((_, Err(error))) => {
                tracing::warn!(%error, "stream ended early");
                self.ready.extend(self.wire.fail(&error));
                self.error = Some(error);
                self.steps = None;
            }
            None => {
                self.ready.extend(self.wire.close());
                self.steps = None;
            }
        }
    }
}
