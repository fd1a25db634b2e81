//! OpenAI's whole answers as types, for chats and for completions. `/openapi.json` says of them what stands here.
//!
//! Does not know how they come about; `reply` makes them, and their chunks.

use std::collections::BTreeMap;
use std::time::Duration;

use scheduler::Timings;
use schemars::JsonSchema;
use serde::Serialize;

use crate::legacy::TokenLists;
use crate::logprobs::TokenLogprob;
use crate::stream::Call;
use crate::{SourceStatus, WindowStatus};

/// A whole answer, with choices of one kind.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "AnswerOf{C}")]
pub(crate) struct Whole<C> {
    pub id: String,
    /// `chat.completion` or `text_completion`.
    pub object: &'static str,
    /// Seconds since 1970.
    pub created: u64,
    pub model: String,
    /// Of the model's file.
    pub system_fingerprint: String,
    pub choices: Vec<C>,
    pub usage: Usage,
    /// If there is one choice; else each has its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timings: Option<Figures>,
}

/// A choice of a chat.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ChatChoice {
    pub index: usize,
    pub message: Said,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<ChatLogprobs>,
    /// `stop`, `length`, `tool_calls` or `function_call`.
    pub finish_reason: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timings: Option<Figures>,
}

/// What the model said in a chat.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Said {
    /// `assistant`.
    pub role: &'static str,
    /// Null if there are only calls.
    pub content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reasoning_content: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub function_call: Option<FunctionCall>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub tool_calls: Vec<ToolCall>,
}

/// A call of a tool.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ToolCall {
    id: String,
    /// `function`.
    r#type: &'static str,
    function: FunctionCall,
}

/// What is called, and with what.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct FunctionCall {
    pub name: String,
    /// JSON.
    pub arguments: String,
}

impl From<&Call> for ToolCall {
    fn from(call: &Call) -> Self {
        Self { id: call.id.clone(), r#type: "function", function: call.into() }
    }
}

impl From<&Call> for FunctionCall {
    fn from(Call { name, arguments, .. }: &Call) -> Self {
        Self { name: name.clone(), arguments: arguments.clone() }
    }
}

/// Of a chat's tokens.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ChatLogprobs {
    pub content: Vec<TokenLogprob>,
}

/// A choice of a completion.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct TextChoice {
    pub index: usize,
    pub text: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub logprobs: Option<TokenLists>,
    /// `stop` or `length`.
    pub finish_reason: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timings: Option<Figures>,
}

/// Tokens of all prompts and choices.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Usage {
    pub prompt_tokens: u32,
    pub completion_tokens: u32,
    pub total_tokens: u32,
    pub prompt_tokens_details: OfPrompts,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completion_tokens_details: Option<OfAnswers>,
}

/// Of the prompts' tokens.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct OfPrompts {
    /// Computed before.
    pub cached_tokens: u32,
}

/// Of the answers' tokens.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct OfAnswers {
    /// Of reasoning.
    pub reasoning_tokens: u32,
}

/// `timings`: llama-server's names, and what a line has besides: its stages, the loop around them, and the windows sent.
/// Times in milliseconds.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Timings")]
pub(crate) struct Figures {
    cache_n: u32,
    prompt_n: u32,
    prompt_ms: f64,
    prompt_per_second: f64,
    chunk_ms: f64,
    predicted_n: u32,
    predicted_ms: f64,
    predicted_per_second: f64,
    draft_n: u32,
    draft_n_accepted: u32,
    loop_ms: f64,
    ideal_ms: f64,
    windows: WindowStatus,
    sources: BTreeMap<String, SourceStatus>,
    stages: Vec<StageFigures>,
}

/// A stage's part in an answer.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "StageTimings")]
struct StageFigures {
    compute_ms: f64,
    queue_ms: f64,
}

impl From<&Timings> for Figures {
    fn from(timings: &Timings) -> Self {
        let prompt = timings.prompt_tokens.saturating_sub(timings.cached_tokens);
        // The first token belongs to the prompt's time; the others come after it.
        let intervals = timings.generated_tokens.saturating_sub(1);
        let stages = timings.stages.iter().map(|stage| StageFigures {
            compute_ms: f64::from(stage.compute_us) / 1e3,
            queue_ms: f64::from(stage.queue_us) / 1e3,
        });
        Self {
            cache_n: timings.cached_tokens,
            prompt_n: prompt,
            prompt_ms: ms(timings.prompt_time),
            prompt_per_second: rate(prompt, timings.prompt_time),
            chunk_ms: ms(timings.longest_chunk),
            predicted_n: timings.generated_tokens,
            predicted_ms: ms(timings.generation_time),
            predicted_per_second: rate(intervals, timings.generation_time),
            draft_n: timings.drafted,
            draft_n_accepted: timings.accepted,
            loop_ms: ms(timings.loop_time),
            ideal_ms: ms(timings.ideal_time),
            windows: WindowStatus {
                sent: timings.windows.into(),
                live: timings.live_windows.into(),
                stale: timings.stale_windows.into(),
                in_flight_mean: thousandths(timings.in_flight.mean()),
                in_flight_max: timings.in_flight.most,
                epochs: timings.epochs.into(),
            },
            sources: SourceStatus::all(&timings.guesses),
            stages: stages.collect(),
        }
    }
}

/// Rounded: more digits would say nothing.
fn thousandths(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

fn ms(time: Duration) -> f64 {
    time.as_micros() as f64 / 1e3
}

/// Per second; 0 for something that took no time.
fn rate(count: u32, time: Duration) -> f64 {
    let seconds = time.as_secs_f64();
    if seconds > 0.0 { (f64::from(count) / seconds * 100.0).round() / 100.0 } else { 0.0 }
}
