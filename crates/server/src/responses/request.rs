//! Requests of the Responses API as chats.

use std::sync::Arc;

use protocol::limits::MAX_TOP_LOGPROBS;
use serde_json::{Map, Value, json};

use super::listed;
use super::object::{Outcome, ResponseObject, Status};
use super::store::Store;
use crate::auth::Caller;
use crate::conversation::{self, Message};
use crate::error::ApiError;
use crate::fields::{self, Fields};
use crate::limits::MAX_MESSAGES;
use crate::request::{ChatRequest, Contents, refuse};
use crate::structured::RESPONSES_FORMAT;
use crate::tools::{Tools, read_function};

/// Fields whose meaning differs from the chat's field of the same name, or that only exist here.
const OURS: &[&str] = &[
    "input",
    "instructions",
    "tools",
    "text",
    "reasoning",
    "include",
    "stream_options",
    "previous_response_id",
    "max_output_tokens",
    "store",
    "background",
    "top_logprobs",
];
/// The field that the messages come in.
const INPUT: &str = "input";
/// What `include` asks for log-probabilities with.
const LOGPROBS: &str = "message.output_text.logprobs";
/// What else `include` may name: parts of items that do not exist here, and reasoning that only its server can read, where
/// ours comes in the clear and may be sent back as it is.
const NOTHING_TO_INCLUDE: &[&str] = &[
    "reasoning.encrypted_content",
    "web_search_call.action.sources",
    "web_search_call.results",
    "file_search_call.results",
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "message.input_image.image_url",
];
/// Fields that this build cannot honour.
pub(crate) const UNSUPPORTED: &[&str] = &["conversation", "prompt", "messages", "functions", "function_call"];

/// A request, read and checked.
pub(crate) struct ResponseRequest {
    pub chat: ChatRequest,
    /// All items that the model reads, those of earlier responses included.
    pub input: Arc<[Value]>,
    pub store: bool,
    pub background: bool,
    /// What the response repeats of the request.
    echo: Map<String, Value>,
}

impl ResponseRequest {
    /// Reads `caller`'s request, which may go on from one of its responses among those `kept`.
    pub(crate) fn read(
        fields: &Fields,
        kept: &Store,
        caller: Caller,
        n_vocab: u32,
    ) -> Result<Self, ApiError> {
        refuse(UNSUPPORTED, fields)?;
        if fields.text("truncation")?.is_some_and(|truncation| truncation != "disabled") {
            return Err(ApiError::unsupported("truncation"));
        }
        let mut input = match fields.text("previous_response_id")? {
            None => Vec::new(),
            Some(id) => history(id, kept, caller)?,
        };
        let n_earlier = input.len();
        match fields.get(INPUT).ok_or_else(|| ApiError::missing(INPUT))? {
            Value::String(text) => input.push(json!({ "type": "message", "role": "user", "content": text })),
            Value::Array(items) => input.extend(items.iter().cloned()),
            other => return Err(fields::wrong(INPUT, "a string or a list of items", other)),
        }
        let background = fields.flag("background")?;
        let store = fields.maybe_flag("store")?.unwrap_or(true);
        if background && !store {
            return Err(ApiError::value("store", "`background` needs `store` to be true"));
        }
        let rest = translate(fields)?;
        let tools = fields.list("tools")?.unwrap_or_default().iter().enumerate();
        let tools = tools.map(|(i, tool)| read_tool(i, tool)).collect::<Result<_, _>>()?;
        let messages = messages(fields.text("instructions")?, &input, n_earlier)?;
        let contents = Contents { messages, tools: Tools::of(tools, &rest)?, param: INPUT };
        let mut chat = ChatRequest::of(contents, &rest, n_vocab)?;
        if chat.options.n > 1 {
            return Err(ApiError::unsupported("n"));
        }
        chat.options.caller = caller;
        Ok(Self { chat, input: listed(input), store, background, echo: echo(fields) })
    }

    /// The response as it begins.
    pub(crate) fn describe(&self, id: &str, created: u64, model: &str) -> ResponseObject {
        ResponseObject {
            id: id.to_owned(),
            object: "response",
            created_at: created,
            outcome: Outcome::default(),
            background: self.background,
            model: model.to_owned(),
            store: self.store,
            echo: self.echo.clone(),
        }
    }
}

/// All but the messages and tools, in the words of a chat.
fn translate(fields: &Fields) -> Result<Fields, ApiError> {
    let mut chat: Map<String, Value> = fields
        .iter()
        .filter(|(name, _)| !OURS.contains(name))
        .map(|(name, value)| (name.to_owned(), value.clone()))
        .collect();
    if let Some(limit) = fields.integer("max_output_tokens", 1..=i64::from(u32::MAX))? {
        chat.insert("max_completion_tokens".into(), json!(limit));
    }
    let top = fields.integer("top_logprobs", 0..=i64::from(MAX_TOP_LOGPROBS))?.unwrap_or(0);
    if includes_logprobs(fields)? || top > 0 || fields.flag("logprobs")? {
        chat.insert("logprobs".into(), json!(true));
        chat.insert("top_logprobs".into(), json!(top));
    }
    if let Some(Value::Object(choice)) = fields.get("tool_choice")
        && choice.get("type").is_none_or(|kind| kind == "function")
        && !["name", "function"].iter().any(|name| choice.contains_key(*name))
    {
        return Err(ApiError::missing("tool_choice.name"));
    }
    if let Some(reasoning) = fields.object("reasoning")?
        && let Some(effort) = reasoning.text("effort")?
    {
        chat.insert("reasoning_effort".into(), json!(effort));
    }
    if let Some(text) = fields.object("text")?
        && let Some(format) = text.get("format")
    {
        chat.insert(RESPONSES_FORMAT.into(), format.clone());
    }
    Ok(Fields::of(chat))
}

/// Whether `include` asks for log-probabilities, which is all that it can ask for.
fn includes_logprobs(fields: &Fields) -> Result<bool, ApiError> {
    let mut logprobs = false;
    for (i, entry) in fields.list("include")?.unwrap_or_default().iter().enumerate() {
        let at = format!("include[{i}]");
        let name = entry.as_str().ok_or_else(|| fields::wrong(&at, "a string", entry))?;
        logprobs |= name == LOGPROBS;
        if name != LOGPROBS && !NOTHING_TO_INCLUDE.contains(&name) {
            let message = format!("`{at}` is `{name}`, which nothing here has: `{LOGPROBS}` can be included");
            return Err(ApiError::value(at, message));
        }
    }
    Ok(logprobs)
}

fn echo(fields: &Fields) -> Map<String, Value> {
    let names = [
        ("instructions", Value::Null),
        ("max_output_tokens", Value::Null),
        ("parallel_tool_calls", json!(true)),
        ("previous_response_id", Value::Null),
        ("reasoning", json!({ "effort": null, "summary": null })),
        ("temperature", json!(1.0)),
        ("text", json!({ "format": { "type": "text" } })),
        ("tool_choice", json!("auto")),
        ("tools", json!([])),
        ("top_logprobs", json!(0)),
        ("top_p", json!(1.0)),
        ("truncation", json!("disabled")),
        ("user", Value::Null),
        ("metadata", json!({})),
    ];
    names
        .into_iter()
        .map(|(name, default)| (name.to_owned(), fields.get(name).cloned().unwrap_or(default)))
        .collect()
}

/// What an earlier response read and said.
fn history(id: &str, kept: &Store, caller: Caller) -> Result<Vec<Value>, ApiError> {
    const NAME: &str = "previous_response_id";
    let entry = kept.get(id, caller).ok_or_else(|| ApiError::Invalid {
        code: "previous_response_not_found",
        param: Some(NAME.into()),
        message: format!(
            "`{NAME}` names `{id}`, which is not kept here: send the whole conversation as `input`"
        ),
    })?;
    let outcome = &entry.response.outcome;
    if outcome.status == Status::InProgress {
        return Err(ApiError::value(NAME, format!("the response `{id}` is not finished: wait for it")));
    }
    let mut items = entry.input.to_vec();
    items.extend(outcome.output.iter().map(|item| json!(item)));
    Ok(items)
}

fn read_tool(i: usize, tool: &Value) -> Result<Value, ApiError> {
    let at = format!("tools[{i}]");
    let Value::Object(tool) = tool else { return Err(fields::wrong(&at, "an object", tool)) };
    if tool.get("type").is_some_and(|kind| kind != "function") {
        return Err(ApiError::unsupported(&format!("{at}.type")));
    }
    read_function(&at, tool, "parameters")
}

/// Items as messages, of which the first `n_earlier` come from earlier responses; calls and reasoning join the message of
/// the turn that they belong to.
fn messages(instructions: Option<&str>, items: &[Value], n_earlier: usize) -> Result<Vec<Message>, ApiError> {
    let mut out = Vec::with_capacity(items.len() + 1);
    let mut reasoning: Option<String> = None;
    for (i, item) in items.iter().enumerate() {
        // Earlier items were read before and are in order.
        let at = format!("{INPUT}[{}]", i.saturating_sub(n_earlier));
        let field = |name: &str| item.get(name).ok_or_else(|| ApiError::missing(&format!("{at}.{name}")));
        match item.get("type").and_then(Value::as_str) {
            None | Some("message") => {
                let mut message = conversation::read_message(&at, item)?;
                message.retain(|name, _| name == "role" || name == "content");
                if message["role"] == "assistant"
                    && let Some(text) = reasoning.take()
                {
                    message.insert("reasoning_content".into(), json!(text));
                }
                out.push(message);
            }
            Some("function_call") => {
                let call = conversation::call(field("call_id")?, field("name")?, field("arguments")?);
                add_call(call, reasoning.take(), &mut out);
            }
            Some("function_call_output") => {
                let content = conversation::text(&format!("{at}.output"), field("output")?)?;
                out.push(conversation::result(field("call_id")?, content));
            }
            Some("reasoning") => reasoning = Some(reasoning_text(item)),
            Some(_) => return Err(ApiError::unsupported(&format!("{at}.type"))),
        }
    }
    if out.len() > MAX_MESSAGES {
        return Err(conversation::wrong_count(INPUT));
    }
    if let Some(text) = instructions {
        out.insert(0, conversation::said("system", text.to_owned()));
    }
    if out.is_empty() {
        return Err(ApiError::value(INPUT, "`input` is an empty list"));
    }
    Ok(out)
}

fn add_call(call: Value, reasoning: Option<String>, out: &mut Vec<Message>) {
    let goes_on = out.last().is_some_and(|last| last["role"] == "assistant");
    if !goes_on {
        out.push(conversation::said("assistant", String::new()));
    }
    let Some(message) = out.last_mut() else { return };
    match message.get_mut("tool_calls") {
        Some(Value::Array(calls)) => calls.push(call),
        _ => {
            message.insert("tool_calls".into(), json!([call]));
        }
    }
    if let Some(text) = reasoning {
        message.insert("reasoning_content".into(), json!(text));
    }
}

fn reasoning_text(item: &Value) -> String {
    let parts = ["content", "summary"].iter().filter_map(|name| item.get(name)?.as_array());
    let texts = parts.flatten().filter_map(|part| part.get("text")?.as_str());
    texts.collect::<Vec<_>>().join("\n")
}
