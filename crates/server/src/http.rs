//! The router: routes, and what surrounds every one of them.

use std::any::Any;
use std::net::SocketAddr;

use axum::Router;
use axum::extract::{ConnectInfo, DefaultBodyLimit, MatchedPath, Request, State};
use axum::http::{HeaderName, HeaderValue};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use tower_http::catch_panic::CatchPanicLayer;
use tracing::Instrument;
use uuid::Uuid;

use crate::api::Api;
use crate::auth::Caller;
use crate::error::ApiError;
use crate::{
    console, embeddings, events, limits, messages, openapi, props, responses, routes, trace, utility,
};

pub(crate) const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// Where Anthropic's clients look for it.
const ANTHROPICS_ID: HeaderName = HeaderName::from_static("request-id");
/// Paths that need no key: they tell a load balancer what it must know and nothing else.
const OPEN: [&str; 2] = ["/health", "/ready"];

/// All routes over `api`.
pub fn router(api: Api) -> Router {
    let cors = api.config().cors.layer();
    let body_limit = DefaultBodyLimit::max(api.config().max_body_bytes);
    let router = Router::new()
        .route("/", get(console::page))
        .route("/console/{file}", get(console::part))
        .route("/health", get(routes::health))
        .route("/ready", get(routes::ready))
        .route("/openapi.json", get(openapi::document))
        .route("/metrics", get(routes::metrics))
        .route("/props", get(props::props))
        .route("/tokenize", post(utility::tokenize))
        .route("/detokenize", post(utility::detokenize))
        .route("/apply-template", post(utility::apply_template))
        .route("/v1/line", get(routes::line))
        .route("/v1/line/events", get(events::events))
        .route("/v1/requests/{id}/cancel", post(routes::cancel))
        .route("/v1/models", get(routes::models))
        .route("/v1/models/{*id}", get(routes::model))
        .route("/v1/chat/completions", post(routes::chat))
        .route("/v1/completions", post(routes::completions))
        .route("/v1/embeddings", post(embeddings::create))
        .route("/v1/responses", post(responses::create))
        .route("/v1/responses/{id}", get(responses::get).delete(responses::delete))
        .route("/v1/responses/{id}/cancel", post(responses::cancel))
        .route("/v1/responses/{id}/input_items", get(responses::input_items))
        .route(messages::PATH, post(messages::create))
        .route("/v1/messages/count_tokens", post(messages::count_tokens))
        .method_not_allowed_fallback(routes::wrong_method)
        .fallback(routes::unknown_url)
        .layer(body_limit)
        .layer(middleware::from_fn_with_state(api.clone(), require_invitation))
        .layer(middleware::from_fn_with_state(api.clone(), require_key))
        .layer(middleware::from_fn(check_head))
        .layer(CatchPanicLayer::custom(panicked));
    let router = match cors {
        Some(cors) => router.layer(cors),
        None => router,
    };
    router.layer(middleware::from_fn_with_state(api.clone(), name_request)).with_state(api)
}

/// Lets only those in who have a key, and notes who asks.
async fn require_key(State(api): State<Api>, mut request: Request, next: Next) -> Response {
    if let Some(&ConnectInfo(address)) = request.extensions().get::<ConnectInfo<SocketAddr>>() {
        request.extensions_mut().insert(Caller::at(address.ip()));
    }
    if let Some(keys) = &api.config().api_keys
        && !OPEN.contains(&request.uri().path())
        && !console::is_open(request.uri().path())
    {
        let Some(caller) = keys.allow(request.headers()) else {
            return messages::refusal(&request, ApiError::Unauthorised);
        };
        request.extensions_mut().insert(caller);
    }
    next.run(request).await
}

/// Refuses what pages of other origins have a browser send. Where keys are asked for they have none.
async fn require_invitation(State(api): State<Api>, request: Request, next: Next) -> Response {
    let config = api.config();
    if config.api_keys.is_none()
        && !request.method().is_safe()
        && let Some(origin) = config.cors.stranger(request.headers())
    {
        return messages::refusal(&request, ApiError::ForeignPage(origin));
    }
    next.run(request).await
}

/// Refuses heads that are too large before anybody reads them.
async fn check_head(request: Request, next: Next) -> Response {
    let headers = request.headers();
    let path = request.uri().path_and_query().map_or(0, |path| path.as_str().len());
    let size = headers.iter().fold(path, |sum, (name, value)| sum + name.as_str().len() + value.len());
    if size > limits::MAX_HEAD_BYTES || headers.len() > limits::MAX_HEADERS {
        let error = ApiError::HeadTooLarge { bytes: limits::MAX_HEAD_BYTES, headers: limits::MAX_HEADERS };
        return messages::refusal(&request, error);
    }
    next.run(request).await
}

/// Gives every request an id: the client's, if it is short and visible, else a new one. Logs carry it. Counts the
/// answer.
async fn name_request(State(api): State<Api>, mut request: Request, next: Next) -> Response {
    let id = request
        .headers()
        .get(REQUEST_ID)
        .filter(|id| !id.is_empty() && id.len() <= limits::MAX_REQUEST_ID && id.to_str().is_ok())
        .cloned()
        .unwrap_or_else(|| {
            HeaderValue::from_str(&Uuid::new_v4().to_string()).expect("a UUID is visible ASCII")
        });
    let route = request.extensions().get::<MatchedPath>().map_or("other", MatchedPath::as_str).to_owned();
    let method = match request.method().as_str() {
        known @ ("GET" | "POST" | "DELETE" | "OPTIONS" | "HEAD") => known.to_owned(),
        _ => "other".to_owned(),
    };
    let span = tracing::info_span!(
        "http",
        method = %request.method(),
        path = request.uri().path(),
        id = ?id,
        trace_id = tracing::field::Empty,
    );
    let traced = trace::begin(&api, &request, &route, id.to_str().unwrap_or_default());
    if let Some(trace) = &traced {
        span.record("trace_id", trace.id());
        request.extensions_mut().insert(trace.clone());
    }
    let is_anthropics = messages::owns(&request);
    let mut response = next.run(request).instrument(span.clone()).await;
    span.in_scope(|| tracing::debug!(status = response.status().as_u16(), "answered"));
    api.metrics().answered(route, method, response.status().as_u16());
    if is_anthropics {
        response.headers_mut().insert(ANTHROPICS_ID, id.clone());
    }
    response.headers_mut().insert(REQUEST_ID, id);
    match traced {
        Some(trace) => {
            trace.answered(response.status().as_u16());
            trace::until_sent(response, trace)
        }
        None => response,
    }
}

fn panicked(payload: Box<dyn Any + Send>) -> Response {
    let reason = payload
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| payload.downcast_ref::<&str>().copied())
        .unwrap_or("no reason given");
    tracing::error!(reason, "a handler panicked");
    ApiError::Internal("a bug in the server; its log says more".into()).into_response()
}
