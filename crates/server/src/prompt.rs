//! Prompts: from conversations, texts and tokens to what the line takes.

use std::time::SystemTime;

use protocol::Token;

use crate::api::Model;
use crate::error::ApiError;
use crate::request::Prompt;
use crate::template::{Conversation, Specials};

/// The text of a conversation, as the model's template writes it.
pub(crate) fn text_of(
    model: &Model,
    conversation: &Conversation,
    now: SystemTime,
) -> Result<String, ApiError> {
    let invalid = |message: String| ApiError::value("messages", message);
    let template = model.template.as_ref().map_err(|error| invalid(error.to_string()))?;
    let specials = Specials { bos: &model.info.bos, eos: &model.info.eos };
    template.render(conversation, specials, now).map_err(|error| invalid(error.to_string()))
}

/// The tokens of a prompt.
pub(crate) fn tokens_of(model: &Model, prompt: Prompt) -> Vec<Token> {
    match prompt {
        Prompt::Text(text) => tokenise(model, &text),
        Prompt::Tokens(tokens) => tokens,
    }
}

/// A prompt for people to read, special tokens included.
pub(crate) fn shown(model: &Model, prompt: &Prompt) -> String {
    match prompt {
        Prompt::Text(text) => text.clone(),
        Prompt::Tokens(tokens) => {
            let mut bytes = Vec::new();
            tokens.iter().for_each(|&token| model.tokenizer.piece(token, true, &mut bytes));
            String::from_utf8_lossy(&bytes).into_owned()
        }
    }
}

/// A text that writes the beginning-of-sequence token itself must not get a second one.
pub(crate) fn tokenise(model: &Model, text: &str) -> Vec<Token> {
    let bos = &model.info.bos;
    let has_bos = !bos.is_empty() && text.starts_with(bos.as_str());
    model.tokenizer.tokenize(text, !has_bos, true)
}

/// The wall clock, for `created` and for templates that tell the model the date.
#[allow(clippy::disallowed_methods, reason = "a driver: the time goes to the client, and decides nothing")]
pub(crate) fn now() -> SystemTime {
    SystemTime::now()
}

/// Seconds since 1970.
pub(crate) fn unix_seconds() -> u64 {
    now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
