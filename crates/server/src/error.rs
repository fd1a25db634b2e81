//! Everything that can go wrong for a client, and its JSON: OpenAI's `{"error": {message, type, param, code}}`.
//!
//! Owns: status codes, types, codes, headers. The message says what to do.

use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use scheduler::{Failure, Refusal};
use serde_json::{Value, json};

use crate::limits::{self, MAX_WATCHERS};

/// An error as a client sees it.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub(crate) enum ApiError {
    /// Something about one field, or about the request as a whole.
    #[error("{message}")]
    Invalid { code: &'static str, param: Option<String>, message: String },
    #[error("the body is not valid JSON: {0}")]
    Json(String),
    #[error("the model `{asked}` does not exist here: use `{ours}` or `default`")]
    UnknownModel { asked: String, ours: String },
    #[error("there is no response `{0}` here: it was never stored, was deleted, or made room for later ones")]
    UnknownResponse(String),
    #[error(
        "this model's context holds {context} tokens, prompt and answer together, but the prompt has {prompt} tokens: \
         shorten it"
    )]
    ContextLength { prompt: u32, context: u32, param: &'static str },
    #[error("the line is not ready: {reason}")]
    NotReady { reason: String, progress: Option<f32> },
    #[error("the queue of {limit} requests is full: try again in a moment")]
    QueueFull { limit: u32 },
    #[error("no place on the line became free within {} s: try again later", .0.as_secs())]
    QueueTimeout(std::time::Duration),
    #[error("there is no request `{0}` of yours that waits or runs: it may be over already")]
    UnknownRequest(String),
    #[error("{MAX_WATCHERS} programs watch the line already: close one of them")]
    TooManyWatchers,
    #[error(
        "{limit} clients read the events of kept responses already: try again in a moment, or get the response without \
         `stream`"
    )]
    TooManyReplays { limit: u32 },
    #[error("no valid API key: send `Authorization: Bearer KEY`")]
    Unauthorised,
    #[error(
        "a page of {0} may not send requests here: start the server with --cors and its origin if it should"
    )]
    ForeignPage(String),
    #[error("there is no {0} here: see the README for the routes")]
    UnknownUrl(String),
    #[error("{0} is not allowed on this route")]
    MethodNotAllowed(String),
    #[error("the body has more than {limit} bytes: send less")]
    TooLarge { limit: usize },
    #[error("the request's head has more than {bytes} bytes or {headers} headers: send less")]
    HeadTooLarge { bytes: usize, headers: usize },
    #[error("there are {limit} connections already: close idle ones, or try again in a moment")]
    TooManyConnections { limit: usize },
    #[error("the body did not arrive within {} s", .0.as_secs())]
    TooSlow(std::time::Duration),
    #[error("the request was cancelled on the server")]
    Cancelled,
    #[error("the line was lost: {0}")]
    LineLost(String),
    #[error("internal error: {0}")]
    Internal(String),
}

impl ApiError {
    /// A value that a field cannot have.
    pub(crate) fn value(param: impl Into<String>, message: impl Into<String>) -> Self {
        Self::Invalid { code: "invalid_value", param: Some(param.into()), message: message.into() }
    }

    /// A field that has to be there.
    pub(crate) fn missing(param: &str) -> Self {
        Self::Invalid {
            code: "missing_required_parameter",
            param: Some(param.into()),
            message: format!("`{param}` is missing"),
        }
    }

    /// A field that means something, but that this build cannot honour.
    pub(crate) fn unsupported(param: &str) -> Self {
        Self::Invalid {
            code: "unsupported_parameter",
            param: Some(param.into()),
            message: format!("`{param}` is not supported: leave it out"),
        }
    }

    /// The line's refusal of a prompt that came in `param`.
    pub(crate) fn refused(refusal: Refusal, param: &'static str) -> Self {
        match refusal {
            Refusal::ContextLength { prompt, context } => Self::ContextLength { prompt, context, param },
            Refusal::NothingToGenerate => Self::value("max_tokens", refusal.to_string()),
            Refusal::EmptyPrompt => Self::value(param, format!("`{param}` holds no tokens: send some text")),
            Refusal::UnknownToken(token) => {
                Self::value(param, format!("token {token} is not in the model's vocabulary"))
            }
            Refusal::QueueFull { limit } => Self::QueueFull { limit },
            Refusal::NotReady => Self::NotReady { reason: "a stage is missing".into(), progress: None },
        }
    }

    pub(crate) fn status(&self) -> StatusCode {
        match self {
            Self::Invalid { .. } | Self::Json(_) | Self::ContextLength { .. } | Self::Cancelled => {
                StatusCode::BAD_REQUEST
            }
            Self::UnknownModel { .. }
            | Self::UnknownResponse(_)
            | Self::UnknownRequest(_)
            | Self::UnknownUrl(_) => StatusCode::NOT_FOUND,
            Self::NotReady { .. } | Self::LineLost(_) | Self::TooManyConnections { .. } => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            Self::HeadTooLarge { .. } => StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE,
            Self::QueueFull { .. }
            | Self::QueueTimeout(_)
            | Self::TooManyWatchers
            | Self::TooManyReplays { .. } => StatusCode::TOO_MANY_REQUESTS,
            Self::Unauthorised => StatusCode::UNAUTHORIZED,
            Self::ForeignPage(_) => StatusCode::FORBIDDEN,
            Self::MethodNotAllowed(_) => StatusCode::METHOD_NOT_ALLOWED,
            Self::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::TooSlow(_) => StatusCode::REQUEST_TIMEOUT,
            Self::Internal(_) => StatusCode::INTERNAL_SERVER_ERROR,
        }
    }

    pub(crate) fn code(&self) -> &'static str {
        match self {
            Self::Invalid { code, .. } => code,
            Self::Json(_) => "invalid_json",
            Self::UnknownModel { .. } => "model_not_found",
            Self::UnknownResponse(_) => "response_not_found",
            Self::UnknownRequest(_) => "request_not_found",
            Self::TooManyWatchers => "too_many_watchers",
            Self::TooManyReplays { .. } => "too_many_replays",
            Self::ContextLength { .. } => "context_length_exceeded",
            Self::NotReady { .. } => "not_ready",
            Self::QueueFull { .. } => "queue_full",
            Self::QueueTimeout(_) => "queue_timeout",
            Self::Unauthorised => "invalid_api_key",
            Self::ForeignPage(_) => "origin_not_allowed",
            Self::UnknownUrl(_) => "unknown_url",
            Self::MethodNotAllowed(_) => "method_not_allowed",
            Self::TooLarge { .. } => "request_too_large",
            Self::HeadTooLarge { .. } => "headers_too_large",
            Self::TooManyConnections { .. } => "too_many_connections",
            Self::TooSlow(_) => "request_timeout",
            Self::Cancelled => "cancelled",
            Self::LineLost(_) => "line_lost",
            Self::Internal(_) => "internal_error",
        }
    }

    fn kind(&self) -> &'static str {
        match self.status() {
            StatusCode::TOO_MANY_REQUESTS => "rate_limit_error",
            StatusCode::SERVICE_UNAVAILABLE => "service_unavailable_error",
            status if status.is_server_error() => "server_error",
            _ => "invalid_request_error",
        }
    }

    fn param(&self) -> Option<&str> {
        match self {
            Self::Invalid { param, .. } => param.as_deref(),
            Self::UnknownModel { .. } => Some("model"),
            Self::ContextLength { param, .. } => Some(param),
            _ => None,
        }
    }

    /// The envelope, also used inside streams.
    pub(crate) fn body(&self) -> Value {
        let mut error = json!({
            "message": self.to_string(),
            "type": self.kind(),
            "param": self.param(),
            "code": self.code(),
        });
        if let Self::NotReady { reason, progress } = self {
            error["reason"] = json!(reason);
            error["progress"] = json!(progress);
        }
        json!({ "error": error })
    }
}

impl From<Failure> for ApiError {
    fn from(failure: Failure) -> Self {
        match failure {
            Failure::QueueTimeout { waited } => Self::QueueTimeout(waited),
            Failure::QueueFull { limit } => Self::QueueFull { limit },
            Failure::LineLost { reason } => Self::LineLost(reason),
            Failure::Parameters { reason } => {
                Self::Invalid { code: "invalid_value", param: None, message: reason }
            }
            Failure::Fault { reason } => Self::Internal(reason),
        }
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        if let Self::Internal(reason) = &self {
            tracing::error!(%reason, "request failed");
        }
        let mut response = (self.status(), axum::Json(self.body())).into_response();
        match self {
            Self::QueueFull { .. }
            | Self::QueueTimeout(_)
            | Self::TooManyReplays { .. }
            | Self::NotReady { .. }
            | Self::LineLost(_) => {
                response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(limits::RETRY_AFTER));
            }
            Self::Unauthorised => {
                response.headers_mut().insert(header::WWW_AUTHENTICATE, HeaderValue::from_static("Bearer"));
            }
            _ => {}
        }
        response
    }
}
