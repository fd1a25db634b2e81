//! Anthropic's requests as chats.

use serde_json::{Map, Value, json};

use crate::error::ApiError;
use crate::fields::{self, Fields};
use crate::limits::{MAX_STOP_BYTES, MAX_STOPS};
use crate::request::{ChatRequest, asks_for_nothing};
use crate::structured::OUTPUT_CONFIG_FORMAT;

/// Fields whose meaning differs from the chat's field of the same name, or that only exist here.
const OURS: &[&str] = &[
    "messages",
    "system",
    "tools",
    "tool_choice",
    "stop_sequences",
    "thinking",
    "output_config",
    "stream_options",
    "stop",
];

/// Fields that have no place in this API's answers, or ask for what only Anthropic's servers have.
pub(crate) const UNSUPPORTED: &[&str] =
    &["logprobs", "top_logprobs", "functions", "function_call", "mcp_servers", "container"];

/// The chat that a request asks for.
pub(crate) fn read(fields: &Fields, n_vocab: u32) -> Result<ChatRequest, ApiError> {
    for &name in UNSUPPORTED {
        if fields.get(name).is_some_and(|value| !asks_for_nothing(name, value)) {
            return Err(ApiError::unsupported(name));
        }
    }
    let chat = ChatRequest::read(&translate(fields)?, n_vocab)?;
    if chat.options.n > 1 {
        return Err(ApiError::unsupported("n"));
    }
    Ok(chat)
}

/// The same request in the words of a chat.
fn translate(fields: &Fields) -> Result<Fields, ApiError> {
    let mut chat: Map<String, Value> = fields
        .iter()
        .filter(|(name, _)| !OURS.contains(name))
        .map(|(k, v)| (k.to_owned(), v.clone()))
        .collect();
    chat.insert("messages".into(), Value::Array(messages(fields)?));
    chat.insert("stop".into(), json!(fields.strings("stop_sequences", MAX_STOPS, MAX_STOP_BYTES)?));
    if let Some(tools) = fields.list("tools")? {
        let tools: Vec<Value> =
            tools.iter().enumerate().map(|(i, tool)| read_tool(i, tool)).collect::<Result<_, _>>()?;
        chat.insert("tools".into(), Value::Array(tools));
    }
    if let Some(choice) = fields.object("tool_choice")? {
        chat.insert("tool_choice".into(), read_choice(&choice)?);
        if choice.flag("disable_parallel_tool_use")? {
            chat.insert("parallel_tool_calls".into(), json!(false));
        }
    }
    if let Some(config) = fields.object("output_config")? {
        if let Some(format) = config.get("format") {
            chat.insert(OUTPUT_CONFIG_FORMAT.into(), format.clone());
        }
        if let Some(effort) = config.get("effort") {
            chat.insert("reasoning_effort".into(), effort.clone());
        }
    }
    if let Some(thinking) = fields.object("thinking")? {
        let enabled = match thinking.text("type")? {
            Some("enabled" | "adaptive") => true,
            Some("disabled") => false,
            _ => return Err(ApiError::value("thinking.type", "`thinking.type` must be enabled or disabled")),
        };
        // Qwen, DeepSeek and others read these names; templates that do not think ignore them.
        let variables = chat.entry("chat_template_kwargs").or_insert_with(|| json!({}));
        if let Value::Object(variables) = variables {
            variables.entry("enable_thinking").or_insert(json!(enabled));
            variables.entry("thinking").or_insert(json!(enabled));
        }
    }
    Ok(Fields::of(chat))
}

fn read_tool(i: usize, tool: &Value) -> Result<Value, ApiError> {
    let at = format!("tools[{i}]");
    let Value::Object(tool) = tool else { return Err(fields::wrong(&at, "an object", tool)) };
    // Anthropic's own tools (`bash_20250124`, `web_search_…`) run on its servers or need its models.
    if tool.get("type").is_some_and(|kind| !kind.is_null() && kind != "custom") {
        return Err(ApiError::unsupported(&format!("{at}.type")));
    }
    let schema = tool.get("input_schema").ok_or_else(|| ApiError::missing(&format!("{at}.input_schema")))?;
    let name = tool.get("name").ok_or_else(|| ApiError::missing(&format!("{at}.name")))?;
    let function = json!({ "name": name, "description": tool.get("description"), "parameters": schema });
    Ok(json!({ "type": "function", "function": function }))
}

fn read_choice(choice: &Fields) -> Result<Value, ApiError> {
    Ok(match choice.text("type")? {
        Some("auto") => json!("auto"),
        Some("none") => json!("none"),
        Some("any") => json!("required"),
        Some("tool") => {
            let name = choice.text("name")?.ok_or_else(|| ApiError::missing("tool_choice.name"))?;
            json!({ "type": "function", "function": { "name": name } })
        }
        _ => {
            return Err(ApiError::value(
                "tool_choice.type",
                "`tool_choice.type` must be auto, any, tool or none",
            ));
        }
    })
}

fn messages(fields: &Fields) -> Result<Vec<Value>, ApiError> {
    let mut out = Vec::new();
    match fields.get("system") {
        None => {}
        Some(system @ (Value::String(_) | Value::Array(_))) => {
            out.push(json!({ "role": "system", "content": system }));
        }
        Some(other) => return Err(fields::wrong("system", "a string or a list of blocks", other)),
    }
    for (i, message) in fields.list("messages")?.unwrap_or_default().iter().enumerate() {
        let at = format!("messages[{i}]");
        let content = message.get("content").unwrap_or(&Value::Null);
        match (message.get("role").and_then(Value::as_str), content) {
            (Some(role @ ("user" | "assistant" | "system")), Value::Array(blocks)) => {
                read_blocks(&format!("{at}.content"), role, blocks, &mut out)?;
            }
            (Some("user" | "assistant" | "system"), _) => out.push(message.clone()),
            (Some(role), _) => {
                let message = format!("`{at}.role` is `{role}`, but must be user or assistant");
                return Err(ApiError::value(format!("{at}.role"), message));
            }
            (None, _) => return Err(ApiError::missing(&format!("{at}.role"))),
        }
    }
    if out.is_empty() {
        return Err(ApiError::missing("messages"));
    }
    Ok(out)
}

/// One message of several kinds of blocks: results of tools become messages of their own, before the rest.
fn read_blocks(at: &str, role: &str, blocks: &[Value], out: &mut Vec<Value>) -> Result<(), ApiError> {
    let (mut texts, mut calls, mut reasoning) = (Vec::new(), Vec::new(), String::new());
    for (i, block) in blocks.iter().enumerate() {
        let at = format!("{at}[{i}]");
        let field = |name: &str| block.get(name).ok_or_else(|| ApiError::missing(&format!("{at}.{name}")));
        match block.get("type").and_then(Value::as_str) {
            Some("tool_result") => {
                let content = match block.get("content") {
                    None | Some(Value::Null) => json!(""),
                    Some(content) => content.clone(),
                };
                out.push(
                    json!({ "role": "tool", "tool_call_id": field("tool_use_id")?, "content": content }),
                );
            }
            Some("tool_use") => {
                let function = json!({ "name": field("name")?, "arguments": field("input")? });
                calls.push(json!({ "id": field("id")?, "type": "function", "function": function }));
            }
            Some("thinking") => reasoning.push_str(field("thinking")?.as_str().unwrap_or_default()),
            Some("redacted_thinking") => {}
            _ => texts.push(block.clone()),
        }
    }
    if texts.is_empty() && calls.is_empty() && role != "assistant" {
        return Ok(());
    }
    let mut message = json!({ "role": role, "content": texts });
    if !calls.is_empty() {
        message["tool_calls"] = json!(calls);
    }
    if !reasoning.is_empty() {
        message["reasoning_content"] = json!(reasoning);
    }
    out.push(message);
    Ok(())
}
