//! `POST /v1/embeddings`: what the model makes of texts, as numbers.
//!
//! Owns: the request, how many of its texts are on the line at once, and the answer. How rows are pooled is the tail's.

mod answer;
pub(crate) mod request;

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Request as HttpRequest, State};
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures_util::stream::{FuturesOrdered, StreamExt};
use protocol::{Found, HiddenRows, OfPrompt, Pooling, Token};
use scheduler::{Event, Finish, Refusal, Request, Timings};

use crate::api::{Api, Model};
use crate::auth::Caller;
use crate::body::{self, Body};
use crate::drain::Running;
use crate::error::ApiError;
use crate::generation::shown;
use crate::limits::{EMBEDDINGS_AT_ONCE, MAX_EMBEDDING_VALUES};
use crate::metrics::Metrics;
use crate::roll::Listed;
use crate::trace::{ChoiceTrace, RequestTrace};
use crate::{Submission, prompt};
use answer::Shape;
use request::EmbeddingRequest;

pub(crate) use answer::Answer;

const INPUT: &str = "input";

/// How the texts of a request are embedded.
struct Job {
    pooling: Pooling,
    caller: Caller,
    priority: i32,
    trace: Option<RequestTrace>,
}

/// `POST /v1/embeddings`.
pub(crate) async fn create(State(api): State<Api>, request: HttpRequest) -> Result<Response, ApiError> {
    let Body { model, fields, caller, size, trace } = body::read(&api, request).await?;
    let EmbeddingRequest { inputs, encoding, dimensions, pooling, normalise, priority } =
        EmbeddingRequest::read(&fields)?;
    let pooling = pooling_of(&model, pooling)?;
    let dimensions = dimensions_of(&model, dimensions)?;
    let texts: Vec<Vec<Token>> = {
        let model = model.clone();
        body::aside(size, move || inputs.into_iter().map(|input| prompt::tokens_of(&model, input)).collect())
            .await?
    };
    check(&model, &texts, pooling)?;
    let prompt_tokens = texts.iter().map(|text| text.len() as u64).sum();
    let found = embed(&api, &model, &texts, &Job { pooling, caller, priority, trace }).await?;
    let shape = Shape { encoding, pooling, dimensions, normalise };
    let n_bytes = found.iter().map(|rows| size_of_val(rows.values.as_slice())).sum();
    let body = body::aside(n_bytes, move || {
        serde_json::to_vec(&Answer::new(model.info.id.clone(), found, prompt_tokens, shape))
    })
    .await?
    .map_err(|error| ApiError::Internal(format!("the embeddings could not be written: {error}")))?;
    Ok(([(header::CONTENT_TYPE, "application/json")], body).into_response())
}

/// The pooling that is asked for, else the model's own.
fn pooling_of(model: &Model, asked: Option<Pooling>) -> Result<Pooling, ApiError> {
    let own = model.info.pooling.ok_or_else(|| {
        let message = "this model ranks texts or reads them in both directions, so it gives no embeddings here: serve \
                       another one for them";
        ApiError::value("model", message)
    })?;
    Ok(asked.unwrap_or(own))
}

/// How many values of each row are kept.
fn dimensions_of(model: &Model, asked: Option<u32>) -> Result<usize, ApiError> {
    let width = model.info.row_width;
    match asked {
        Some(asked) if asked > width => {
            let message = format!("`dimensions` is {asked}, but this model's embeddings have {width} values");
            Err(ApiError::value("dimensions", message))
        }
        asked => Ok(asked.unwrap_or(width) as usize),
    }
}

/// Whether every text can be computed and the answer is not too large; nothing has begun yet.
fn check(model: &Model, texts: &[Vec<Token>], pooling: Pooling) -> Result<(), ApiError> {
    let context = model.info.context;
    if let Some(text) = texts.iter().find(|text| text.len() > context as usize) {
        let prompt = u32::try_from(text.len()).unwrap_or(u32::MAX);
        return Err(ApiError::refused(Refusal::ContextLength { prompt, context }, INPUT));
    }
    if texts.iter().any(Vec::is_empty) {
        return Err(ApiError::refused(Refusal::EmptyPrompt, INPUT));
    }
    let n_vocab = model.tokenizer.n_vocab();
    let is_known = |token: &&Token| u32::try_from(token.0).is_ok_and(|id| id < n_vocab);
    if let Some(&token) = texts.iter().flatten().find(|token| !is_known(token)) {
        return Err(ApiError::refused(Refusal::UnknownToken(token), INPUT));
    }
    let n_rows = match pooling {
        Pooling::None => texts.iter().map(Vec::len).sum(),
        Pooling::Mean | Pooling::First | Pooling::Last => texts.len(),
    };
    let n_values = n_rows as u64 * u64::from(model.info.row_width);
    if n_values > MAX_EMBEDDING_VALUES {
        let message = format!(
            "the answer would have {n_values} numbers, more than the {MAX_EMBEDDING_VALUES} allowed: send `{INPUT}` in \
             several requests"
        );
        return Err(ApiError::value(INPUT, message));
    }
    Ok(())
}

/// Embeds the texts, some of them at once, in their order. The first failure cancels the rest.
async fn embed(
    api: &Api,
    model: &Model,
    texts: &[Vec<Token>],
    job: &Job,
) -> Result<Vec<HiddenRows>, ApiError> {
    let mut found = Vec::with_capacity(texts.len());
    let mut running = FuturesOrdered::new();
    let mut waiting = texts.iter();
    let mut next = waiting.next();
    loop {
        while let Some(text) = next.filter(|_| running.len() < EMBEDDINGS_AT_ONCE) {
            match Embedding::start(api, model, text, job).await {
                Ok(embedding) => running.push_back(embedding.finish()),
                // Others have filled the queue: a place comes free when one of ours is done.
                Err(ApiError::QueueFull { .. }) if !running.is_empty() => break,
                Err(error) => return Err(error),
            }
            next = waiting.next();
        }
        match running.next().await {
            Some(rows) => found.push(rows?),
            None => return Ok(found),
        }
    }
}

/// A text on the line. Dropping it cancels it.
struct Embedding {
    submission: Submission,
    running: Running,
    listed: Listed,
    metrics: Arc<Metrics>,
    traced: Option<ChoiceTrace>,
    rows: Option<HiddenRows>,
    queued: Duration,
    ended: bool,
}

impl Drop for Embedding {
    fn drop(&mut self) {
        if !self.ended {
            self.metrics.stopped("cancelled");
        }
    }
}

impl Embedding {
    async fn start(api: &Api, model: &Model, text: &[Token], job: &Job) -> Result<Self, ApiError> {
        let request = Request {
            max_tokens: Some(0),
            of_prompt: Some(OfPrompt::Embedding(job.pooling)),
            client: job.caller.client(),
            priority: job.priority,
            ..Request::new(text.to_vec())
        };
        let running = api.enter()?;
        let trace = job.trace.as_ref();
        let traced = trace.map(|trace| trace.choice(&model.info.id, || shown(model, text)));
        let submitted = api.line().submit(request, traced.as_ref().map(ChoiceTrace::journal)).await;
        let submission = submitted.map_err(|refusal| ApiError::refused(refusal, INPUT))?;
        let listed = api.roll().enter(submission.id(), job.caller, text.len() as u32, Some(0));
        let (metrics, queued) = (api.metrics().clone(), Duration::ZERO);
        Ok(Self { submission, running, listed, metrics, traced, rows: None, queued, ended: false })
    }

    /// Waits for its rows.
    async fn finish(mut self) -> Result<HiddenRows, ApiError> {
        loop {
            let event = tokio::select! {
                biased;
                event = self.submission.next() => event,
                error = self.running.over() => return Err(self.fail("failed", error)),
            };
            match event {
                Some(Event::Started { queued, .. }) => self.queued = queued,
                Some(Event::Prompt(Found::Rows(rows))) => match &mut self.rows {
                    Some(known) => known.values.extend(rows.values),
                    None => self.rows = Some(rows),
                },
                Some(Event::Prompt(Found::Logprobs(_)) | Event::Tokens { .. }) => {}
                Some(Event::Done { finish: Finish::Cancelled, .. }) => {
                    return Err(self.fail("cancelled", ApiError::Cancelled));
                }
                Some(Event::Done { timings, .. }) => return self.end(&timings),
                Some(Event::Failed(failure)) => return Err(self.fail("failed", failure.into())),
                None => {
                    let error = ApiError::Internal("the line gave up the request without a word".into());
                    return Err(self.fail("failed", error));
                }
            }
        }
    }

    fn end(&mut self, timings: &Timings) -> Result<HiddenRows, ApiError> {
        const FINISH: &str = "embedded";
        let Some(rows) = self.rows.take() else {
            let error = ApiError::Internal("the line has computed a text and told nothing of it".into());
            return Err(self.fail("failed", error));
        };
        self.ended = true;
        self.listed.ended(FINISH, self.queued, Some(timings));
        self.traced.iter().for_each(|traced| traced.finished(FINISH));
        self.metrics.ended(FINISH, self.queued, timings);
        Ok(rows)
    }

    fn fail(&mut self, reason: &'static str, error: ApiError) -> ApiError {
        self.ended = true;
        self.listed.ended(reason, self.queued, None);
        self.traced.iter().for_each(|traced| traced.finished(reason));
        self.metrics.stopped(reason);
        error
    }
}
