//! Chat templates: a conversation becomes the text that the model was trained on.
//!
//! Templates are Jinja, from the model's file, written for Python's Jinja2 as `transformers` runs it. This module
//! gives minijinja what those templates use beyond Jinja: string methods, `raise_exception`, `strftime_now`,
//! `tojson` as `json.dumps` writes it, loop controls, and `generation` blocks (which mark text for training).

use std::io;
use std::time::SystemTime;

use minijinja::value::{Kwargs, Value};
use minijinja::{Environment, Error, ErrorKind};
use serde::Serialize;
use serde_json::{Map, Value as Json, json};
use time::OffsetDateTime;

use crate::limits::{MAX_TEMPLATE_BYTES, TEMPLATE_FUEL};
use crate::turn::Syntax;

/// For models that bring no template: ChatML, which most models understand.
pub(crate) const CHATML: &str = "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n\
                      {% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
const NAME: &str = "chat";

/// A template that cannot be used, or that refuses a conversation.
#[derive(Clone, Debug, thiserror::Error)]
pub(crate) enum TemplateError {
    #[error("the model's chat template cannot be read: {0}; use /v1/completions")]
    Syntax(String),
    /// Raised by the template itself, for people who use the model.
    #[error("the model's chat template refuses these messages: {0}")]
    Refused(String),
    #[error("the model's chat template failed: {0}")]
    Failed(String),
}

/// What a template is rendered with.
#[derive(Clone, Debug)]
pub(crate) struct Conversation {
    /// `{role, content, …}` each; contents are strings.
    pub messages: Vec<Map<String, Json>>,
    /// `{"type": "function", "function": {…}}` each.
    pub tools: Vec<Json>,
    /// Whether to end with the opening of the model's turn.
    pub add_generation_prompt: bool,
    /// Further variables, by the client's choice.
    pub variables: Map<String, Json>,
}

/// A compiled template.
pub(crate) struct ChatTemplate {
    env: Environment<'static>,
    /// The template wants contents as lists of parts.
    wants_parts: bool,
    /// The template knows the role `developer`; others get `system`.
    knows_developer: bool,
    /// The template writes tools into the prompt.
    knows_tools: bool,
    /// The template writes calls into the prompt.
    knows_calls: bool,
    /// The template wants the arguments of calls as JSON in a string.
    wants_strings: bool,
    syntax: Syntax,
}

/// Texts of the special tokens that templates write themselves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Specials<'a> {
    pub bos: &'a str,
    pub eos: &'a str,
}

impl ChatTemplate {
    /// Compiles a model's template; ChatML for a model without one.
    pub(crate) fn new(source: Option<&str>) -> Result<Self, TemplateError> {
        let source = source.unwrap_or(CHATML);
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
        let mut template = Self {
            env,
            wants_parts: false,
            knows_developer: source.contains("developer"),
            knows_tools: false,
            knows_calls: false,
            wants_strings: false,
            syntax: Syntax::of_template(source, false),
        };
        template.wants_parts = !template.shows(&hello(json!(PROBE))) && template.shows(&hello(parts(PROBE)));
        template.knows_tools = template.knows("tools") && template.shows(&tool_probe(template.wants_parts));
        let takes_objects = template.shows(&call_probe(false));
        template.wants_strings = !takes_objects && template.shows(&call_probe(true));
        template.knows_calls = takes_objects || template.wants_strings;
        template.syntax = Syntax::of_template(source, template.knows_tools);
        Ok(template)
    }

    /// How models with this template write reasoning and calls.
    pub(crate) const fn syntax(&self) -> &Syntax {
        &self.syntax
    }

    /// Whether the template writes tools into the prompt.
    pub(crate) const fn knows_tools(&self) -> bool {
        self.knows_tools
    }

    /// Whether the template writes calls into the prompt.
    pub(crate) const fn knows_calls(&self) -> bool {
        self.knows_calls
    }

    /// Whether the template uses a variable.
    fn knows(&self, variable: &str) -> bool {
        self.env
            .get_template(NAME)
            .is_ok_and(|template| template.undeclared_variables(false).contains(variable))
    }

    /// The text of a conversation. `now` is for templates that tell the model the date.
    pub(crate) fn render(
        &self,
        conversation: &Conversation,
        specials: Specials<'_>,
        now: SystemTime,
    ) -> Result<String, TemplateError> {
        let messages: Vec<_> = conversation.messages.iter().map(|message| self.fit(message)).collect();
        let mut variables = conversation.variables.clone();
        variables.insert("messages".into(), json!(messages));
        if !conversation.tools.is_empty() {
            variables.insert("tools".into(), json!(conversation.tools));
        }
        variables.insert("add_generation_prompt".into(), json!(conversation.add_generation_prompt));
        variables.insert("bos_token".into(), json!(specials.bos));
        variables.insert("eos_token".into(), json!(specials.eos));
        let strftime_now = Value::from_function(move |format: String| strftime(now, &format));
        let context = minijinja::context! { strftime_now, ..Value::from_serialize(&variables) };
        self.write(context)
    }

    fn write(&self, context: Value) -> Result<String, TemplateError> {
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

    /// Whether the probe's word shows up when the probe is rendered.
    fn shows(&self, probe: &Json) -> bool {
        let strftime_now = Value::from_function(|format: String| strftime(SystemTime::UNIX_EPOCH, &format));
        let context = minijinja::context! { strftime_now, ..Value::from_serialize(probe) };
        self.write(context).is_ok_and(|text| text.contains(PROBE))
    }

    fn fit(&self, message: &Map<String, Json>) -> Map<String, Json> {
        let mut message = message.clone();
        if self.wants_parts
            && let Some(Json::String(text)) = message.get("content")
        {
            let parts = parts(text);
            message.insert("content".into(), parts);
        }
        if self.wants_strings
            && let Some(Json::Array(calls)) = message.get_mut("tool_calls")
        {
            for arguments in calls.iter_mut().filter_map(|call| call.pointer_mut("/function/arguments")) {
                if !arguments.is_string() {
                    *arguments = json!(arguments.to_string());
                }
            }
        }
        if !self.knows_developer && message.get("role").is_some_and(|role| role == "developer") {
            message.insert("role".into(), json!("system"));
        }
        message
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

fn parts(text: &str) -> Json {
    json!([{ "type": "text", "text": text }])
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

#[cfg(test)]
mod tests {
    use super::*;

    const SMOLLM2: &str = "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}\
        {{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n' }}\
        {% endif %}{{'<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>' + '\n'}}\
        {% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";

    /// Turns in Gemma's form: bos first, `model` for the assistant, a system message joined to the first turn,
    /// roles that must alternate, contents that may be parts.
    const TURNS: &str = r#"{{ bos_token }}
{%- if messages[0].role == 'system' -%}
    {%- set prefix = messages[0].content.strip() + '\n\n' -%}
    {%- set turns = messages[1:] -%}
{%- else -%}
    {%- set prefix = '' -%}
    {%- set turns = messages -%}
{%- endif -%}
{%- for turn in turns -%}
    {%- if (turn.role == 'user') != (loop.index0 % 2 == 0) -%}
        {{ raise_exception('Roles must alternate user/assistant') }}
    {%- endif -%}
    {{ '<start_of_turn>' ~ ('model' if turn.role == 'assistant' else turn.role) ~ '\n' ~ (prefix if loop.first else '') }}
    {%- if turn.content is string -%}
        {{ turn.content | trim }}
    {%- else -%}
        {%- for part in turn.content -%}{{ part.text | trim }}{%- endfor -%}
    {%- endif -%}
    {{ '<end_of_turn>\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<start_of_turn>model\n' }}{%- endif -%}"#;

    fn chat(messages: &[(&str, &str)]) -> Conversation {
        let messages = messages
            .iter()
            .map(|(role, content)| {
                Map::from_iter([("role".into(), json!(role)), ("content".into(), json!(content))])
            })
            .collect();
        Conversation { messages, tools: Vec::new(), add_generation_prompt: true, variables: Map::new() }
    }

    fn render(source: &str, conversation: &Conversation) -> Result<String, TemplateError> {
        let specials = Specials { bos: "<bos>", eos: "<eos>" };
        ChatTemplate::new(Some(source)).unwrap().render(conversation, specials, SystemTime::UNIX_EPOCH)
    }

    #[test]
    fn smollm2_adds_its_own_system_message() {
        assert_eq!(
            render(SMOLLM2, &chat(&[("user", "Hi")])).unwrap(),
            "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n\
             <|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
        );
        assert_eq!(
            render(SMOLLM2, &chat(&[("system", "Be brief."), ("user", "Hi")])).unwrap(),
            "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
        );
    }

    #[test]
    fn gemma_turns_start_with_bos_and_name_the_model() {
        let messages =
            chat(&[("system", " Be brief. "), ("user", "Hi "), ("assistant", "Hello"), ("user", "?")]);
        assert_eq!(
            render(TURNS, &messages).unwrap(),
            "<bos><start_of_turn>user\nBe brief.\n\nHi<end_of_turn>\n<start_of_turn>model\nHello<end_of_turn>\n\
             <start_of_turn>user\n?<end_of_turn>\n<start_of_turn>model\n"
        );
    }

    #[test]
    fn what_a_template_raises_reaches_the_client() {
        let error = render(TURNS, &chat(&[("user", "a"), ("user", "b")])).unwrap_err();
        assert!(matches!(error, TemplateError::Refused(_)), "{error:?}");
        assert!(error.to_string().ends_with("Roles must alternate user/assistant"), "{error}");
    }

    #[test]
    fn chatml_serves_models_without_a_template() {
        let template = ChatTemplate::new(None).unwrap();
        let text = template
            .render(&chat(&[("user", "Hi")]), Specials { bos: "", eos: "" }, SystemTime::UNIX_EPOCH)
            .unwrap();
        assert_eq!(text, "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
    }

    #[test]
    fn templates_that_only_know_parts_get_parts() {
        let source = "{% for m in messages %}{% for p in m.content %}{% if p.type == 'text' %}[{{ p.text }}]{% endif %}\
                      {% endfor %}{% endfor %}";
        assert_eq!(render(source, &chat(&[("user", "Hi")])).unwrap(), "[Hi]");
    }

    #[test]
    fn developer_becomes_system_for_templates_that_do_not_know_it() {
        let source = "{% for m in messages %}{{ m.role }};{% endfor %}";
        assert_eq!(render(source, &chat(&[("developer", "x")])).unwrap(), "system;");
        let source = "{# developer #}{% for m in messages %}{{ m.role }};{% endfor %}";
        assert_eq!(render(source, &chat(&[("developer", "x")])).unwrap(), "developer;");
    }

    #[test]
    fn python_idioms_work() {
        let source = "{{ 'a</think>b '.split('</think>')[-1].strip() }}|{{ {'k': [1, '<é>']} | tojson }}|\
                      {{ strftime_now('%d %b %Y') }}|{% for i in range(9) %}{% if i == 2 %}{% break %}{% endif %}\
                      {{ i }}{% endfor %}|{%- generation -%} g {%- endgeneration -%}|{{ depth }}|\
                      {% set ns = namespace(n=0) %}{% for m in messages[::-1] %}{% set ns.n = ns.n + 1 %}{% endfor %}\
                      {{ ns.n }}";
        let mut conversation = chat(&[("user", "Hi")]);
        conversation.variables.insert("depth".into(), json!(3));
        assert_eq!(render(source, &conversation).unwrap(), "b|{\"k\": [1, \"<é>\"]}|01 Jan 1970|01|g|3|1");
    }

    #[test]
    fn broken_and_endless_templates_are_errors() {
        for source in ["{% for %}", "{%}", "{%%}", "{%", "{%}%}"] {
            let error = ChatTemplate::new(Some(source)).err().unwrap();
            assert!(matches!(error, TemplateError::Syntax(_)), "{error:?}");
        }
        let nested = "{% for a in range(99999) %}{% for b in range(99999) %}{% set c = a + b %}{% endfor %}{% endfor %}";
        let error = render(nested, &chat(&[("user", "Hi")])).unwrap_err();
        assert!(matches!(error, TemplateError::Failed(_)), "{error:?}");
        let long = "{% for a in range(99999) %}{{ 'a text' * 1000 }}{% endfor %}";
        let error = render(long, &chat(&[("user", "Hi")])).unwrap_err();
        assert!(error.to_string().contains("more than"), "{error:?}");
    }
}
