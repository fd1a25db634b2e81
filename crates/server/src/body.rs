//! Bodies of requests: read within limits, as fields, for the model that they name.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{FromRequest, Request};
use axum::http::StatusCode;
use tokio::time::timeout;

use crate::api::{Api, Model};
use crate::auth::Caller;
use crate::error::ApiError;
use crate::fields::Fields;
use crate::limits;
use crate::trace::RequestTrace;

/// A body, and the model that it is for.
pub(crate) struct Body {
    pub model: Arc<Model>,
    pub fields: Fields,
    pub caller: Caller,
    /// The request's, if it is traced.
    pub trace: Option<RequestTrace>,
    /// Bytes.
    pub size: usize,
}

/// Reads a request that needs the whole line.
pub(crate) async fn read(api: &Api, request: Request) -> Result<Body, ApiError> {
    read_for(api, api.open()?.clone(), request).await
}

/// Reads a request that needs only the model's vocabulary and template.
pub(crate) async fn read_for_model(api: &Api, request: Request) -> Result<Body, ApiError> {
    read_for(api, api.model()?.clone(), request).await
}

async fn read_for(api: &Api, model: Arc<Model>, request: Request) -> Result<Body, ApiError> {
    let caller = request.extensions().get().copied().unwrap_or_default();
    let trace = request.extensions().get().cloned();
    let body = timeout(limits::BODY_TIME, Bytes::from_request(request, &()))
        .await
        .map_err(|_| ApiError::TooSlow(limits::BODY_TIME))?
        .map_err(|rejection| match rejection.status() {
            StatusCode::PAYLOAD_TOO_LARGE => ApiError::TooLarge { limit: api.config().max_body_bytes },
            _ => ApiError::Json(rejection.body_text()),
        })?;
    let fields = Fields::parse(&body)?;
    if let Some(asked) = fields.text("model")? {
        model.answers_to(asked)?;
    }
    Ok(Body { model, fields, caller, trace, size: body.len() })
}

/// Runs work that takes as long as `size` bytes do: little work here, much on a thread where it holds up nobody.
pub(crate) async fn aside<T: Send + 'static>(
    size: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ApiError> {
    if size <= limits::TOKENISE_INLINE_BYTES { Ok(work()) } else { apart(work).await }
}

/// Runs work on a thread where it holds up nobody, however little it seems to be.
pub(crate) async fn apart<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ApiError> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| ApiError::Internal(format!("the prompt could not be prepared: {error}")))
}
