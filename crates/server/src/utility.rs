//! Routes about the model rather than for answers: its vocabulary and its template.
//!
//! They need the model but no line, so they work while stages are down. Names are llama-server's; vLLM's names work
//! beside them.

use axum::Json;
use axum::extract::{Request, State};
use protocol::Token;
use schemars::JsonSchema;
use serde::Serialize;

use crate::api::{Api, Model};
use crate::body::{self, Body};
use crate::chat;
use crate::error::ApiError;
use crate::request::{ChatRequest, token_list};

/// Tokens of a text.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Tokens {
    tokens: TokenList,
    count: usize,
    /// The context.
    max_model_len: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    token_strs: Option<Vec<String>>,
}

/// Tokens alone or with their text.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(untagged)]
enum TokenList {
    Ids(Vec<i32>),
    Pieces(Vec<TokenPiece>),
}

#[derive(Debug, Serialize, JsonSchema)]
struct TokenPiece {
    id: i32,
    piece: Piece,
}

/// Text, or a list of bytes if they are not whole characters.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(untagged)]
enum Piece {
    Text(String),
    Bytes(Vec<u8>),
}

/// `POST /tokenize`: `{content}` as llama-server has it, or `{prompt}` as vLLM has it.
pub(crate) async fn tokenize(State(api): State<Api>, request: Request) -> Result<Json<Tokens>, ApiError> {
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
        let string = |&token: &Token| String::from_utf8_lossy(&piece(&model, token)).into_owned();
        let with_piece = |token: &Token| TokenPiece { id: token.0, piece: shown_piece(&model, *token) };
        Json(Tokens {
            count: tokens.len(),
            max_model_len: context,
            token_strs: with_strings.then(|| tokens.iter().map(string).collect()),
            tokens: if with_pieces {
                TokenList::Pieces(tokens.iter().map(with_piece).collect())
            } else {
                TokenList::Ids(tokens.iter().map(|token| token.0).collect())
            },
        })
    })
    .await
}

fn piece(model: &Model, token: Token) -> Vec<u8> {
    let mut bytes = Vec::new();
    model.tokenizer.piece(token, true, &mut bytes);
    bytes
}

fn shown_piece(model: &Model, token: Token) -> Piece {
    match String::from_utf8(piece(model, token)) {
        Ok(text) => Piece::Text(text),
        Err(error) => Piece::Bytes(error.into_bytes()),
    }
}

/// A text, by llama-server's name and by vLLM's.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Text {
    content: String,
    prompt: String,
}

/// `POST /detokenize`: `{tokens}`; the text is `content` for llama-server's clients and `prompt` for vLLM's.
pub(crate) async fn detokenize(State(api): State<Api>, request: Request) -> Result<Json<Text>, ApiError> {
    let Body { model, fields, size, .. } = body::read_for_model(&api, request).await?;
    let list = fields.list("tokens")?.ok_or_else(|| ApiError::missing("tokens"))?;
    let tokens = token_list("tokens", list)?;
    let n_vocab = model.tokenizer.n_vocab();
    if let Some(token) = tokens.iter().find(|token| !u32::try_from(token.0).is_ok_and(|id| id < n_vocab)) {
        return Err(ApiError::value("tokens", format!("token {token} is not in the model's vocabulary")));
    }
    body::aside(size, move || {
        let bytes: Vec<u8> = tokens.iter().flat_map(|&token| piece(&model, token)).collect();
        let content = String::from_utf8_lossy(&bytes).into_owned();
        Json(Text { prompt: content.clone(), content })
    })
    .await
}

/// The prompt of a chat.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Written {
    prompt: String,
}

/// `POST /apply-template`: the prompt that a chat would have.
pub(crate) async fn apply_template(
    State(api): State<Api>,
    request: Request,
) -> Result<Json<Written>, ApiError> {
    let Body { model, fields, .. } = body::read_for_model(&api, request).await?;
    let chat = ChatRequest::read(&fields, model.tokenizer.n_vocab())?;
    let text = body::apart(move || chat::write(&model, chat)).await??.text;
    Ok(Json(Written { prompt: text }))
}
