//! Answers in a given form, as clients ask for them: OpenAI's, llama.cpp's and vLLM's fields.
//!
//! Owns: which field asks for what, and the wait for a grammar to be looked at. What grammars mean is not known here.

use std::sync::Arc;

use protocol::limits::MAX_GRAMMAR_BYTES;
use protocol::{Grammar, GrammarKind};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::api::{Api, Model};
use crate::error::ApiError;
use crate::fields::{self, Fields};
use crate::limits::{GRAMMAR_TIME, MAX_CHOICE_TEXTS};

/// The Responses API's name for what chats call `response_format`.
pub(crate) const RESPONSES_FORMAT: &str = "text.format";
/// Anthropic's names for it, the older first.
pub(crate) const OUTPUT_FORMAT: &str = "output_format";
pub(crate) const OUTPUT_CONFIG_FORMAT: &str = "output_config.format";

/// The form of an answer, and the field that asked for it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Form {
    pub grammar: Grammar,
    pub param: &'static str,
}

/// Reads the fields that ask for a form; several at once contradict each other.
pub(crate) fn read(fields: &Fields) -> Result<Option<Form>, ApiError> {
    let mut found: Option<Form> = None;
    let readers: [(&'static str, Reader); 11] = [
        ("response_format", response_format),
        (RESPONSES_FORMAT, response_format),
        (OUTPUT_FORMAT, response_format),
        (OUTPUT_CONFIG_FORMAT, response_format),
        ("json_schema", schema_of),
        ("grammar", grammar_text),
        ("guided_json", schema_of),
        ("guided_regex", regex),
        ("guided_choice", choice),
        ("guided_grammar", grammar_text),
        ("structured_outputs", structured_outputs),
    ];
    for (param, reader) in readers {
        let Some(value) = fields.get(param).filter(|value| !is_nothing(value)) else { continue };
        let Some(grammar) = reader(param, value)? else { continue };
        if grammar.text.len() > MAX_GRAMMAR_BYTES {
            let message =
                format!("`{param}` makes a grammar of more than {MAX_GRAMMAR_BYTES} bytes: make it shorter");
            return Err(ApiError::value(param, message));
        }
        if let Some(other) = &found {
            let message = format!("`{param}` and `{}` both ask for a form: leave one out", other.param);
            return Err(ApiError::value(param, message));
        }
        found = Some(Form { grammar, param });
    }
    Ok(found)
}

/// What one field asks for; none if for nothing.
type Reader = fn(&'static str, &Value) -> Result<Option<Grammar>, ApiError>;

/// Values that clients send when they mean that the field is not there.
fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => text.is_empty(),
        Value::Array(list) => list.is_empty(),
        Value::Bool(true) | Value::Number(_) | Value::Object(_) => false,
    }
}

fn response_format(param: &'static str, value: &Value) -> Result<Option<Grammar>, ApiError> {
    let Value::Object(format) = value else { return Err(fields::wrong(param, "an object", value)) };
    if format.is_empty() {
        return Ok(None);
    }
    let kind = match format.get("type") {
        Some(Value::String(kind)) => kind.as_str(),
        Some(other) => return Err(fields::wrong(&format!("{param}.type"), "a string", other)),
        None => return Err(ApiError::missing(&format!("{param}.type"))),
    };
    match kind {
        "text" => Ok(None),
        // llama.cpp takes a schema here too.
        "json_object" => match format.get("schema").filter(|schema| !schema.is_null()) {
            Some(given) => schema(param, given).map(Some),
            None => schema(param, &json!({ "type": "object" })).map(Some),
        },
        "json_schema" => {
            // OpenAI's chats have the schema one level down, its Responses API, Anthropic and llama.cpp here.
            let given = format.get("json_schema").and_then(|inner| inner.get("schema"));
            let given = given.or_else(|| format.get("schema")).filter(|schema| !schema.is_null());
            let inner = if param == "response_format" { ".json_schema" } else { "" };
            let given = given.ok_or_else(|| ApiError::missing(&format!("{param}{inner}.schema")))?;
            schema(param, given).map(Some)
        }
        other => {
            let param = format!("{param}.type");
            let message = format!("`{param}` must be text, json_object or json_schema, found `{other}`");
            Err(ApiError::value(param, message))
        }
    }
}

fn schema_of(param: &'static str, value: &Value) -> Result<Option<Grammar>, ApiError> {
    schema(param, value).map(Some)
}

/// A schema as JSON, or as JSON in a string.
fn schema(param: &'static str, value: &Value) -> Result<Grammar, ApiError> {
    let text = match value {
        Value::Object(_) | Value::Bool(_) => value.to_string(),
        Value::String(text) => text.clone(),
        other => return Err(fields::wrong(param, "a JSON schema", other)),
    };
    Ok(Grammar::new(GrammarKind::JsonSchema, text))
}

fn text<'a>(param: &str, value: &'a Value) -> Result<&'a str, ApiError> {
    value.as_str().ok_or_else(|| fields::wrong(param, "a string", value))
}

fn regex(param: &'static str, value: &Value) -> Result<Option<Grammar>, ApiError> {
    Ok(Some(Grammar::new(GrammarKind::Regex, text(param, value)?)))
}

/// GBNF, or Lark as llama.cpp's and vLLM's back end of the same name take it.
fn grammar_text(param: &'static str, value: &Value) -> Result<Option<Grammar>, ApiError> {
    let text = text(param, value)?;
    let kind = if text.contains("::=") { GrammarKind::Gbnf } else { GrammarKind::Lark };
    Ok(Some(Grammar::new(kind, text)))
}

/// One of several texts.
fn choice(param: &'static str, value: &Value) -> Result<Option<Grammar>, ApiError> {
    const EXPECTED: &str = "a list of strings";
    let list = value.as_array().ok_or_else(|| fields::wrong(param, EXPECTED, value))?;
    if list.len() > MAX_CHOICE_TEXTS {
        let message = format!("`{param}` may hold at most {MAX_CHOICE_TEXTS} strings");
        return Err(ApiError::value(param, message));
    }
    let mut texts = Vec::with_capacity(list.len());
    for item in list {
        let text = item.as_str().ok_or_else(|| fields::wrong(param, EXPECTED, item))?;
        if text.is_empty() {
            return Err(ApiError::value(param, format!("`{param}` holds an empty string: leave it out")));
        }
        texts.push(json!(text).to_string());
    }
    let text = format!("start: CHOICE\nCHOICE: {}", texts.join(" | "));
    Ok(Some(Grammar::new(GrammarKind::Lark, text)))
}

/// vLLM's newer name for its `guided_` fields.
fn structured_outputs(param: &'static str, value: &Value) -> Result<Option<Grammar>, ApiError> {
    let Value::Object(map) = value else { return Err(fields::wrong(param, "an object", value)) };
    let readers: [(&str, Reader); 4] =
        [("json", schema_of), ("regex", regex), ("choice", choice), ("grammar", grammar_text)];
    let given = |name: &str| map.get(name).filter(|value| !is_nothing(value));
    for (name, reader) in readers {
        if let Some(value) = given(name) {
            return reader(param, value);
        }
    }
    match given("json_object") {
        Some(_) => schema(param, &json!({ "type": "object" })).map(Some),
        None if given("structural_tag").is_some() => {
            Err(ApiError::unsupported("structured_outputs.structural_tag"))
        }
        None => Ok(None),
    }
}

/// The form's grammar, if the model can follow it. Looked at beside the line, one or two at a time, and not for ever: what
/// takes longer than any useful grammar is given up, and keeps its place until it ends. Nobody asked for the grammars of
/// calls that may never come: without one that cannot be followed the model is trusted.
pub(crate) async fn check(api: &Api, model: &Arc<Model>, form: &Form) -> Result<Option<Grammar>, ApiError> {
    let may_do_without = form.grammar.after.as_ref().is_some_and(|after| after.may_end);
    let refused = if may_do_without && form.grammar.text.len() > MAX_GRAMMAR_BYTES {
        Err(ApiError::value(form.param, "the grammar of its calls is too long"))
    } else {
        // That it took too long depends on what else is going on: the answer must not.
        follow(api, model, form).await?
    };
    match refused {
        Ok(()) => Ok(Some(form.grammar.clone())),
        Err(reason) if may_do_without => {
            tracing::debug!(%reason, "calls are left to the model");
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Whether the model can follow it, if that could be found out.
async fn follow(api: &Api, model: &Arc<Model>, form: &Form) -> Result<Result<(), ApiError>, ApiError> {
    let too_long = || {
        let message =
            format!("`{}` cannot be read within {} s: make it simpler", form.param, GRAMMAR_TIME.as_secs());
        ApiError::value(form.param, message)
    };
    let looked_at = async {
        let place = api.grammar_places().acquire_owned().await.expect("the places are never closed");
        let (tokenizer, grammar) = (model.tokenizer.clone(), form.grammar.clone());
        tokio::task::spawn_blocking(move || {
            let _place = place;
            tokenizer.check_grammar(&grammar)
        })
        .await
        .map_err(|error| ApiError::Internal(format!("the grammar could not be looked at: {error}")))
    };
    let checked = timeout(GRAMMAR_TIME, looked_at).await.map_err(|_| too_long())??;
    Ok(checked.map_err(|reason| ApiError::value(form.param, format!("`{}`: {reason}", form.param))))
}
