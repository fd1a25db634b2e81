//! OpenAI's `functions`, which came before tools: read as tools, so that templates see only those.
//!
//! Does not know how answers look; `reply` writes calls back in the old form.

use serde_json::{Map, Value, json};

use crate::conversation::open_arguments;
use crate::error::ApiError;
use crate::fields::{self, Fields};
use crate::limits::MAX_TOOLS;
use crate::tools::{ToolChoice, Tools, read_function};

const LIST: &str = "functions";
const CHOICE: &str = "function_call";

/// The functions as tools, one call a turn; none if the request has no functions.
pub(crate) fn read(fields: &Fields) -> Result<Option<Tools>, ApiError> {
    let list = fields.list(LIST)?.unwrap_or_default();
    if list.is_empty() {
        return match fields.get(CHOICE) {
            None => Ok(None),
            Some(choice) if choice == "auto" || choice == "none" => Ok(None),
            Some(_) => {
                let message = format!("`{CHOICE}` asks for a call, but `{LIST}` is empty");
                Err(ApiError::value(CHOICE, message))
            }
        };
    }
    if fields.list("tools")?.is_some_and(|tools| !tools.is_empty()) {
        let message = format!("`{LIST}` is the old name of `tools`: leave one out");
        return Err(ApiError::value(LIST, message));
    }
    if list.len() > MAX_TOOLS {
        return Err(ApiError::value(LIST, format!("`{LIST}` may hold at most {MAX_TOOLS} functions")));
    }
    let list = list
        .iter()
        .enumerate()
        .map(|(i, function)| match function {
            Value::Object(function) => read_function(&format!("{LIST}[{i}]"), function, "parameters"),
            other => Err(fields::wrong(&format!("{LIST}[{i}]"), "an object", other)),
        })
        .collect::<Result<_, _>>()?;
    let mut tools = Tools { list, choice: ToolChoice::Auto, parallel: false };
    tools.choice = read_choice(&tools, fields)?;
    if tools.choice == ToolChoice::None {
        tools.list.clear();
    }
    Ok(Some(tools))
}

fn read_choice(tools: &Tools, fields: &Fields) -> Result<ToolChoice, ApiError> {
    match fields.get(CHOICE) {
        None => Ok(ToolChoice::Auto),
        Some(choice) if choice == "auto" => Ok(ToolChoice::Auto),
        Some(choice) if choice == "none" => Ok(ToolChoice::None),
        Some(Value::Object(choice)) => {
            let name = choice.get("name").and_then(Value::as_str);
            let name = name.ok_or_else(|| ApiError::missing(&format!("{CHOICE}.name")))?;
            if !tools.names().any(|ours| ours == name) {
                let message = format!("`{CHOICE}` names `{name}`, which is not in `{LIST}`");
                return Err(ApiError::value(CHOICE, message));
            }
            Ok(ToolChoice::Named(name.to_owned()))
        }
        Some(other) => Err(fields::wrong(CHOICE, "auto, none or an object with a name", other)),
    }
}

/// Calls and results of functions in earlier messages, as those of tools.
pub(crate) fn translate(messages: &mut [Map<String, Value>]) {
    let mut last: Option<String> = None;
    for (i, message) in messages.iter_mut().enumerate() {
        if let Some(function) = message.remove(CHOICE) {
            let id = format!("call_{i}");
            let mut call = json!({ "id": id, "type": "function", "function": function });
            open_arguments(&mut call);
            message.entry("tool_calls").or_insert_with(|| json!([call]));
            last = Some(id);
        }
        if message.get("role").is_some_and(|role| role == "function") {
            message.insert("role".into(), json!("tool"));
            if let Some(id) = last.take() {
                message.entry("tool_call_id").or_insert_with(|| json!(id));
            }
        }
    }
}
