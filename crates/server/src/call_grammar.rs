//! What a call of a tool has to look like, as a grammar: arguments follow the tool's schema.
//!
//! Does not know how calls are read again; `turn` does.

use protocol::{Grammar, GrammarKind};
use serde_json::{Map, Value, json};

use crate::tools::{ToolChoice, Tools};
use crate::turn::CallForm;

/// What has to follow the beginning that the prompt makes of a call the client insists on (see [`Tools::opening`]). None
/// without such a call, and for several tools in a form that writes names between special tokens: the model is trusted
/// with those.
pub(crate) fn after_opening(tools: &Tools, form: CallForm) -> Option<Grammar> {
    let lark = match &tools.choice {
        ToolChoice::Auto | ToolChoice::None => return None,
        ToolChoice::Named(name) => {
            let close = if form.arguments_key().is_some() { " \"}\"" } else { "" };
            format!("start: a0{close}\na0: {}\n", schema_of(tools, name))
        }
        ToolChoice::Required => {
            let key = form.arguments_key()?;
            alternatives(tools, |name| format!("{name}\", \"{key}\": "))
        }
    };
    Some(Grammar::new(GrammarKind::Lark, lark))
}

/// An answer of this schema, or a call of any tool from its beginning on. None for forms whose calls begin with special
/// tokens.
pub(crate) fn answer_or_call(schema: &str, tools: &Tools, form: CallForm) -> Option<Grammar> {
    let key = form.arguments_key()?;
    let schema: Value = serde_json::from_str(schema).ok()?;
    let calls = alternatives(tools, |name| format!("{}{name}\", \"{key}\": ", form.opening(None)));
    let lark = calls.replacen("start: ", "start: answer | ", 1);
    let lark = format!("{lark}answer: %json {}\n", compact(&schema, false));
    Some(Grammar::new(GrammarKind::Lark, lark))
}

/// A call of each tool, begun by what `begin` says of its name.
fn alternatives(tools: &Tools, begin: impl Fn(&str) -> String) -> String {
    let names: Vec<&str> = tools.names().collect();
    let starts: Vec<String> = (0..names.len()).map(|i| format!("c{i}")).collect();
    let mut lark = format!("start: {}\n", starts.join(" | "));
    for (i, name) in names.iter().enumerate() {
        let begin = json!(begin(name));
        lark.push_str(&format!("c{i}: {begin} a{i} \"}}\"\na{i}: {}\n", schema_of(tools, name)));
    }
    lark
}

fn schema_of(tools: &Tools, name: &str) -> String {
    let tool = tools.list.iter().find(|tool| tool["function"]["name"] == name);
    let schema = tool.map_or(&Value::Null, |tool| &tool["function"]["parameters"]);
    format!("%json {}", compact(schema, true))
}

/// A schema whose JSON has no free white space; `lenient` if what it says beyond the common words may be left out, which
/// tools' schemas often do.
fn compact(schema: &Value, lenient: bool) -> Value {
    let mut schema = match schema {
        Value::Object(map) => map.clone(),
        _ => Map::from_iter([("type".to_owned(), json!("object"))]),
    };
    if schema.is_empty() || (lenient && !schema.contains_key("type") && !schema.contains_key("$ref")) {
        schema.insert("type".into(), json!("object"));
    }
    schema.insert("x-guidance".into(), json!({ "whitespace_flexible": false, "lenient": lenient }));
    let mut schema = Value::Object(schema);
    if lenient {
        leave_out_steps(&mut schema);
    }
    schema
}

/// Steps of numbers take long to read and matter little for a call.
fn leave_out_steps(schema: &mut Value) {
    let mut ahead = vec![schema];
    while let Some(value) = ahead.pop() {
        match value {
            Value::Object(map) => {
                if map.get("multipleOf").is_some_and(Value::is_number) {
                    map.remove("multipleOf");
                }
                ahead.extend(map.values_mut());
            }
            Value::Array(list) => ahead.extend(list),
            _ => {}
        }
    }
}
