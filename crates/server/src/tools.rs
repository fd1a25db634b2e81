//! Tools as OpenAI's clients write them, and conversations for templates that know nothing of tools.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::call_grammar::is_text;
use crate::conversation::said;
use crate::error::ApiError;
use crate::fields::{self, Fields};
use crate::limits::{MAX_TOOL_NAME, MAX_TOOLS};
use crate::template::Conversation;
use crate::turn::CallForm;

/// What the model may call, and whether it has to.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Tools {
    /// `{"type": "function", "function": {…}}` each, as templates expect them.
    pub list: Vec<Value>,
    pub choice: ToolChoice,
    /// More than one call in a turn.
    pub parallel: bool,
}

/// Whether the model has to call.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) enum ToolChoice {
    #[default]
    Auto,
    None,
    Required,
    Named(String),
}

impl Tools {
    /// The tools of OpenAI's chats.
    pub(crate) fn read(fields: &Fields) -> Result<Self, ApiError> {
        let list = fields.list("tools")?.unwrap_or_default();
        let list = list.iter().enumerate().map(|(i, tool)| read_tool(i, tool)).collect::<Result<_, _>>()?;
        Self::of(list, fields)
    }

    /// Tools that were read already, and what `fields` say of their use.
    pub(crate) fn of(list: Vec<Value>, fields: &Fields) -> Result<Self, ApiError> {
        if list.len() > MAX_TOOLS {
            return Err(ApiError::value("tools", format!("`tools` may hold at most {MAX_TOOLS} tools")));
        }
        let mut tools = Self {
            list,
            choice: ToolChoice::Auto,
            parallel: fields.maybe_flag("parallel_tool_calls")?.unwrap_or(true),
        };
        tools.choice = tools.read_choice(fields)?;
        if tools.choice == ToolChoice::None {
            tools.list.clear();
        }
        Ok(tools)
    }

    fn read_choice(&self, fields: &Fields) -> Result<ToolChoice, ApiError> {
        const NAME: &str = "tool_choice";
        let choice = match fields.get(NAME) {
            None => return Ok(ToolChoice::Auto),
            Some(Value::String(word)) => match word.as_str() {
                "auto" => return Ok(ToolChoice::Auto),
                "none" => return Ok(ToolChoice::None),
                "required" => ToolChoice::Required,
                _ => {
                    let message =
                        format!("`{NAME}` must be auto, none, required or a function, found `{word}`");
                    return Err(ApiError::value(NAME, message));
                }
            },
            Some(choice @ Value::Object(_)) => {
                if choice.get("type").is_some_and(|kind| kind != "function") {
                    return Err(ApiError::unsupported("tool_choice.type"));
                }
                // The Responses API has the name one level up.
                let name = choice.pointer("/function/name").or_else(|| choice.get("name"));
                let name = name
                    .and_then(Value::as_str)
                    .ok_or_else(|| ApiError::missing("tool_choice.function.name"))?;
                ToolChoice::Named(name.to_owned())
            }
            Some(other) => return Err(fields::wrong(NAME, "a string or an object", other)),
        };
        if self.list.is_empty() {
            return Err(ApiError::value(NAME, "`tool_choice` asks for a call, but `tools` is empty"));
        }
        match choice {
            ToolChoice::Named(name) if !self.names().any(|tool| tool == name) => {
                Err(ApiError::value(NAME, format!("`{NAME}` names `{name}`, which is not in `tools`")))
            }
            // With one tool there is no choice.
            ToolChoice::Required if self.list.len() == 1 => {
                Ok(ToolChoice::Named(self.names().next().unwrap_or_default().to_owned()))
            }
            choice => Ok(choice),
        }
    }

    /// Names of the tools.
    pub(crate) fn names(&self) -> impl Iterator<Item = &str> {
        self.list.iter().filter_map(|tool| tool.pointer("/function/name").and_then(Value::as_str))
    }

    /// By tool, the arguments that are texts.
    pub(crate) fn texts(&self) -> BTreeMap<String, Vec<String>> {
        let texts_of = |tool: &Value| {
            let name = tool.pointer("/function/name")?.as_str()?.to_owned();
            let properties = tool.pointer("/function/parameters/properties")?.as_object()?;
            let texts = properties.iter().filter(|(_, schema)| is_text(schema));
            Some((name, texts.map(|(name, _)| name.clone()).collect()))
        };
        self.list.iter().filter_map(texts_of).collect()
    }

    /// What the model's turn has to begin with.
    pub(crate) fn opening(&self, form: CallForm) -> String {
        match &self.choice {
            ToolChoice::Auto | ToolChoice::None => String::new(),
            ToolChoice::Required => form.opening(None),
            ToolChoice::Named(name) => form.opening(Some(name)),
        }
    }
}

/// A tool with all that templates rely on.
fn read_tool(i: usize, tool: &Value) -> Result<Value, ApiError> {
    let at = format!("tools[{i}]");
    let Value::Object(tool) = tool else { return Err(fields::wrong(&at, "an object", tool)) };
    if tool.get("type").is_some_and(|kind| kind != "function") {
        return Err(ApiError::unsupported(&format!("{at}.type")));
    }
    let function = match tool.get("function") {
        Some(Value::Object(function)) => function,
        Some(other) => return Err(fields::wrong(&format!("{at}.function"), "an object", other)),
        None => return Err(ApiError::missing(&format!("{at}.function"))),
    };
    read_function(&format!("{at}.function"), function, "parameters")
}

/// A function as the tool that templates expect. `at` is where the client wrote it, `schema` its name for the schema of
/// the arguments.
pub(crate) fn read_function(
    at: &str,
    function: &Map<String, Value>,
    schema: &str,
) -> Result<Value, ApiError> {
    let at_name = format!("{at}.name");
    let name = match function.get("name") {
        Some(Value::String(name)) => name,
        Some(other) => return Err(fields::wrong(&at_name, "a string", other)),
        None => return Err(ApiError::missing(&at_name)),
    };
    let fits = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    if name.is_empty() || name.len() > MAX_TOOL_NAME || !name.chars().all(fits) {
        let message =
            format!("`{at_name}` must be 1 to {MAX_TOOL_NAME} letters, digits, underscores, dashes and dots");
        return Err(ApiError::value(at_name, message));
    }
    let parameters = match function.get(schema) {
        None | Some(Value::Null) => json!({ "type": "object", "properties": {} }),
        Some(parameters @ Value::Object(_)) => parameters.clone(),
        Some(other) => return Err(fields::wrong(&format!("{at}.{schema}"), "an object", other)),
    };
    let description = function.get("description").and_then(Value::as_str).unwrap_or_default();
    Ok(json!({
        "type": "function",
        "function": { "name": name, "description": description, "parameters": parameters },
    }))
}

/// Gives results of tools the name of their tool, which some templates write.
pub(crate) fn name_results(messages: &mut [Map<String, Value>]) {
    let mut names: BTreeMap<String, Value> = BTreeMap::new();
    for message in messages {
        for call in calls(message) {
            if let (Some(id), Some(name)) = (call["id"].as_str(), call.pointer("/function/name")) {
                names.insert(id.to_owned(), name.clone());
            }
        }
        if message.get("role").is_some_and(|role| role == "tool")
            && !message.contains_key("name")
            && let Some(name) =
                message.get("tool_call_id").and_then(Value::as_str).and_then(|id| names.get(id))
        {
            message.insert("name".into(), name.clone());
        }
    }
}

/// Mistral's templates refuse ids that are not nine letters and digits.
pub(crate) fn shorten_ids(messages: &mut [Map<String, Value>]) {
    let shorten = |id: &mut Value| {
        if let Some(long) =
            id.as_str().filter(|id| id.len() != 9 || !id.bytes().all(|b| b.is_ascii_alphanumeric()))
        {
            *id = json!(blake3::hash(long.as_bytes()).to_hex()[..9]);
        }
    };
    for message in messages {
        if let Some(Value::Array(calls)) = message.get_mut("tool_calls") {
            calls.iter_mut().filter_map(|call| call.get_mut("id")).for_each(shorten);
        }
        message.get_mut("tool_call_id").into_iter().for_each(shorten);
    }
}

fn calls(message: &Map<String, Value>) -> &[Value] {
    message.get("tool_calls").and_then(Value::as_array).map_or(&[], Vec::as_slice)
}

/// Writes calls and their results as text, for templates that would leave them out.
pub(crate) fn emulate_calls(conversation: &mut Conversation) {
    for message in &mut conversation.messages {
        if message.get("role").is_some_and(|role| role == "tool") {
            let result = message.get("content").and_then(Value::as_str).unwrap_or_default();
            let content = format!("<tool_response>\n{result}\n</tool_response>");
            *message = said("user", content);
        } else if !calls(message).is_empty() {
            let mut content = message.get("content").and_then(Value::as_str).unwrap_or_default().to_owned();
            for call in calls(message) {
                let function = &call["function"];
                let call = json!({ "name": function["name"], "arguments": function["arguments"] });
                if !content.is_empty() {
                    content.push('\n');
                }
                content.push_str(&format!("<tool_call>\n{call}\n</tool_call>"));
            }
            // What was thought before stays.
            message.remove("tool_calls");
            message.insert("content".into(), json!(content));
        }
    }
}

/// Describes tools in words, for templates that would leave them out.
pub(crate) fn emulate_tools(conversation: &mut Conversation) {
    let tools = std::mem::take(&mut conversation.tools);
    if tools.is_empty() {
        return;
    }
    let tools: Vec<String> = tools.iter().map(Value::to_string).collect();
    let manual = format!(
        "You can call these tools, each described by a JSON schema:\n<tools>\n{}\n</tools>\n\nTo call one, write\n\
         <tool_call>\n{{\"name\": \"the tool's name\", \"arguments\": {{…}}}}\n</tool_call>\nand nothing after it; the \
         result comes with the next message.",
        tools.join("\n")
    );
    match conversation.messages.first_mut() {
        Some(first) if first.get("role").is_some_and(|role| role == "system" || role == "developer") => {
            let content = first.get("content").and_then(Value::as_str).unwrap_or_default();
            let content = format!("{content}\n\n{manual}");
            first.insert("content".into(), json!(content));
        }
        _ => conversation.messages.insert(0, said("system", manual)),
    }
}
