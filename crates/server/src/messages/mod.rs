//! Anthropic's Messages API over the same chats as OpenAI's.
//!
//! Owns: what requests, answers, streams and errors look like there. A request is translated into a chat, so a field
//! that both APIs know means the same, and our further sampling parameters work here too.

pub(crate) mod request;
mod wire;

use axum::Json;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::api::Api;
use crate::body::{self, Body};
use crate::chat::{self, Running};
use crate::error::ApiError;
use crate::stream;
use wire::{Envelope, MessageStream};

pub(crate) use wire::Whole;

/// Paths that answer in Anthropic's form, errors included.
pub(crate) const PATH: &str = "/v1/messages";

/// Whether a request speaks Anthropic's language.
pub(crate) fn owns(request: &Request) -> bool {
    request.uri().path().starts_with(PATH)
}

/// An error in the form that the request's client knows.
pub(crate) fn refusal(request: &Request, error: ApiError) -> Response {
    if owns(request) { MessagesError(error).into_response() } else { error.into_response() }
}

/// An error in Anthropic's form.
pub(crate) struct MessagesError(pub ApiError);

impl From<ApiError> for MessagesError {
    fn from(error: ApiError) -> Self {
        Self(error)
    }
}

impl MessagesError {
    /// The envelope, also used inside streams.
    fn body(error: &ApiError) -> Value {
        let kind = match error.status().as_u16() {
            401 => "authentication_error",
            404 => "not_found_error",
            413 => "request_too_large",
            429 => "rate_limit_error",
            503 => "overloaded_error",
            500.. => "api_error",
            _ => "invalid_request_error",
        };
        json!({ "type": "error", "error": { "type": kind, "message": error.to_string() } })
    }
}

impl IntoResponse for MessagesError {
    fn into_response(self) -> Response {
        let body = Json(Self::body(&self.0));
        let (mut parts, _) = self.0.into_response().into_parts();
        parts.headers.remove(axum::http::header::CONTENT_LENGTH);
        let body = body.into_response().into_body();
        Response::from_parts(parts, body)
    }
}

/// `POST /v1/messages`. The header `anthropic-version` may be left out.
pub(crate) async fn create(State(api): State<Api>, request: Request) -> Result<Response, MessagesError> {
    let Body { model, fields, caller, trace, .. } = body::read(&api, request).await?;
    let mut chat = request::read(&fields, model.tokenizer.n_vocab())?;
    (chat.options.caller, chat.options.trace) = (caller, trace);
    let stream = chat.options.stream;
    let Running { generations, prompt_tokens } = chat::start(&api, &model, chat).await?;
    let envelope = Envelope {
        id: format!("msg_{}", Uuid::new_v4().simple()),
        model: model.info.id.clone(),
        prompt_tokens,
    };
    if stream {
        let keep_alive = api.config().keep_alive;
        return Ok(stream::respond(generations, MessageStream::new(envelope), keep_alive));
    }
    let choice = stream::collect(generations).await?.pop();
    let (message, ending) = choice.expect("one choice was asked for");
    Ok(Json(envelope.whole(message, &ending)).into_response())
}

/// How long a chat is.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Counted {
    input_tokens: usize,
}

/// `POST /v1/messages/count_tokens`. Needs no line.
pub(crate) async fn count_tokens(
    State(api): State<Api>,
    request: Request,
) -> Result<Json<Counted>, MessagesError> {
    let Body { model, fields, .. } = body::read_for_model(&api, request).await?;
    let chat = request::read(&fields, model.tokenizer.n_vocab())?;
    let (prompt, _) = chat::prepare(&model, chat).await?;
    Ok(Json(Counted { input_tokens: prompt.len() }))
}
