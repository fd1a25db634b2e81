//! A response's body that holds its request's trace until it has been sent, or nobody wants it any more.

use std::pin::Pin;
use std::task::{Context, Poll};

use axum::body::{Body, Bytes, HttpBody};
use axum::response::Response;
use hyper::body::{Frame, SizeHint};

use super::RequestTrace;

/// The same response; the trace is held until its body is dropped.
pub(crate) fn until_sent(response: Response, trace: RequestTrace) -> Response {
    response.map(|inner| Body::new(Watched { inner, _trace: trace }))
}

/// Changes nothing of what is sent.
struct Watched {
    inner: Body,
    _trace: RequestTrace,
}

impl HttpBody for Watched {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.inner).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}
