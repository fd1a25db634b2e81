//! Chat templates: a conversation becomes the text that the model was trained on.
//!
//! Owns: what a template is given, and what is known of it. Does not run it: a template is somebody else's program, which
//! came with the model's file, so it is run where it can do no harm ([`sandbox`]).

pub(crate) mod sandbox;
mod script;

use std::sync::Arc;
use std::time::SystemTime;

use serde_json::{Map, Value as Json, json};

use self::sandbox::TemplateHost;
use self::script::Traits;
use crate::turn::Syntax;

/// For models that bring no template: ChatML, which most models understand.
pub(crate) const CHATML: &str = "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n\
                      {% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";

/// A template that cannot be used, or that refuses a conversation.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum TemplateError {
    #[error("the model's chat template cannot be read: {0}; use /v1/completions")]
    Syntax(String),
    /// Raised by the template itself, for people who use the model.
    #[error("the model's chat template refuses these messages: {0}")]
    Refused(String),
    #[error("the model's chat template failed: {0}")]
    Failed(String),
    /// It could not even be tried.
    #[error("the model's chat template could not be run: {0}; try again")]
    NotRun(String),
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

/// A model's template.
pub(crate) struct ChatTemplate {
    source: String,
    host: Arc<dyn TemplateHost>,
    /// It knows the role `developer`; others get `system`.
    knows_developer: bool,
    traits: Traits,
    syntax: Syntax,
}

/// Texts of the special tokens that templates write themselves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Specials<'a> {
    pub bos: &'a str,
    pub eos: &'a str,
}

impl ChatTemplate {
    /// Looks at a model's template; ChatML for a model without one.
    pub(crate) fn new(source: Option<&str>, host: Arc<dyn TemplateHost>) -> Result<Self, TemplateError> {
        let source = source.unwrap_or(CHATML).to_owned();
        let traits = sandbox::look(host.as_ref(), &source)?;
        let knows_developer = source.contains("developer");
        let syntax = Syntax::of_template(&source, traits.knows_tools);
        Ok(Self { source, host, knows_developer, traits, syntax })
    }

    /// How models with this template write reasoning and calls.
    pub(crate) const fn syntax(&self) -> &Syntax {
        &self.syntax
    }

    /// Whether the template writes tools into the prompt.
    pub(crate) const fn knows_tools(&self) -> bool {
        self.traits.knows_tools
    }

    /// Whether the template writes calls into the prompt.
    pub(crate) const fn knows_calls(&self) -> bool {
        self.traits.knows_calls
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
        sandbox::write(self.host.as_ref(), &self.source, &variables, now)
    }

    fn fit(&self, message: &Map<String, Json>) -> Map<String, Json> {
        let mut message = message.clone();
        if self.traits.wants_parts
            && let Some(Json::String(text)) = message.get("content")
        {
            let parts = parts(text);
            message.insert("content".into(), parts);
        }
        if self.traits.wants_strings
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

fn parts(text: &str) -> Json {
    json!([{ "type": "text", "text": text }])
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

    fn template(source: Option<&str>) -> Result<ChatTemplate, TemplateError> {
        ChatTemplate::new(source, Arc::new(sandbox::SameProcess::default()))
    }

    fn render(source: &str, conversation: &Conversation) -> Result<String, TemplateError> {
        let specials = Specials { bos: "<bos>", eos: "<eos>" };
        template(Some(source)).unwrap().render(conversation, specials, SystemTime::UNIX_EPOCH)
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
        let text = template(None)
            .unwrap()
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
            let error = template(Some(source)).err().unwrap();
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
