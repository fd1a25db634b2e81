//! Messages as clients write them, made into what templates expect.
//!
//! Each API reads its messages where they stand and names them so in errors; here is what they have in common.

use serde_json::{Map, Value, json};

use crate::error::ApiError;
use crate::fields::{self, Fields};
use crate::functions;
use crate::limits::MAX_MESSAGES;
use crate::template::Conversation;

/// A message as templates expect it: `content` is one string, arguments of tool calls are objects.
pub(crate) type Message = Map<String, Value>;

/// The messages of OpenAI's chats.
pub(crate) fn messages(fields: &Fields) -> Result<Vec<Message>, ApiError> {
    const NAME: &str = "messages";
    let list = fields.list(NAME)?.ok_or_else(|| ApiError::missing(NAME))?;
    if list.is_empty() || list.len() > MAX_MESSAGES {
        return Err(wrong_count(NAME));
    }
    let read = |(i, message)| read_message(&format!("{NAME}[{i}]"), message);
    let mut messages: Vec<_> = list.iter().enumerate().map(read).collect::<Result<_, _>>()?;
    functions::translate(&mut messages);
    Ok(messages)
}

/// No messages, or more than [`MAX_MESSAGES`].
pub(crate) fn wrong_count(name: &str) -> ApiError {
    ApiError::value(name, format!("`{name}` must hold 1 to {MAX_MESSAGES} messages"))
}

/// The conversation of a chat, without its tools.
pub(crate) fn read(fields: &Fields, messages: Vec<Message>) -> Result<Conversation, ApiError> {
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

/// One message, which the client wrote at `name`.
pub(crate) fn read_message(name: &str, message: &Value) -> Result<Message, ApiError> {
    let Value::Object(message) = message else {
        return Err(fields::wrong(name, "an object", message));
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
    let at_content = format!("{name}.content");
    let content = match message.get("content") {
        None | Some(Value::Null) if role == "assistant" || calls => String::new(),
        None | Some(Value::Null) => return Err(ApiError::missing(&at_content)),
        Some(content) => text(&at_content, content)?,
    };
    // Templates test whether these are there at all, so a null must not be.
    let mut message: Message =
        message.iter().filter(|(_, v)| !v.is_null()).map(|(k, v)| (k.clone(), v.clone())).collect();
    message.insert("content".into(), json!(content));
    if let Some(Value::Array(calls)) = message.get_mut("tool_calls") {
        calls.iter_mut().for_each(open_arguments);
    }
    Ok(message)
}

/// A message made here.
pub(crate) fn said(role: &str, content: String) -> Message {
    Map::from_iter([("role".into(), json!(role)), ("content".into(), json!(content))])
}

/// Whether the model can go on with a message: it is its own, and a text.
pub(crate) fn can_be_continued(message: &Message) -> bool {
    message.get("role").is_some_and(|role| role == "assistant") && !message.contains_key("tool_calls")
}

/// The result of a tool's call.
pub(crate) fn result(call_id: &Value, content: String) -> Message {
    let mut message = said("tool", content);
    message.insert("tool_call_id".into(), call_id.clone());
    message
}

/// A call of a tool, as templates expect it.
pub(crate) fn call(id: &Value, name: &Value, arguments: &Value) -> Value {
    let function = json!({ "name": name, "arguments": arguments });
    let mut call = json!({ "id": id, "type": "function", "function": function });
    open_arguments(&mut call);
    call
}

/// The text of a message's content: a string, or parts.
pub(crate) fn text(name: &str, content: &Value) -> Result<String, ApiError> {
    match content {
        Value::String(text) => Ok(text.clone()),
        Value::Array(parts) => {
            let read = |(i, part)| text_of_part(&format!("{name}[{i}]"), part);
            let texts: Vec<&str> = parts.iter().enumerate().map(read).collect::<Result<_, _>>()?;
            Ok(join(&texts))
        }
        other => Err(fields::wrong(name, "a string or a list of parts", other)),
    }
}

/// Text parts, one per line, as llama.cpp and vLLM join them.
pub(crate) fn join(texts: &[&str]) -> String {
    texts.join("\n")
}

/// The text of one part.
pub(crate) fn text_of_part<'a>(name: &str, part: &'a Value) -> Result<&'a str, ApiError> {
    let kind = part.get("type").and_then(Value::as_str);
    match (kind, part.get("text"), part) {
        (Some("text" | "input_text" | "output_text"), Some(Value::String(text)), _) => Ok(text),
        (None, None, Value::String(text)) => Ok(text),
        (Some("text" | "input_text" | "output_text"), _, _) => {
            Err(ApiError::missing(&format!("{name}.text")))
        }
        (Some(kind), _, _) => {
            let message = format!("`{name}` is of type `{kind}`, but this model reads only text");
            Err(ApiError::value(format!("{name}.type"), message))
        }
        (None, _, Value::Object(_)) => Err(ApiError::missing(&format!("{name}.type"))),
        (None, _, other) => Err(fields::wrong(name, "an object", other)),
    }
}

/// OpenAI sends the arguments of a call as JSON in a string; templates want the object.
pub(crate) fn open_arguments(call: &mut Value) {
    let Some(arguments) = call.pointer_mut("/function/arguments") else { return };
    if let Some(Ok(object @ Value::Object(_))) = arguments.as_str().map(serde_json::from_str) {
        *arguments = object;
    }
}
