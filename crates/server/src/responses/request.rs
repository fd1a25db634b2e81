//! Requests of the Responses API as chats.

use std::sync::Arc;

use protocol::limits::MAX_TOP_LOGPROBS;
use serde_json::{Map, Value, json};

use super::store::Store;
use super::with_ids;
use crate::error::ApiError;
use crate::fields::{self, Fields};
use crate::request::asks_for_nothing;
use crate::structured::RESPONSES_FORMAT;

/// Fields whose meaning differs from the chat's field of the same name, or that only exist here.
const OURS: &[&str] = &[
    "input",
    "instructions",
    "tools",
    "tool_choice",
    "response_format",
    "text",
    "reasoning",
    "include",
    "messages",
    "stream_options",
    "previous_response_id",
    "max_output_tokens",
    "max_tokens",
    "n",
    "store",
    "background",
    "top_logprobs",
    "logprobs",
];
/// What `include` asks for log-probabilities with.
const LOGPROBS: &str = "message.output_text.logprobs";
/// Fields that this build cannot honour.
pub(crate) const UNSUPPORTED: &[&str] = &["conversation", "prompt", "functions", "function_call"];

/// A request, read and checked as far as it is not a chat.
pub(crate) struct ResponseRequest {
    pub chat: Fields,
    /// All items that the model reads, those of earlier responses included.
    pub input: Arc<[Value]>,
    pub store: bool,
    pub background: bool,
    /// What the response repeats of the request.
    echo: Map<String, Value>,
}

impl ResponseRequest {
    pub(crate) fn read(fields: &Fields, kept: &Store) -> Result<Self, ApiError> {
        refuse(fields)?;
        let mut input = match fields.text("previous_response_id")? {
            None => Vec::new(),
            Some(id) => history(id, kept)?,
        };
        match fields.get("input").ok_or_else(|| ApiError::missing("input"))? {
            Value::String(text) => input.push(json!({ "type": "message", "role": "user", "content": text })),
            Value::Array(items) => input.extend(items.iter().cloned()),
            other => return Err(fields::wrong("input", "a string or a list of items", other)),
        }
        let background = fields.flag("background")?;
        if background && fields.flag("stream")? {
            return Err(ApiError::value(
                "stream",
                "`stream` with `background` is not supported: leave one out",
            ));
        }
        let store = fields.maybe_flag("store")?.unwrap_or(true);
        if background && !store {
            return Err(ApiError::value("store", "`background` needs `store` to be true"));
        }
        let mut chat: Map<String, Value> = fields
            .iter()
            .filter(|(name, _)| !OURS.contains(name))
            .map(|(name, value)| (name.to_owned(), value.clone()))
            .collect();
        chat.insert("messages".into(), Value::Array(messages(fields.text("instructions")?, &input)?));
        if let Some(limit) = fields.integer("max_output_tokens", 1..=i64::from(u32::MAX))? {
            chat.insert("max_completion_tokens".into(), json!(limit));
        }
        let top = fields.integer("top_logprobs", 0..=i64::from(MAX_TOP_LOGPROBS))?.unwrap_or(0);
        if top > 0 || fields.list("include")?.unwrap_or_default().iter().any(|what| what == LOGPROBS) {
            chat.insert("logprobs".into(), json!(true));
            chat.insert("top_logprobs".into(), json!(top));
        }
        if let Some(tools) = fields.list("tools")? {
            let tools: Vec<Value> =
                tools.iter().enumerate().map(|(i, tool)| read_tool(i, tool)).collect::<Result<_, _>>()?;
            chat.insert("tools".into(), Value::Array(tools));
        }
        if let Some(choice) = fields.get("tool_choice") {
            chat.insert("tool_choice".into(), choice.clone());
        }
        if let Some(reasoning) = fields.object("reasoning")?
            && let Some(effort) = reasoning.get("effort")
        {
            chat.insert("reasoning_effort".into(), effort.clone());
        }
        if let Some(text) = fields.object("text")?
            && let Some(format) = text.get("format")
        {
            chat.insert(RESPONSES_FORMAT.into(), format.clone());
        }
        Ok(Self { chat: Fields::of(chat), input: with_ids(input), store, background, echo: echo(fields) })
    }

    /// The response as it begins.
    pub(crate) fn describe(&self, id: &str, created: u64, model: &str) -> Value {
        let mut response = json!({
            "id": id,
            "object": "response",
            "created_at": created,
            "status": "in_progress",
            "background": self.background,
            "error": null,
            "incomplete_details": null,
            "model": model,
            "output": [],
            "store": self.store,
            "usage": null,
        });
        for (name, value) in &self.echo {
            response[name] = value.clone();
        }
        response
    }
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

fn refuse(fields: &Fields) -> Result<(), ApiError> {
    for &name in UNSUPPORTED {
        if fields.get(name).is_some_and(|value| !asks_for_nothing(name, value)) {
            return Err(ApiError::unsupported(name));
        }
    }
    if fields.text("truncation")?.is_some_and(|truncation| truncation != "disabled") {
        return Err(ApiError::unsupported("truncation"));
    }
    Ok(())
}

/// What an earlier response read and said.
fn history(id: &str, kept: &Store) -> Result<Vec<Value>, ApiError> {
    const NAME: &str = "previous_response_id";
    let entry = kept.get(id).ok_or_else(|| ApiError::Invalid {
        code: "previous_response_not_found",
        param: Some(NAME.into()),
        message: format!(
            "`{NAME}` names `{id}`, which is not kept here: send the whole conversation as `input`"
        ),
    })?;
    if entry.response["status"] == "in_progress" {
        return Err(ApiError::value(NAME, format!("the response `{id}` is not finished: wait for it")));
    }
    let mut items = entry.input.to_vec();
    items.extend(entry.response["output"].as_array().into_iter().flatten().cloned());
    Ok(items)
}

fn read_tool(i: usize, tool: &Value) -> Result<Value, ApiError> {
    let at = format!("tools[{i}]");
    let Value::Object(tool) = tool else { return Err(fields::wrong(&at, "an object", tool)) };
    if tool.get("type").is_some_and(|kind| kind != "function") {
        return Err(ApiError::unsupported(&format!("{at}.type")));
    }
    let name = tool.get("name").ok_or_else(|| ApiError::missing(&format!("{at}.name")))?;
    let function = json!({
        "name": name,
        "description": tool.get("description"),
        "parameters": tool.get("parameters"),
    });
    Ok(json!({ "type": "function", "function": function }))
}

/// Items as messages; calls and reasoning join the message of the turn that they belong to.
fn messages(instructions: Option<&str>, items: &[Value]) -> Result<Vec<Value>, ApiError> {
    let mut out = Vec::with_capacity(items.len() + 1);
    if let Some(text) = instructions {
        out.push(json!({ "role": "system", "content": text }));
    }
    let mut reasoning: Option<String> = None;
    for (i, item) in items.iter().enumerate() {
        let at = format!("input[{i}]");
        let field = |name: &str| item.get(name).ok_or_else(|| ApiError::missing(&format!("{at}.{name}")));
        match item.get("type").and_then(Value::as_str) {
            None | Some("message") => {
                let mut message = json!({ "role": field("role")?, "content": field("content")? });
                if message["role"] == "assistant"
                    && let Some(text) = reasoning.take()
                {
                    message["reasoning_content"] = json!(text);
                }
                out.push(message);
            }
            Some("function_call") => {
                let function = json!({ "name": field("name")?, "arguments": field("arguments")? });
                let call = json!({ "id": field("call_id")?, "type": "function", "function": function });
                add_call(call, reasoning.take(), &mut out);
            }
            Some("function_call_output") => {
                let (id, content) = (field("call_id")?, field("output")?);
                out.push(json!({ "role": "tool", "tool_call_id": id, "content": content }));
            }
            Some("reasoning") => reasoning = Some(reasoning_text(item)),
            Some(_) => return Err(ApiError::unsupported(&format!("{at}.type"))),
        }
    }
    if out.is_empty() {
        return Err(ApiError::value("input", "`input` is an empty list"));
    }
    Ok(out)
}

fn add_call(call: Value, reasoning: Option<String>, out: &mut Vec<Value>) {
    let goes_on = out.last().is_some_and(|last| last["role"] == "assistant");
    if !goes_on {
        out.push(json!({ "role": "assistant", "content": "" }));
    }
    let Some(message) = out.last_mut() else { return };
    match message.get_mut("tool_calls") {
        Some(Value::Array(calls)) => calls.push(call),
        _ => message["tool_calls"] = json!([call]),
    }
    if let Some(text) = reasoning {
        message["reasoning_content"] = json!(text);
    }
}

fn reasoning_text(item: &Value) -> String {
    let parts = ["content", "summary"].iter().filter_map(|name| item.get(name)?.as_array());
    let texts = parts.flatten().filter_map(|part| part.get("text")?.as_str());
    texts.collect::<Vec<_>>().join("\n")
}
