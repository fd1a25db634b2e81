//! The HTTP API of a line: OpenAI's routes, chat templates, text from tokens and server-sent events.
//!
//! Owns: what a client may send and what it gets back. Does not know: llama.cpp, stages, links; it reaches them
//! through the traits [`Line`] and [`Tokenizer`].
#![forbid(unsafe_code)]

mod answer;
mod api;
mod auth;
mod best;
mod body;
mod call_grammar;
mod chat;
mod completion;
mod connections;
mod console;
mod conversation;
mod cors;
mod current;
mod drain;
mod embeddings;
mod error;
mod events;
mod fields;
mod functions;
mod generation;
mod http;
mod legacy;
mod limits;
mod logprobs;
mod messages;
mod metrics;
mod openapi;
mod progress;
mod prompt;
mod props;
mod reply;
mod request;
mod responses;
mod roll;
mod routes;
mod sampling;
mod seam;
mod serve;
mod shared;
mod stop;
mod stream;
mod structured;
mod template;
#[cfg(test)]
mod testing;
mod tls;
mod tools;
mod trace;
mod turn;
mod utf8;
mod utility;

pub use api::{Api, ApiConfig, ModelNotSet};
pub use auth::{ApiKeys, KeyFileError};
pub use connections::ConnectionLimits;
pub use cors::{Cors, NoOrigin};
pub use http::router;
pub use seam::{
    DepthStatus, DraftStatus, Fill, JudgedStatus, Line, LineStatus, LineWatch, ModelInfo, PrefixStatus,
    Readiness, SequenceStatus, SourceStatus, SpareStatus, StageStatus, Submission, Submitting, TokenStatus,
    Tokenizer, WindowStatus, WorkStatus,
};
pub use serve::{BindError, Server};
pub use template::sandbox::{
    MAX_TEMPLATE_ANSWER, SameProcess, TemplateHost, TemplateHostError, TemplateWriter,
};
pub use tls::{Tls, TlsFileError};
pub use trace::{
    MAX_SPANS, NoShare, Place, Record, Sampler, Share, Span, Trace, TraceSink, Tracing, UnknownSampler, Value,
};
