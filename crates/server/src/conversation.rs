//! Messages as clients write them, made into what templates expect.

use serde_json::{Map, Value, json};

use crate::error::ApiError;
use crate::fields::{self, Fields};
use crate::functions;
use crate::limits::MAX_MESSAGES;
use crate::template::Conversation;

/// The conversation of a chat, without its tools.
pub(crate) fn read(fields: &Fields) -> Result<Conversation, ApiError> {
    let list = fields.list("messages")?.ok_or_else(|| ApiError::missing("messages"))?;
    if list.is_empty() || list.len() > MAX_MESSAGES {
        return Err(ApiError::value(
            "messages",
            format!("`messages` must hold 1 to {MAX_MESSAGES} messages"),
        ));
    }
    let mut messages: Vec<_> =
        list.iter().enumerate().map(|(i, message)| read_message(i, message)).collect::<Result<_, _>>()?;
    functions::translate(&mut messages);
    let mut variables = match fields.object("chat_template_kwargs")? {
        Some(variables) => variables.into_map(),
        None => Map::new(),
    };
    if let Some(effort) = fields.text("reasoning_effort")? {
        variables.insert("reasoning_effort".into(), json!(effort));
    }
    let add_generation_prompt = fields.maybe_flag("add_generation_prompt")?.unwrap_or(true);
    Ok(Conversation { messages, tools: Vec::new(), add_generation_prompt, variables })
}

/// One message as templates expect it: `content` is one string, arguments of tool calls are objects.
fn read_message(i: usize, message: &Value) -> Result<Map<String, Value>, ApiError> {
    let name = format!("messages[{i}]");
    let Value::Object(message) = message else {
        return Err(fields::wrong(&name, "an object", message));
    };
    let role = match message.get("role") {
        Some(Value::String(role)) => role.as_str(),
        Some(other) => return Err(fields::wrong(&format!("{name}.role"), "a string", other)),
        None => return Err(ApiError::missing(&format!("{name}.role"))),
    };
    if !["system", "developer", "user", "assistant", "tool", "function"].contains(&role) {
        let message =
            format!("`{name}.role` is `{role}`, but must be system, developer, user, assistant or tool");
        return Err(ApiError::value(format!("{name}.role"), message));
    }
    let calls =
        message.get("tool_calls").is_some_and(|calls| calls.as_array().is_some_and(|c| !c.is_empty()));
    let content = match message.get("content") {
        Some(Value::String(text)) => text.clone(),
        Some(Value::Array(parts)) => join_parts(&format!("{name}.content"), parts)?,
        None | Some(Value::Null) if role == "assistant" || calls => String::new(),
        None | Some(Value::Null) => return Err(ApiError::missing(&format!("{name}.content"))),
        Some(other) => {
            return Err(fields::wrong(&format!("{name}.content"), "a string or a list of parts", other));
        }
    };
    // Templates test whether these are there at all, so a null must not be.
    let mut message: Map<String, Value> =
        message.iter().filter(|(_, v)| !v.is_null()).map(|(k, v)| (k.clone(), v.clone())).collect();
    message.insert("content".into(), json!(content));
    if let Some(Value::Array(calls)) = message.get_mut("tool_calls") {
        calls.iter_mut().for_each(open_arguments);
    }
    Ok(message)
}

/// Text parts, one per line, as llama.cpp and vLLM join them.
fn join_parts(name: &str, parts: &[Value]) -> Result<String, ApiError> {
    let mut texts = Vec::with_capacity(parts.len());
    for (i, part) in parts.iter().enumerate() {
        let name = format!("{name}[{i}]");
        let kind = part.get("type").and_then(Value::as_str);
        match (kind, part.get("text"), part) {
            (Some("text" | "input_text" | "output_text"), Some(Value::String(text)), _) => {
                texts.push(text.as_str())
            }
            (None, None, Value::String(text)) => texts.push(text),
            (Some("text" | "input_text" | "output_text"), _, _) => {
                return Err(ApiError::missing(&format!("{name}.text")));
            }
            (Some(kind), _, _) => {
                let message = format!("`{name}` is of type `{kind}`, but this model reads only text");
                return Err(ApiError::value(format!("{name}.type"), message));
            }
            (None, _, _) => return Err(ApiError::missing(&format!("{name}.type"))),
        }
    }
    Ok(texts.join("\n"))
}

/// OpenAI sends the arguments of a call as JSON in a string; templates want the object.
pub(crate) fn open_arguments(call: &mut Value) {
    let Some(arguments) = call.pointer_mut("/function/arguments") else { return };
    if let Some(Ok(object @ Value::Object(_))) = arguments.as_str().map(serde_json::from_str) {
        *arguments = object;
    }
}
