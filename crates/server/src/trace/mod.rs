//! Traces: where the time of each generation went, on every stage, for collectors of OpenTelemetry.
//!
//! Owns: which requests are traced, what is noted of them, and which spans that makes. Does not know how traces are sent:
//! they go to a [`TraceSink`]. Where nothing is traced, nothing is noted.

mod parent;
mod record;
mod round;
mod sampler;
mod spans;
mod watched;

use std::fmt;
use std::sync::Arc;

use axum::extract::Request;
use axum::http::Method;

use crate::api::Api;
use parent::Parent;
use record::Head;

pub(crate) use record::{ChoiceTrace, RequestTrace};
pub use record::{Record, Trace};
pub use sampler::{NoShare, Sampler, Share, UnknownSampler};
pub use spans::{MAX_SPANS, Place, Span, Value};
pub(crate) use watched::until_sent;

/// Routes that compute: what else there is takes no time on the line.
const TRACED: [&str; 5] =
    ["/v1/chat/completions", "/v1/completions", "/v1/embeddings", "/v1/responses", "/v1/messages"];

/// How requests are traced.
#[derive(Clone)]
pub struct Tracing {
    /// Where traces go.
    pub sink: Arc<dyn TraceSink>,
    /// Which requests are traced.
    pub sampler: Sampler,
    /// Whether traces tell prompts and answers.
    pub content: bool,
}

/// Takes what is left of traced requests.
pub trait TraceSink: Send + Sync + 'static {
    /// A traced request is over. Called by those who serve: it must neither wait nor work.
    fn take(&self, record: Record);
}

/// A trace of a request that has come by `route`, if it is to be traced.
pub(crate) fn begin(api: &Api, request: &Request, route: &str, id: &str) -> Option<RequestTrace> {
    let tracing = api.config().tracing.as_ref()?;
    if request.method() != Method::POST || !TRACED.contains(&route) {
        return None;
    }
    let head = || Head { method: "POST", route: route.into(), id: id.into() };
    RequestTrace::begin(tracing, Parent::of(request.headers()), head)
}

impl fmt::Debug for Tracing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sampler, content, .. } = self;
        f.debug_struct("Tracing").field("sampler", sampler).field("content", content).finish_non_exhaustive()
    }
}
