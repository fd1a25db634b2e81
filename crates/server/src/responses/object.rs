//! A response as clients see it: the object, its items and what they hold. `/openapi.json` says of them what stands here.

use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::generation::Ending;
use crate::logprobs::TokenLogprob;

/// A response.
#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
#[schemars(rename = "Response")]
pub(crate) struct ResponseObject {
    pub id: String,
    /// `response`.
    pub object: &'static str,
    /// Seconds since 1970.
    pub created_at: u64,
    #[serde(flatten)]
    pub outcome: Outcome,
    pub background: bool,
    pub model: String,
    pub store: bool,
    /// What it repeats of the request.
    #[serde(flatten)]
    pub echo: Map<String, Value>,
}

/// What has come of a response so far.
#[derive(Clone, Debug, Default, Serialize, JsonSchema)]
pub(crate) struct Outcome {
    pub status: Status,
    pub error: Option<ResponseError>,
    pub incomplete_details: Option<Incomplete>,
    pub output: Vec<Item>,
    pub usage: Option<Usage>,
}

/// How far a response or an item has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Status {
    #[default]
    InProgress,
    Completed,
    Incomplete,
    Failed,
    Cancelled,
}

/// Why a response failed.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct ResponseError {
    pub code: &'static str,
    pub message: String,
}

/// Why a response is not whole.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct Incomplete {
    /// `max_output_tokens`.
    pub reason: &'static str,
}

/// Tokens read and said.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[schemars(rename = "ResponseUsage")]
pub(crate) struct Usage {
    input_tokens: u32,
    input_tokens_details: OfInput,
    output_tokens: u32,
    output_tokens_details: OfOutput,
    total_tokens: u32,
}

#[derive(Clone, Debug, Serialize, JsonSchema)]
struct OfInput {
    /// Computed before.
    cached_tokens: u32,
}

#[derive(Clone, Debug, Serialize, JsonSchema)]
struct OfOutput {
    /// Of reasoning.
    reasoning_tokens: u32,
}

impl Usage {
    pub(super) const fn new(input: u32, ending: &Ending) -> Self {
        Self {
            input_tokens: input,
            input_tokens_details: OfInput { cached_tokens: ending.cached },
            output_tokens: ending.completion,
            output_tokens_details: OfOutput { reasoning_tokens: ending.reasoning },
            total_tokens: input + ending.completion,
        }
    }
}

/// An item of the output.
#[derive(Clone, Debug, Serialize, JsonSchema)]
pub(crate) struct Item {
    pub id: String,
    #[serde(flatten)]
    pub kind: Kind,
    pub status: Status,
}

/// What an item is.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum Kind {
    Message {
        /// `assistant`.
        role: &'static str,
        content: Vec<Part>,
    },
    Reasoning {
        /// Always empty: reasoning comes whole.
        summary: Vec<Value>,
        content: Vec<Part>,
    },
    FunctionCall {
        call_id: String,
        name: String,
        /// JSON.
        arguments: String,
    },
}

impl Kind {
    /// A message that nothing has been said in.
    pub(super) const fn message() -> Self {
        Self::Message { role: "assistant", content: Vec::new() }
    }

    /// Reasoning that nothing has been thought in.
    pub(super) const fn reasoning() -> Self {
        Self::Reasoning { summary: Vec::new(), content: Vec::new() }
    }

    /// What ids of such items begin with.
    pub(super) const fn prefix(&self) -> &'static str {
        match self {
            Self::Message { .. } => "msg",
            Self::Reasoning { .. } => "rs",
            Self::FunctionCall { .. } => "fc",
        }
    }

    /// Its text as a part, for kinds that have parts.
    pub(super) fn part(&self, text: &str, logprobs: &[TokenLogprob]) -> Option<Part> {
        match self {
            Self::Message { .. } => Some(Part::OutputText {
                text: text.into(),
                annotations: Vec::new(),
                logprobs: logprobs.to_vec(),
            }),
            Self::Reasoning { .. } => Some(Part::ReasoningText { text: text.into() }),
            Self::FunctionCall { .. } => None,
        }
    }
}

/// A part of an item.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum Part {
    OutputText {
        text: String,
        /// Always empty.
        annotations: Vec<Value>,
        /// Of the text's tokens, if asked for.
        logprobs: Vec<TokenLogprob>,
    },
    ReasoningText {
        text: String,
    },
}
