//! What clients ask for, read and checked: after this module nothing about a request can be invalid but its length.
//!
//! A field that we do not know is ignored. A field that we know and cannot honour is an error that names it.

use protocol::limits::{MAX_CONTEXT, MAX_TOP_LOGPROBS};
use protocol::{OfPrompt, SamplerParams};
use serde_json::{Value, json};

use crate::auth::Caller;
use crate::conversation::Message;
use crate::error::ApiError;
use crate::fields::{self, Fields};
use crate::limits::{MAX_CHOICES, MAX_STOP_BYTES, MAX_STOPS};
use crate::structured::{self, Form};
use crate::template::Conversation;
use crate::tools::Tools;
use crate::trace::RequestTrace;
use crate::{conversation, functions, sampling};

/// Tokens that `/v1/completions` generates when nothing is said: OpenAI's default.
const COMPLETION_MAX_TOKENS: u32 = 16;

/// More than anybody needs.
pub(crate) const PRIORITIES: std::ops::RangeInclusive<i64> = -1000..=1000;

/// Fields with a meaning that this build cannot honour. They may be there with a value that asks for nothing.
pub(crate) const UNSUPPORTED: &[&str] = &[
    "modalities",
    "audio",
    "web_search_options",
    "samplers",
    "lora",
    "n_probs",
    "prompt_logprobs",
    "min_tokens",
    "stop_token_ids",
    "bad_words",
    "allowed_token_ids",
    "use_beam_search",
    "truncate_prompt_tokens",
    "chat_template",
    "documents",
    "logits_processors",
    "include_stop_str_in_output",
    "skip_special_tokens",
    "post_sampling_probs",
    "return_tokens",
    "return_token_ids",
    "return_tokens_as_token_ids",
    "guided_whitespace_pattern",
    "structural_tag",
    "thinking_token_budget",
    "n_cmpl",
    "n_indent",
    "t_max_predict_ms",
    "adaptive_target",
    "response_fields",
    "grammar_lazy",
];

/// Numbers other than 0 that ask for nothing: llama.cpp's defaults.
const NEUTRAL: [(&str, f64); 3] = [("n_cmpl", 1.0), ("t_max_predict_ms", -1.0), ("adaptive_target", -1.0)];

/// vLLM's name for what Anthropic's API does with a message of the assistant at the end.
const CONTINUES: &str = "continue_final_message";

/// What chats refuse besides.
pub(crate) const UNSUPPORTED_IN_CHATS: &[&str] = &["suffix", "echo"];

/// How to generate: the same for chats and completions.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Options {
    pub sampler: SamplerParams,
    /// Absent: one is drawn.
    pub seed: Option<u64>,
    /// Absent: the rest of the context.
    pub max_tokens: Option<u32>,
    pub ignore_eos: bool,
    /// Whether computed prompts may be shared with other requests of the same caller, and under which name.
    pub cache: Option<Cache>,
    /// Who asks.
    pub caller: Caller,
    /// Where it is noted what happens to it, if it is traced.
    pub trace: Option<RequestTrace>,
    /// The lower the sooner, as vLLM has it.
    pub priority: i32,
    /// What the client expects the answer to be; guesses are taken from it.
    pub prediction: Option<String>,
    pub stops: Vec<String>,
    /// What the answer has to look like.
    pub form: Option<Form>,
    /// Alternatives per token; absent for no log-probabilities at all.
    pub top_logprobs: Option<u8>,
    /// What is wanted of the prompt itself.
    pub of_prompt: Option<OfPrompt>,
    /// Choices per prompt.
    pub n: u32,
    pub stream: bool,
    pub include_usage: bool,
    /// The stream says how far the prompt is.
    pub progress: bool,
}

/// Which of a caller's prompts a request shares.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Cache {
    /// OpenAI's `prompt_cache_key` and vLLM's `cache_salt`: requests with different ones share nothing.
    pub name: Option<String>,
}

/// A chat.
#[derive(Clone, Debug)]
pub(crate) struct ChatRequest {
    pub conversation: Conversation,
    pub tools: Tools,
    /// The tools came as `functions`, so calls are answered in that form.
    pub functions: bool,
    /// Reasoning comes apart from the answer; else it is part of the text, as the model wrote it.
    pub show_reasoning: bool,
    /// The last message is the beginning of the answer.
    pub continues: bool,
    /// The field that the messages came in.
    pub param: &'static str,
    pub options: Options,
}

/// A completion of one or several prompts.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct CompletionRequest {
    pub prompts: Vec<Prompt>,
    /// The text behind the gap that the answer fills.
    pub suffix: Option<String>,
    /// Answers begin with their prompt.
    pub echo: bool,
    /// Choices generated per prompt; the `n` likeliest are the answer.
    pub best_of: u32,
    pub options: Options,
}

/// A prompt as text, or as tokens that the client made.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Prompt {
    Text(String),
    Tokens(Vec<protocol::Token>),
}

impl Prompt {
    pub(crate) fn is_empty(&self) -> bool {
        match self {
            Self::Text(text) => text.is_empty(),
            Self::Tokens(tokens) => tokens.is_empty(),
        }
    }
}

/// What a chat is about. Each API reads it where its clients write it, so that errors name that place.
pub(crate) struct Contents {
    pub messages: Vec<Message>,
    pub tools: Tools,
    /// The field that the messages came in.
    pub param: &'static str,
}

impl ChatRequest {
    /// OpenAI's chats.
    pub(crate) fn read(fields: &Fields, n_vocab: u32) -> Result<Self, ApiError> {
        refuse(UNSUPPORTED, fields)?;
        let functions = functions::read(fields)?;
        let is_old = functions.is_some();
        let tools = match functions {
            Some(functions) => functions,
            None => Tools::read(fields)?,
        };
        let contents = Contents { messages: conversation::messages(fields)?, tools, param: "messages" };
        let mut chat = Self { functions: is_old, ..Self::of(contents, fields, n_vocab)? };
        chat.options.progress = progress(fields)?;
        Ok(chat)
    }

    /// A chat about `contents`; `fields` have all the rest, in the words of OpenAI's chats.
    pub(crate) fn of(contents: Contents, fields: &Fields, n_vocab: u32) -> Result<Self, ApiError> {
        refuse(UNSUPPORTED, fields)?;
        refuse(UNSUPPORTED_IN_CHATS, fields)?;
        let mut options = Options::read(fields, n_vocab)?;
        options.max_tokens = match tokens(fields, "max_completion_tokens", 1)? {
            Some(limit) => Some(limit),
            None => match tokens(fields, "max_tokens", 1)? {
                Some(limit) => Some(limit),
                None => tokens(fields, "n_predict", 1)?,
            },
        };
        let top = fields.integer("top_logprobs", 0..=i64::from(MAX_TOP_LOGPROBS))?;
        options.top_logprobs = match (fields.flag("logprobs")?, top) {
            (true, top) => Some(top.unwrap_or(0) as u8),
            (false, Some(1..)) => {
                return Err(ApiError::value("top_logprobs", "`top_logprobs` needs `logprobs` to be true"));
            }
            (false, _) => None,
        };
        let show_reasoning = fields.text("reasoning_format")?.is_none_or(|format| format != "none");
        let Contents { messages, tools, param } = contents;
        let continues = fields.flag(CONTINUES)?;
        if continues && !messages.last().is_some_and(conversation::can_be_continued) {
            let message = format!("`{CONTINUES}` needs a text of the assistant as the last of `{param}`");
            return Err(ApiError::value(CONTINUES, message));
        }
        let conversation = conversation::read(fields, messages)?;
        Ok(Self { conversation, tools, functions: false, show_reasoning, continues, param, options })
    }
}

impl CompletionRequest {
    pub(crate) fn read(fields: &Fields, n_vocab: u32) -> Result<Self, ApiError> {
        refuse(UNSUPPORTED, fields)?;
        let mut options = Options::read(fields, n_vocab)?;
        const LIMITS: [&str; 3] = ["max_tokens", "max_completion_tokens", "n_predict"];
        let echo = fields.flag("echo")?;
        // A prompt that is shown need not be gone on from.
        let read = |name: &&str| tokens(fields, name, u32::from(!echo));
        let mut limits = LIMITS.iter().map(read).collect::<Result<Vec<_>, _>>()?.into_iter();
        options.max_tokens = match limits.find_map(|limit| limit) {
            Some(limit) => Some(limit),
            // llama.cpp's clients write -1 for "no limit".
            None if LIMITS.iter().any(|name| fields.get(name).is_some()) => None,
            None => Some(COMPLETION_MAX_TOKENS),
        };
        options.progress = progress(fields)?;
        options.top_logprobs =
            fields.integer("logprobs", 0..=i64::from(MAX_TOP_LOGPROBS))?.map(|top| top as u8);
        let best_of = best_of(fields, &options)?;
        options.of_prompt = match options.top_logprobs {
            Some(top) if echo => Some(OfPrompt::Logprobs { top }),
            // Nobody asks for them, but the prompt is all there is to compute.
            None if options.max_tokens == Some(0) => Some(OfPrompt::Logprobs { top: 0 }),
            _ => None,
        };
        let prompts = prompts("prompt", fields.get("prompt").ok_or_else(|| ApiError::missing("prompt"))?)?;
        if prompts.len() * options.n.max(best_of) as usize > MAX_CHOICES {
            let message = format!("prompts times `n` (or `best_of`) may be at most {MAX_CHOICES}");
            return Err(ApiError::value("prompt", message));
        }
        let suffix = fields.text("suffix")?.filter(|suffix| !suffix.is_empty()).map(str::to_owned);
        Ok(Self { prompts, suffix, echo, best_of, options })
    }
}

impl Options {
    /// What all kinds of request share; the rest stays empty.
    fn read(fields: &Fields, n_vocab: u32) -> Result<Self, ApiError> {
        let stream_options = fields.object("stream_options")?;
        let include_usage = match &stream_options {
            Some(options) => options.flag("include_usage")?,
            None => false,
        };
        Ok(Self {
            sampler: sampling::read(fields, n_vocab)?,
            seed: seed(fields)?,
            max_tokens: None,
            ignore_eos: fields.flag("ignore_eos")?,
            cache: cache(fields)?,
            caller: Caller::default(),
            trace: None,
            priority: fields.integer("priority", PRIORITIES)?.unwrap_or(0) as i32,
            prediction: prediction(fields)?,
            stops: fields.strings("stop", MAX_STOPS, MAX_STOP_BYTES)?,
            form: form(fields)?,
            top_logprobs: None,
            of_prompt: None,
            n: fields.integer("n", 1..=MAX_CHOICES as i64)?.unwrap_or(1) as u32,
            stream: fields.flag("stream")?,
            include_usage,
            progress: false,
        })
    }
}

/// llama.cpp's `cache_prompt` turns sharing off.
fn cache(fields: &Fields) -> Result<Option<Cache>, ApiError> {
    let name = match (fields.text("prompt_cache_key")?, fields.text("cache_salt")?) {
        (None, None) => None,
        (Some(name), None) | (None, Some(name)) => Some(name.to_owned()),
        // No two pairs make the same text.
        (Some(key), Some(salt)) => Some(format!("{}:{key}{salt}", key.len())),
    };
    Ok(fields.maybe_flag("cache_prompt")?.unwrap_or(true).then_some(Cache { name }))
}

fn form(fields: &Fields) -> Result<Option<Form>, ApiError> {
    let form = structured::read(fields)?;
    if let Some(form) = &form
        && fields.flag("ignore_eos")?
    {
        let message = format!("`ignore_eos` with `{}` has no meaning: leave one out", form.param);
        return Err(ApiError::value("ignore_eos", message));
    }
    Ok(form)
}

/// llama.cpp's wish to see how far the prompt is; only streams can show it.
fn progress(fields: &Fields) -> Result<bool, ApiError> {
    Ok(fields.flag("return_progress")? && fields.flag("stream")?)
}

/// The expected answer, as OpenAI's clients send it: one text, or parts of a text.
fn prediction(fields: &Fields) -> Result<Option<String>, ApiError> {
    const NAME: &str = "prediction";
    let Some(object) = fields.object(NAME)? else { return Ok(None) };
    let part = |value: &Value| value.get("text").and_then(Value::as_str).map(str::to_owned);
    let text = match object.get("content") {
        Some(Value::String(text)) => Some(text.clone()),
        Some(Value::Array(parts)) => parts.iter().map(part).collect(),
        _ => None,
    };
    let message = "`prediction.content` must be a text or a list of text parts";
    text.map(Some).ok_or_else(|| ApiError::value(NAME, message))
}

/// At least `n`, which is the default; llama.cpp's clients write 0 for that.
fn best_of(fields: &Fields, options: &Options) -> Result<u32, ApiError> {
    const NAME: &str = "best_of";
    match fields.integer(NAME, 0..=MAX_CHOICES as i64)?.unwrap_or(0) as u32 {
        0 => Ok(options.n),
        best_of if best_of < options.n => {
            Err(ApiError::value(NAME, format!("`{NAME}` is {best_of}, but must be at least `n`")))
        }
        best_of if best_of > options.n && options.stream => {
            Err(ApiError::value(NAME, "`best_of` above `n` cannot stream: which is best is known at the end"))
        }
        best_of => Ok(best_of),
    }
}

/// Any integer; -1 asks for a drawn one, as with llama.cpp.
fn seed(fields: &Fields) -> Result<Option<u64>, ApiError> {
    if let Some(seed) = fields.get("seed").and_then(Value::as_u64) {
        return Ok(Some(seed));
    }
    let seed = fields.integer("seed", i64::MIN..=i64::MAX)?;
    Ok(seed.filter(|&seed| seed != -1).map(i64::cast_unsigned))
}

/// A token limit of at least `least`; -1 is none, as with llama.cpp.
fn tokens(fields: &Fields, name: &str, least: u32) -> Result<Option<u32>, ApiError> {
    let limit = fields.integer(name, -1..=i64::from(u32::MAX))?;
    match limit {
        Some(0) if least > 0 => Err(ApiError::value(name, format!("`{name}` is 0, but must be at least 1"))),
        // More than any context holds is no limit: the line stops at its own.
        Some(limit @ 0..) => Ok(Some(limit.min(i64::from(MAX_CONTEXT)) as u32)),
        _ => Ok(None),
    }
}

pub(crate) fn refuse(names: &[&str], fields: &Fields) -> Result<(), ApiError> {
    for &name in names {
        if fields.get(name).is_some_and(|value| !asks_for_nothing(name, value)) {
            return Err(ApiError::unsupported(name));
        }
    }
    Ok(())
}

/// A value that clients send when they mean that the field is not there.
pub(crate) fn asks_for_nothing(name: &str, value: &Value) -> bool {
    match value {
        Value::Null => true,
        // The one flag that is usually set.
        Value::Bool(flag) => *flag == (name == "skip_special_tokens"),
        Value::Number(number) => {
            let number = number.as_f64();
            number == Some(0.0) || NEUTRAL.iter().any(|&(of, neutral)| of == name && number == Some(neutral))
        }
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty() || (name == "modalities" && *value == json!(["text"])),
        Value::Object(map) => map.is_empty(),
    }
}

/// A text, texts, tokens or token lists.
pub(crate) fn prompts(name: &str, value: &Value) -> Result<Vec<Prompt>, ApiError> {
    const EXPECTED: &str = "a string, a list of strings, a list of tokens or a list of lists of tokens";
    match value {
        Value::String(text) => Ok(vec![Prompt::Text(text.clone())]),
        Value::Array(list) if list.is_empty() => {
            Err(ApiError::value(name, format!("`{name}` is an empty list")))
        }
        Value::Array(list) if list.iter().all(Value::is_number) => {
            Ok(vec![Prompt::Tokens(token_list(name, list)?)])
        }
        Value::Array(list) => list
            .iter()
            .map(|item| match item {
                Value::String(text) => Ok(Prompt::Text(text.clone())),
                Value::Array(tokens) => token_list(name, tokens).map(Prompt::Tokens),
                other => Err(fields::wrong(name, EXPECTED, other)),
            })
            .collect(),
        other => Err(fields::wrong(name, EXPECTED, other)),
    }
}

/// Token ids as clients write them.
pub(crate) fn token_list(name: &str, list: &[Value]) -> Result<Vec<protocol::Token>, ApiError> {
    list.iter()
        .map(|token| {
            fields::whole(token)
                .and_then(|token| i32::try_from(token).ok())
                .map(protocol::Token)
                .ok_or_else(|| fields::wrong(name, "whole numbers for tokens", token))
        })
        .collect()
}
