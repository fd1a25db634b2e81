//! Chats on their way to the line, whichever API they came by: the prompt, and how to read the model's turn.

use std::sync::Arc;

use protocol::Token;

use crate::api::{Api, Model};
use crate::error::ApiError;
use crate::generation::{self, Generation, Job};
use crate::request::ChatRequest;
use crate::turn::{CallForm, Reading};
use crate::{body, prompt, tools};

/// A chat that runs.
pub(crate) struct Running {
    pub generations: Vec<Generation>,
    pub prompt_tokens: u32,
}

/// Puts a chat on the line. `size` is the body's, in bytes.
pub(crate) async fn start(
    api: &Api,
    model: &Arc<Model>,
    chat: ChatRequest,
    size: usize,
) -> Result<Running, ApiError> {
    let options = chat.options.clone();
    let (prompt, reading) = prepare(model, chat, size).await?;
    let prompt_tokens = prompt.len() as u32;
    let job = Job { prompts: vec![prompt], options: &options, param: "messages", reading };
    Ok(Running { generations: generation::start(api, model, job).await?, prompt_tokens })
}

/// The tokens that a chat begins with.
pub(crate) async fn prepare(
    model: &Arc<Model>,
    chat: ChatRequest,
    size: usize,
) -> Result<(Vec<Token>, Reading), ApiError> {
    let model = model.clone();
    body::aside(size, move || {
        let (text, reading) = write(&model, chat)?;
        Ok((prompt::tokenise(&model, &text), reading))
    })
    .await?
}

/// The text that a chat begins with.
pub(crate) fn write(model: &Model, chat: ChatRequest) -> Result<(String, Reading), ApiError> {
    let ChatRequest { mut conversation, tools, show_reasoning, .. } = chat;
    let template = model.template.as_ref().map_err(|error| ApiError::value("messages", error.to_string()))?;
    let mut syntax = template.syntax().clone();
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
    let mut text = prompt::text_of(model, &conversation, prompt::now())?;
    let mut thinking = syntax.thinking.is_some_and(|(open, _)| text.trim_end().ends_with(open));
    let opening = tools.opening(syntax.calls);
    if !opening.is_empty() {
        if let Some((_, close)) = syntax.thinking.filter(|_| thinking) {
            text.push_str(&format!("\n{close}\n\n"));
            thinking = false;
        }
        text.push_str(&opening);
    }
    if !show_reasoning {
        (syntax.thinking, thinking) = (None, false);
    }
    let only_text = syntax.thinking.is_none() && tools.list.is_empty() && syntax.calls != CallForm::Harmony;
    let reading = Reading {
        syntax: (!only_text).then_some(syntax),
        tools: tools.names().map(str::to_owned).collect(),
        thinking,
        single: !tools.parallel,
        opening,
    };
    Ok((text, reading))
}
