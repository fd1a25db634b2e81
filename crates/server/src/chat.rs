//! Chats on their way to the line, whichever API they came by: the prompt, and how to read the model's turn.

use std::sync::Arc;

use protocol::{After, GrammarKind, Token};

use crate::api::{Api, Model};
use crate::call_grammar::CallGrammar;
use crate::error::ApiError;
use crate::generation::{self, Generation, Job};
use crate::request::ChatRequest;
use crate::structured::Form;
use crate::template::TemplateError;
use crate::tools::ToolChoice;
use crate::turn::{CallForm, Reading, Syntax};
use crate::{body, prompt, tools};

/// Where gpt-oss begins its answer.
const FINAL: &str = "<|channel|>final<|message|>";

/// A chat that runs.
pub(crate) struct Running {
    pub generations: Vec<Generation>,
    pub prompt_tokens: u32,
}

/// Puts a chat on the line.
pub(crate) async fn start(api: &Api, model: &Arc<Model>, chat: ChatRequest) -> Result<Running, ApiError> {
    let (mut options, param) = (chat.options.clone(), chat.param);
    let (prompt, Written { reading, form, .. }) = prepare(model, chat).await?;
    options.form = form;
    let prompt_tokens = prompt.len() as u32;
    let job = Job { prompts: vec![prompt], options: &options, param, reading };
    Ok(Running { generations: generation::start(api, model, job).await?, prompt_tokens })
}

/// The tokens that a chat begins with.
pub(crate) async fn prepare(
    model: &Arc<Model>,
    chat: ChatRequest,
) -> Result<(Vec<Token>, Written), ApiError> {
    let model = model.clone();
    body::apart(move || {
        let written = write(&model, chat)?;
        Ok((prompt::tokenise(&model, &written.text), written))
    })
    .await?
}

/// A chat as the model gets it.
pub(crate) struct Written {
    /// What it begins with.
    pub text: String,
    /// How to read what follows.
    pub reading: Reading,
    /// What that has to look like.
    pub form: Option<Form>,
}

/// The text that a chat begins with. Blocks until the template has written it.
pub(crate) fn write(model: &Model, chat: ChatRequest) -> Result<Written, ApiError> {
    let ChatRequest { mut conversation, tools, show_reasoning, continues, param, options, .. } = chat;
    let refused = |error: TemplateError| match error {
        TemplateError::NotRun(_) => ApiError::NotReady { reason: error.to_string(), progress: None },
        _ => ApiError::value(param, error.to_string()),
    };
    let template = model.template.as_ref().map_err(TemplateError::clone).map_err(refused)?;
    let mut syntax = template.syntax().clone();
    let begun = if continues { conversation.messages.pop() } else { None };
    conversation.add_generation_prompt |= continues;
    conversation.tools.clone_from(&tools.list);
    tools::name_results(&mut conversation.messages);
    if !template.knows_tools() {
        tools::emulate_tools(&mut conversation);
    }
    if !template.knows_calls() {
        tools::emulate_calls(&mut conversation);
    }
    if matches!(syntax.calls, CallForm::Mistral { .. }) {
        tools::shorten_ids(&mut conversation.messages);
    }
    let mut text = prompt::text_of(model, &conversation, prompt::now()).map_err(refused)?;
    let mut thinking = syntax.thinking.is_some_and(|(open, _)| text.trim_end().ends_with(open));
    let said =
        |name: &str| begun.as_ref().and_then(|message| message.get(name)?.as_str()).unwrap_or_default();
    let opening = tools.opening(syntax.calls);
    if begun.is_some() || !opening.is_empty() {
        if let Some((_, close)) = syntax.thinking.filter(|_| thinking) {
            text.push_str(&format!("{}\n{close}\n\n", said("reasoning_content")));
            thinking = false;
        }
        text.push_str(said("content"));
        text.push_str(&opening);
    }
    let calls = CallGrammar { tools: &tools, form: syntax.calls, tokenizer: model.tokenizer.as_ref() };
    let form = form_of(options.form, &calls, &syntax, thinking)?.or_else(|| {
        // Who goes on behind the end of a turn may write anything there.
        let grammar = calls.once_begun().filter(|_| tools.choice == ToolChoice::Auto && !options.ignore_eos);
        grammar.filter(|_| !tools.list.is_empty()).map(|grammar| Form { grammar, param: "tools" })
    });
    if !show_reasoning {
        (syntax.thinking, thinking) = (None, false);
    }
    let only_text = syntax.thinking.is_none() && tools.list.is_empty() && syntax.calls != CallForm::Harmony;
    let reading = Reading {
        syntax: (!only_text).then_some(syntax),
        tools: tools.names().map(str::to_owned).collect(),
        texts: tools.texts(),
        thinking,
        single: !tools.parallel,
        opening,
    };
    Ok(Written { text, reading, form })
}

/// The form of the turn: a call that the client insists on, else what it asked for, once the model has thought.
fn form_of(
    asked: Option<Form>,
    calls: &CallGrammar<'_>,
    syntax: &Syntax,
    thinking: bool,
) -> Result<Option<Form>, ApiError> {
    if let Some(grammar) = calls.after_opening() {
        return Ok(Some(Form { grammar, param: "tools" }));
    }
    let Some(mut form) = asked else { return Ok(None) };
    if !calls.tools.list.is_empty() {
        let union = Some(&form.grammar)
            .filter(|grammar| grammar.kind == GrammarKind::JsonSchema)
            .and_then(|grammar| calls.answer_or_call(&grammar.text));
        form.grammar = union.ok_or_else(|| {
            let message = format!(
                "`{}` beside `tools` is not supported for this model: leave one out, or set `tool_choice`",
                form.param
            );
            ApiError::value(form.param, message)
        })?;
    }
    form.grammar.after = match syntax.thinking {
        _ if syntax.calls == CallForm::Harmony => Some(After::must(FINAL)),
        Some((_, close)) if thinking => Some(After::must(close)),
        _ => None,
    };
    Ok(Some(form))
}
