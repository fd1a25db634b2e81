//! Prompts: from conversations, texts and tokens to what the line takes.

use std::time::SystemTime;

use protocol::Token;

use crate::Fill;
use crate::api::Model;
use crate::error::ApiError;
use crate::request::Prompt;
use crate::template::{Conversation, Specials, TemplateError};

/// The text of a conversation, as the model's template writes it.
pub(crate) fn text_of(
    model: &Model,
    conversation: &Conversation,
    now: SystemTime,
) -> Result<String, TemplateError> {
    let template = model.template.as_ref().map_err(TemplateError::clone)?;
    let specials = Specials { bos: &model.info.bos, eos: &model.info.eos };
    template.render(conversation, specials, now)
}

/// The tokens of a prompt.
pub(crate) fn tokens_of(model: &Model, prompt: Prompt) -> Vec<Token> {
    match prompt {
        Prompt::Text(text) => tokenise(model, &text),
        Prompt::Tokens(tokens) => tokens,
    }
}

/// A gap in a text, which the answer fills.
pub(crate) struct Gap {
    fill: Fill,
    suffix: String,
}

impl Gap {
    /// A gap before `suffix`.
    pub(crate) fn before(suffix: String, model: &Model) -> Result<Self, ApiError> {
        let fill = model.info.fill.ok_or_else(|| ApiError::Invalid {
            code: "unsupported_parameter",
            param: Some("suffix".into()),
            message: "this model has no tokens for filling a gap: leave `suffix` out".into(),
        })?;
        Ok(Self { fill, suffix })
    }

    /// The tokens that ask for what is missing behind `prompt`. What looks like a special token is text here: code is
    /// full of such things.
    pub(crate) fn after(&self, model: &Model, prompt: Prompt) -> Vec<Token> {
        let text = |text: &str| model.tokenizer.tokenize(text, false, false);
        let mut tokens = model.tokenizer.tokenize("", true, false);
        tokens.push(self.fill.prefix);
        tokens.extend(match prompt {
            Prompt::Text(prompt) => text(&prompt),
            Prompt::Tokens(prompt) => prompt,
        });
        tokens.push(self.fill.suffix);
        tokens.extend(text(&self.suffix));
        tokens.push(self.fill.middle);
        tokens
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
