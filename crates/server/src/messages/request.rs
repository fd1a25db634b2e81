//! Anthropic's requests as chats.

use serde_json::{Map, Value, json};

use crate::conversation::{self, Message};
use crate::error::ApiError;
use crate::fields::{self, Fields};
use crate::limits::{MAX_MESSAGES, MAX_STOP_BYTES, MAX_STOPS};
use crate::request::{ChatRequest, Contents, refuse};
use crate::structured::OUTPUT_CONFIG_FORMAT;
use crate::tools::{Tools, read_function};

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
];

/// Fields that have no place in this API's answers, or ask for what only Anthropic's servers have.
pub(crate) const UNSUPPORTED: &[&str] =
    &["logprobs", "top_logprobs", "functions", "function_call", "mcp_servers", "container", "stop"];

/// The chat that a request asks for.
pub(crate) fn read(fields: &Fields, n_vocab: u32) -> Result<ChatRequest, ApiError> {
    refuse(UNSUPPORTED, fields)?;
    let rest = translate(fields)?;
    let tools = fields.list("tools")?.unwrap_or_default().iter().enumerate();
    let tools = tools.map(|(i, tool)| read_tool(i, tool)).collect::<Result<_, _>>()?;
    let contents =
        Contents { messages: messages(fields)?, tools: Tools::of(tools, &rest)?, param: "messages" };
    let begun = contents.messages.last().is_some_and(conversation::can_be_continued);
    let mut chat = ChatRequest::of(contents, &rest, n_vocab)?;
    chat.continues = begun;
    if chat.options.n > 1 {
        return Err(ApiError::unsupported("n"));
    }
    Ok(chat)
}

/// All but the messages and tools, in the words of a chat.
fn translate(fields: &Fields) -> Result<Fields, ApiError> {
    let mut chat: Map<String, Value> = fields
        .iter()
        .filter(|(name, _)| !OURS.contains(name))
        .map(|(k, v)| (k.to_owned(), v.clone()))
        .collect();
    chat.insert("stop".into(), json!(fields.strings("stop_sequences", MAX_STOPS, MAX_STOP_BYTES)?));
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
        if let Some(effort) = config.text("effort")? {
            chat.insert("reasoning_effort".into(), json!(effort));
        }
    }
    if let Some(thinking) = fields.object("thinking")? {
        let enabled = match thinking.text("type")? {
            Some("enabled" | "adaptive") => true,
            Some("disabled") => false,
            _ => {
                let message = "`thinking.type` must be enabled, adaptive or disabled";
                return Err(ApiError::value("thinking.type", message));
            }
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
    const SCHEMA: &str = "input_schema";
    let at = format!("tools[{i}]");
    let Value::Object(tool) = tool else { return Err(fields::wrong(&at, "an object", tool)) };
    // Anthropic's own tools (`bash_20250124`, `web_search_…`) run on its servers or need its models.
    if tool.get("type").is_some_and(|kind| !kind.is_null() && kind != "custom") {
        return Err(ApiError::unsupported(&format!("{at}.type")));
    }
    if !tool.contains_key(SCHEMA) {
        return Err(ApiError::missing(&format!("{at}.{SCHEMA}")));
    }
    read_function(&at, tool, SCHEMA)
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

fn messages(fields: &Fields) -> Result<Vec<Message>, ApiError> {
    const NAME: &str = "messages";
    let mut out = Vec::new();
    for (i, message) in fields.list(NAME)?.unwrap_or_default().iter().enumerate() {
        let at = format!("{NAME}[{i}]");
        let Value::Object(map) = message else { return Err(fields::wrong(&at, "an object", message)) };
        let content = map.get("content").unwrap_or(&Value::Null);
        match (map.get("role").and_then(Value::as_str), content) {
            (Some(role @ ("user" | "assistant" | "system")), Value::Array(blocks)) => {
                read_blocks(&format!("{at}.content"), role, blocks, &mut out)?;
            }
            (Some("user" | "assistant" | "system") | None, _) => {
                out.push(conversation::read_message(&at, message)?);
            }
            (Some(role), _) => {
                let message = format!("`{at}.role` is `{role}`, but must be user or assistant");
                return Err(ApiError::value(format!("{at}.role"), message));
            }
        }
    }
    if out.len() > MAX_MESSAGES {
        return Err(conversation::wrong_count(NAME));
    }
    match fields.get("system") {
        None => {}
        Some(system @ (Value::String(_) | Value::Array(_))) => {
            out.insert(0, conversation::said("system", conversation::text("system", system)?));
        }
        Some(other) => return Err(fields::wrong("system", "a string or a list of blocks", other)),
    }
    if out.is_empty() {
        return Err(ApiError::missing(NAME));
    }
    Ok(out)
}

/// One message of several kinds of blocks: results of tools become messages of their own, before the rest.
fn read_blocks(at: &str, role: &str, blocks: &[Value], out: &mut Vec<Message>) -> Result<(), ApiError> {
    let (mut texts, mut calls, mut reasoning) = (Vec::new(), Vec::new(), String::new());
    for (i, block) in blocks.iter().enumerate() {
        let at = format!("{at}[{i}]");
        let field = |name: &str| block.get(name).ok_or_else(|| ApiError::missing(&format!("{at}.{name}")));
        match block.get("type").and_then(Value::as_str) {
            Some("tool_result") => {
                let content = match block.get("content") {
                    None | Some(Value::Null) => String::new(),
                    Some(content) => conversation::text(&format!("{at}.content"), content)?,
                };
                out.push(conversation::result(field("tool_use_id")?, content));
            }
            Some("tool_use") => {
                calls.push(conversation::call(field("id")?, field("name")?, field("input")?));
            }
            Some("thinking") => reasoning.push_str(field("thinking")?.as_str().unwrap_or_default()),
            Some("redacted_thinking") => {}
            _ => texts.push(conversation::text_of_part(&at, block)?),
        }
    }
    if texts.is_empty() && calls.is_empty() && role != "assistant" {
        return Ok(());
    }
    let mut message = conversation::said(role, conversation::join(&texts));
    if !calls.is_empty() {
        message.insert("tool_calls".into(), Value::Array(calls));
    }
    if !reasoning.is_empty() {
        message.insert("reasoning_content".into(), json!(reasoning));
    }
    out.push(message);
    Ok(())
}
