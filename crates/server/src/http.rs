//! The router: routes, and what surrounds every one of them.

use std::any::Any;
use std::net::SocketAddr;

use axum::Router;
use axum::extract::{ConnectInfo, DefaultBodyLimit, MatchedPath, Request, State};
use axum::http::{HeaderName, HeaderValue};
use axum::middleware::{self, Next};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
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

/// A path, and what answers there.
type Route = (&'static str, fn() -> MethodRouter<Api>);

/// Every one of them.
pub(crate) const ROUTES: [Route; 24] = [
    ("/", || get(console::page)),
    ("/console/{file}", || get(console::part)),
    ("/health", || get(routes::health)),
    ("/ready", || get(routes::ready)),
    ("/openapi.json", || get(openapi::document)),
    ("/metrics", || get(routes::metrics)),
    ("/props", || get(props::props)),
    ("/tokenize", || post(utility::tokenize)),
    ("/detokenize", || post(utility::detokenize)),
    ("/apply-template", || post(utility::apply_template)),
    ("/v1/line", || get(routes::line)),
    ("/v1/line/events", || get(events::events)),
    ("/v1/requests/{id}/cancel", || post(routes::cancel)),
    ("/v1/models", || get(routes::models)),
    ("/v1/models/{*id}", || get(routes::model)),
    ("/v1/chat/completions", || post(routes::chat)),
    ("/v1/completions", || post(routes::completions)),
    ("/v1/embeddings", || post(embeddings::create)),
    ("/v1/responses", || post(responses::create)),
    ("/v1/responses/{id}", || get(responses::get).delete(responses::delete)),
    ("/v1/responses/{id}/cancel", || post(responses::cancel)),
    ("/v1/responses/{id}/input_items", || get(responses::input_items)),
    (messages::PATH, || post(messages::create)),
    ("/v1/messages/count_tokens", || post(messages::count_tokens)),
];

/// All routes over `api`.
pub fn router(api: Api) -> Router {
    let cors = api.config().cors.layer();
    let body_limit = DefaultBodyLimit::max(api.config().max_body_bytes);
    let routes = Router::new();
    let routes = ROUTES.iter().fold(routes, |routes, (path, answer)| routes.route(path, answer()));
    let router = routes
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

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use axum::body::Body;
    use axum::http::StatusCode;
    use scheduler::{RequestId, SharedJournal};
    use tower::ServiceExt;

    use super::*;
    use crate::{ApiConfig, ApiKeys, Line, LineStatus, LineWatch, Readiness, Submitting};

    /// A line that nobody may reach.
    struct Guarded;

    impl Line for Guarded {
        fn submit(&self, _: scheduler::Request, _: Option<SharedJournal>) -> Submitting<'_> {
            unreachable!("a request came without a key")
        }

        /// Open to everybody.
        fn readiness(&self) -> Readiness {
            Readiness::Ready
        }

        fn status(&self) -> LineStatus {
            unreachable!("the line was looked at without a key")
        }

        fn cancel(&self, _: RequestId) {
            unreachable!("a request was cancelled without a key")
        }

        fn watch(&self) -> LineWatch {
            unreachable!("the line was watched without a key")
        }
    }

    #[tokio::test]
    async fn every_route_but_the_open_ones_asks_for_a_key() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "sk-1\nsk-2\n").unwrap();
        let keys = ApiKeys::load(file.path()).unwrap();
        let router =
            router(Api::new(Arc::new(Guarded), ApiConfig { api_keys: Some(keys), ..ApiConfig::default() }));
        let open = ["/", "/console/{file}", "/health", "/ready"];
        assert!(open.iter().all(|path| ROUTES.iter().any(|(route, _)| route == path)));
        for (route, _) in ROUTES {
            let path = route.replace("{*id}", "x").replace("{id}", "x").replace("{file}", "app.js");
            for method in ["GET", "POST", "PUT", "DELETE", "HEAD", "OPTIONS", "PATCH"] {
                for (name, key) in [("x-none", ""), ("authorization", "Bearer sk-3"), ("x-api-key", "sk-")] {
                    let request = Request::builder().method(method).uri(&path).header(name, key);
                    let request = request.body(Body::empty()).unwrap();
                    let status = router.clone().oneshot(request).await.unwrap().status();
                    let is_refused = status == StatusCode::UNAUTHORIZED;
                    assert_eq!(is_refused, !open.contains(&route), "{method} {path} {key}: {status}");
                }
            }
        }
    }
}
