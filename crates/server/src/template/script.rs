//! The template itself, as minijinja runs it.
//!
//! Templates are Jinja, from the model's file, written for Python's Jinja2 as `transformers` runs it. This module
//! gives minijinja what those templates use beyond Jinja: string methods, `raise_exception`, `strftime_now`,
//! `tojson` as `json.dumps` writes it, loop controls, and `generation` blocks (which mark text for training).
//!
//! Owns: everything that touches a template's text, and the limits on its steps and on what it writes. What a step may
//! take is not bounded here: see [`super::sandbox`].

use std::io;
use std::time::SystemTime;

use minijinja::value::{Kwargs, Value};
use minijinja::{Environment, Error, ErrorKind};
use serde::{Deserialize, Serialize};
use serde_json::{Value as Json, json};
use time::OffsetDateTime;

use super::{TemplateError, parts};
use crate::limits::{MAX_TEMPLATE_BYTES, TEMPLATE_FUEL};

const NAME: &str = "chat";

/// What a template makes use of, found out by probes.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub(super) struct Traits {
    /// It wants contents as lists of parts.
    pub wants_parts: bool,
    /// It writes tools into the prompt.
    pub knows_tools: bool,
    /// It writes calls into the prompt.
    pub knows_calls: bool,
    /// It wants the arguments of calls as JSON in a string.
    pub wants_strings: bool,
}

/// A compiled template.
pub(super) struct Script {
    source: String,
    env: Environment<'static>,
}

impl Script {
    /// Compiles a template.
    pub(super) fn new(source: &str) -> Result<Self, TemplateError> {
        let mut env = Environment::new();
        env.set_trim_blocks(true);
        env.set_lstrip_blocks(true);
        env.set_fuel(Some(TEMPLATE_FUEL));
        env.set_unknown_method_callback(minijinja_contrib::pycompat::unknown_method_callback);
        env.add_function("raise_exception", |message: String| -> Result<Value, Error> {
            Err(Error::new(ErrorKind::InvalidOperation, message).with_source(Raised))
        });
        env.add_filter("tojson", to_json);
        env.add_template_owned(NAME, without_generation_blocks(source))
            .map_err(|error| TemplateError::Syntax(describe(&error)))?;
        Ok(Self { source: source.to_owned(), env })
    }

    /// What it was compiled from.
    pub(super) fn source(&self) -> &str {
        &self.source
    }

    /// What it makes use of.
    pub(super) fn traits(&self) -> Traits {
        let wants_parts = !self.shows(&hello(json!(PROBE))) && self.shows(&hello(parts(PROBE)));
        let takes_objects = self.shows(&call_probe(false));
        let wants_strings = !takes_objects && self.shows(&call_probe(true));
        Traits {
            wants_parts,
            knows_tools: self.knows("tools") && self.shows(&tool_probe(wants_parts)),
            knows_calls: takes_objects || wants_strings,
            wants_strings,
        }
    }

    /// The text for these variables. `now` is for templates that tell the model the date.
    pub(super) fn write(&self, variables: Value, now: SystemTime) -> Result<String, TemplateError> {
        let strftime_now = Value::from_function(move |format: String| strftime(now, &format));
        let context = minijinja::context! { strftime_now, ..variables };
        let template =
            self.env.get_template(NAME).map_err(|error| TemplateError::Syntax(describe(&error)))?;
        let mut page = Page::default();
        let written = template.render_captured_to(context, &mut page).map(drop);
        match written {
            Ok(()) => Ok(String::from_utf8(page.text).expect("templates write text")),
            Err(_) if page.is_full => {
                Err(TemplateError::Failed(format!("it writes more than {MAX_TEMPLATE_BYTES} bytes")))
            }
            Err(error) if was_raised(&error) => Err(TemplateError::Refused(describe(&error))),
            Err(error) => Err(TemplateError::Failed(describe(&error))),
        }
    }

    /// Whether it uses a variable.
    fn knows(&self, variable: &str) -> bool {
        self.env
            .get_template(NAME)
            .is_ok_and(|template| template.undeclared_variables(false).contains(variable))
    }

    /// Whether the probe's word shows up when the probe is rendered.
    fn shows(&self, probe: &Json) -> bool {
        let text = self.write(Value::from_serialize(probe), SystemTime::UNIX_EPOCH);
        text.is_ok_and(|text| text.contains(PROBE))
    }
}

/// What a template has written, as far as it may.
#[derive(Default)]
struct Page {
    text: Vec<u8>,
    is_full: bool,
}

impl io::Write for Page {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if bytes.len() > MAX_TEMPLATE_BYTES - self.text.len() {
            self.is_full = true;
            return Err(io::Error::other("there is no room for more"));
        }
        self.text.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What probes look for.
const PROBE: &str = "paceline_probe";

fn probe(messages: Json, tools: Json) -> Json {
    json!({
        "messages": messages,
        "tools": tools,
        "add_generation_prompt": true,
        "bos_token": "",
        "eos_token": "",
    })
}

fn hello(content: Json) -> Json {
    probe(json!([{ "role": "user", "content": content }]), Json::Null)
}

fn tool_probe(wants_parts: bool) -> Json {
    let content = if wants_parts { parts("Hi") } else { json!("Hi") };
    let parameters = json!({ "type": "object", "properties": {} });
    let function = json!({ "name": PROBE, "description": "d", "parameters": parameters });
    probe(
        json!([{ "role": "user", "content": content }]),
        json!([{ "type": "function", "function": function }]),
    )
}

fn call_probe(in_string: bool) -> Json {
    let arguments = json!({ PROBE: 1 });
    let arguments = if in_string { json!(arguments.to_string()) } else { arguments };
    let function = json!({ "name": "f", "arguments": arguments });
    let call = json!({ "id": "123456789", "type": "function", "function": function });
    probe(
        json!([
            { "role": "user", "content": "Hi" },
            { "role": "assistant", "content": "", "tool_calls": [call] },
            { "role": "tool", "tool_call_id": "123456789", "name": "f", "content": "1" },
        ]),
        Json::Null,
    )
}

/// Marks errors that a template raised on purpose.
#[derive(Debug, thiserror::Error)]
#[error("raised by the template")]
struct Raised;

fn was_raised(error: &Error) -> bool {
    let mut source: Option<&(dyn std::error::Error + 'static)> = Some(error);
    while let Some(error) = source {
        if error.is::<Raised>() {
            return true;
        }
        source = error.source();
    }
    false
}

/// The innermost message that says something: errors inside macros and includes wrap the real one.
fn describe(error: &Error) -> String {
    let mut said = error.to_string();
    let mut source = Some(error);
    while let Some(error) = source {
        if let Some(detail) = error.detail() {
            said = detail.to_owned();
        }
        source = std::error::Error::source(error).and_then(|source| source.downcast_ref::<Error>());
    }
    said
}

/// `{% generation %}` … `{% endgeneration %}` become blocks that do nothing; whitespace marks stay.
fn without_generation_blocks(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(start) = rest.find("{%") {
        // The two marks never share their percent sign.
        let Some(end) = rest[start + 2..].find("%}").map(|end| start + 2 + end + 2) else {
            break;
        };
        let inner = &rest[start + 2..end - 2];
        let word = inner.trim_matches(|c: char| c.is_whitespace() || c == '-' || c == '+');
        out.push_str(&rest[..start]);
        match word {
            "generation" => out.push_str(&rest[start..end].replace(word, "if true")),
            "endgeneration" => out.push_str(&rest[start..end].replace(word, "endif")),
            _ => out.push_str(&rest[start..end]),
        }
        rest = &rest[end..];
    }
    out.push_str(rest);
    out
}

fn strftime(now: SystemTime, format: &str) -> Result<String, Error> {
    let invalid = |error: String| Error::new(ErrorKind::InvalidOperation, format!("strftime_now: {error}"));
    let format =
        time::format_description::parse_strftime_owned(format).map_err(|e| invalid(e.to_string()))?;
    OffsetDateTime::from(now).format(&format).map_err(|e| invalid(e.to_string()))
}

/// `json.dumps(value, ensure_ascii=False, indent=…)`: `transformers` replaces Jinja's own filter by this.
fn to_json(value: &Value, options: Kwargs) -> Result<Value, Error> {
    let invalid =
        |error: serde_json::Error| Error::new(ErrorKind::InvalidOperation, format!("tojson: {error}"));
    let indent: Option<usize> = options.get("indent")?;
    let mut value = serde_json::to_value(value).map_err(invalid)?;
    if options.get::<Option<bool>>("sort_keys")?.unwrap_or(false) {
        value.sort_all_objects();
    }
    let mut out = Vec::new();
    if let Some(indent) = indent {
        let indent = " ".repeat(indent.min(16));
        let pretty = serde_json::ser::PrettyFormatter::with_indent(indent.as_bytes());
        value.serialize(&mut serde_json::Serializer::with_formatter(&mut out, pretty)).map_err(invalid)?;
    } else {
        value.serialize(&mut serde_json::Serializer::with_formatter(&mut out, Spaced)).map_err(invalid)?;
    }
    Ok(Value::from(String::from_utf8(out).expect("JSON is UTF-8")))
}

/// Python's default separators: `", "` and `": "`.
struct Spaced;

impl serde_json::ser::Formatter for Spaced {
    fn begin_array_value<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + io::Write>(&mut self, writer: &mut W, first: bool) -> io::Result<()> {
        if first { Ok(()) } else { writer.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + io::Write>(&mut self, writer: &mut W) -> io::Result<()> {
        writer.write_all(b": ")
    }
}
