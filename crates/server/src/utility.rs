//! Routes about the model rather than for answers: its vocabulary, its template, its properties.
//!
//! They need the model but no line, so they work while stages are down. Names are llama-server's; vLLM's names work
//! beside them.

use axum::Json;
use axum::extract::{Request, State};
use protocol::Token;
use serde_json::{Value, json};

use crate::api::{Api, Model};
use crate::body::{self, Body};
use crate::error::ApiError;
use crate::request::{ChatRequest, token_list};
use crate::{chat, template};

/// `POST /tokenize`: `{content}` as llama-server has it, or `{prompt}` as vLLM has it.
pub(crate) async fn tokenize(State(api): State<Api>, request: Request) -> Result<Json<Value>, ApiError> {
    let Body { model, fields, size, .. } = body::read_for_model(&api, request).await?;
    let (text, vllm) = match (fields.text("content")?, fields.text("prompt")?) {
        (Some(text), _) => (text.to_owned(), false),
        (None, Some(text)) => (text.to_owned(), true),
        (None, None) => return Err(ApiError::missing("content")),
    };
    let named = match fields.maybe_flag("add_special")? {
        Some(add) => Some(add),
        None => fields.maybe_flag("add_special_tokens")?,
    };
    // llama-server adds nothing unless asked to, vLLM adds unless asked not to.
    let add_special = named.unwrap_or(vllm);
    let parse_special = fields.maybe_flag("parse_special")?.unwrap_or(true);
    let with_pieces = fields.flag("with_pieces")?;
    let with_strings = fields.flag("return_token_strs")?;
    let context = model.info.context;
    body::aside(size, move || {
        let tokens = model.tokenizer.tokenize(&text, add_special, parse_special);
        let mut answer = json!({ "tokens": Value::Null, "count": tokens.len(), "max_model_len": context });
        if with_strings {
            let strings: Vec<String> = tokens
                .iter()
                .map(|&token| String::from_utf8_lossy(&piece(&model, token)).into_owned())
                .collect();
            answer["token_strs"] = json!(strings);
        }
        answer["tokens"] = if with_pieces {
            tokens
                .iter()
                .map(|&token| json!({ "id": token.0, "piece": shown_piece(&model, token) }))
                .collect()
        } else {
            tokens.iter().map(|token| json!(token.0)).collect()
        };
        Json(answer)
    })
    .await
}

fn piece(model: &Model, token: Token) -> Vec<u8> {
    let mut bytes = Vec::new();
    model.tokenizer.piece(token, true, &mut bytes);
    bytes
}

/// Text, or a list of bytes if they are not whole characters.
fn shown_piece(model: &Model, token: Token) -> Value {
    match String::from_utf8(piece(model, token)) {
        Ok(text) => json!(text),
        Err(error) => json!(error.into_bytes()),
    }
}

/// `POST /detokenize`: `{tokens}`; the text is `content` for llama-server's clients and `prompt` for vLLM's.
pub(crate) async fn detokenize(State(api): State<Api>, request: Request) -> Result<Json<Value>, ApiError> {
    let Body { model, fields, size, .. } = body::read_for_model(&api, request).await?;
    let list = fields.list("tokens")?.ok_or_else(|| ApiError::missing("tokens"))?;
    let tokens = token_list("tokens", list)?;
    let n_vocab = model.tokenizer.n_vocab();
    if let Some(token) = tokens.iter().find(|token| !u32::try_from(token.0).is_ok_and(|id| id < n_vocab)) {
        return Err(ApiError::value("tokens", format!("token {token} is not in the model's vocabulary")));
    }
    body::aside(size, move || {
        let bytes: Vec<u8> = tokens.iter().flat_map(|&token| piece(&model, token)).collect();
        let text = String::from_utf8_lossy(&bytes);
        Json(json!({ "content": text, "prompt": text }))
    })
    .await
}

/// `POST /apply-template`: the prompt that a chat would have.
pub(crate) async fn apply_template(
    State(api): State<Api>,
    request: Request,
) -> Result<Json<Value>, ApiError> {
    let Body { model, fields, size, .. } = body::read_for_model(&api, request).await?;
    let chat = ChatRequest::read(&fields, model.tokenizer.n_vocab())?;
    let text = body::aside(size, move || chat::write(&model, chat)).await??.text;
    Ok(Json(json!({ "prompt": text })))
}

/// `GET /props`: what llama-server's clients ask before they chat.
pub(crate) async fn props(State(api): State<Api>) -> Result<Json<Value>, ApiError> {
    let model = api.model()?;
    let info = &model.info;
    Ok(Json(json!({
        "default_generation_settings": { "n_ctx": info.context },
        "model_alias": info.id,
        "chat_template": info.chat_template.as_deref().unwrap_or(template::CHATML),
        "bos_token": info.bos,
        "eos_token": info.eos,
        "modalities": { "vision": false, "audio": false },
        "build_info": concat!("paceline ", env!("CARGO_PKG_VERSION")),
    })))
}
