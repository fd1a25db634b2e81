//! Answers in the making: all choices of a request side by side, collected or as server-sent events.

use std::collections::VecDeque;
use std::convert::Infallible;
use std::time::Duration;

use axum::http::{HeaderName, HeaderValue};
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream::{self, BoxStream, SelectAll, StreamExt};
use serde_json::Value;

use crate::answer::Piece;
use crate::error::ApiError;
use crate::generation::{Ending, Generation, Step};
use crate::reply::{Reply, Usage};

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
pub(crate) async fn collect(generations: Vec<Generation>, reply: &Reply) -> Result<Value, ApiError> {
    let mut pieces: Vec<Piece> = generations.iter().map(|_| Piece::default()).collect();
    let mut endings: Vec<Option<Ending>> = generations.iter().map(|_| None).collect();
    let mut steps = side_by_side(generations);
    while let Some((index, step)) = steps.next().await {
        match step? {
            Step::Piece(piece) => pieces[index].append(piece),
            Step::End(mut ending) => {
                pieces[index].append(std::mem::take(&mut ending.piece));
                endings[index] = Some(ending);
            }
        }
    }
    let choices = pieces
        .into_iter()
        .zip(endings)
        .map(|(piece, ending)| (piece, ending.expect("a generation fails or ends")))
        .collect();
    Ok(reply.whole(choices))
}

/// Sends all choices as they come. Nothing is read from the line faster than the client takes it.
pub(crate) fn respond(
    generations: Vec<Generation>,
    reply: Reply,
    include_usage: bool,
    keep_alive: Duration,
) -> Response {
    let transcript = Transcript::new(generations, reply, include_usage);
    let events = stream::unfold(transcript, |mut transcript| async move {
        let data = transcript.next().await?;
        Some((Ok::<_, Infallible>(Event::default().data(data)), transcript))
    });
    let mut response = Sse::new(events).keep_alive(KeepAlive::new().interval(keep_alive)).into_response();
    // nginx would collect the whole stream before passing it on.
    response
        .headers_mut()
        .insert(HeaderName::from_static("x-accel-buffering"), HeaderValue::from_static("no"));
    response
}

/// The events of one stream, in order.
struct Transcript {
    reply: Reply,
    include_usage: bool,
    usage: Usage,
    /// `None` once the last event is in `ready`.
    steps: Option<Steps>,
    /// Events to send before the next step: at most one per choice, or three.
    ready: VecDeque<String>,
}

impl Transcript {
    fn new(generations: Vec<Generation>, reply: Reply, include_usage: bool) -> Self {
        let ready =
            (0..generations.len()).filter_map(|index| reply.opening(index)).map(|c| c.to_string()).collect();
        let steps = Some(side_by_side(generations));
        Self { reply, include_usage, usage: Usage::default(), steps, ready }
    }

    async fn next(&mut self) -> Option<String> {
        while self.ready.is_empty() {
            let step = self.steps.as_mut()?.next().await;
            self.handle(step);
        }
        self.ready.pop_front()
    }

    fn handle(&mut self, step: Option<(usize, Result<Step, ApiError>)>) {
        match step {
            Some((index, Ok(Step::Piece(piece)))) => self.send(&self.reply.delta(index, &piece)),
            Some((index, Ok(Step::End(ending)))) => {
                if !ending.piece.is_empty() {
                    self.send(&self.reply.delta(index, &ending.piece));
                }
                self.usage.add(&self.reply, index, &ending);
                self.send(&self.reply.closing(index, &ending));
            }
            Some((_, Err(error))) => {
                tracing::warn!(%error, "stream ended early");
                self.send(&error.body());
                self.steps = None;
            }
            None => {
                if self.include_usage {
                    self.send(&self.reply.usage_chunk(self.usage));
                }
                self.ready.push_back("[DONE]".into());
                self.steps = None;
            }
        }
    }

    fn send(&mut self, value: &Value) {
        self.ready.push_back(value.to_string());
    }
}
