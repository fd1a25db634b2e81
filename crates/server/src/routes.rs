//! What each route does.

use std::sync::Arc;
use std::time::SystemTime;

use axum::Json;
use axum::body::Bytes;
use axum::extract::{FromRequest, OriginalUri, Path, Request, State};
use axum::http::{Method, StatusCode};
use axum::response::{IntoResponse, Response};
use protocol::Token;
use serde_json::{Value, json};
use tokio::time::timeout;
use uuid::Uuid;

use crate::api::{Api, Model};
use crate::error::ApiError;
use crate::fields::Fields;
use crate::reply::{Form, Reply};
use crate::request::{ChatRequest, CompletionRequest, Options, Prompt};
use crate::template::{Conversation, Specials};
use crate::{LineStatus, generation, limits, stream};

/// `GET /health`: the process lives.
pub(crate) async fn health() -> Json<Value> {
    Json(json!({ "status": "ok" }))
}

/// `GET /ready`: a token went through all stages recently.
pub(crate) async fn ready(State(api): State<Api>) -> Result<Json<Value>, ApiError> {
    api.ready()?;
    Ok(Json(json!({ "status": "ready" })))
}

/// `GET /v1/line`.
pub(crate) async fn line(State(api): State<Api>) -> Json<LineStatus> {
    Json(api.line().status())
}

/// `GET /v1/models`.
pub(crate) async fn models(State(api): State<Api>) -> Result<Json<Value>, ApiError> {
    let model = describe(api.ready()?);
    Ok(Json(json!({ "object": "list", "data": [model] })))
}

/// `GET /v1/models/{id}`.
pub(crate) async fn model(State(api): State<Api>, Path(id): Path<String>) -> Result<Json<Value>, ApiError> {
    let model = api.ready()?;
    model.answers_to(&id)?;
    Ok(Json(describe(model)))
}

fn describe(model: &Model) -> Value {
    let info = &model.info;
    json!({
        "id": info.id,
        "object": "model",
        "created": info.created,
        "owned_by": "paceline",
        "meta": {
            "architecture": info.architecture,
            "n_vocab": model.tokenizer.n_vocab(),
            "n_ctx": info.context,
            "n_ctx_train": info.trained_context,
            "n_params": info.n_params,
        },
    })
}

/// `POST /v1/chat/completions`.
pub(crate) async fn chat(State(api): State<Api>, request: Request) -> Result<Response, ApiError> {
    const PARAM: &str = "messages";
    let (model, fields, size) = read(&api, request).await?;
    let ChatRequest { conversation, options } = ChatRequest::read(&fields, model.tokenizer.n_vocab())?;
    let now = now();
    let prompt = {
        let model = model.clone();
        aside(size, move || render(&model, &conversation, now)).await??
    };
    answer(&api, &model, Job { prompts: vec![prompt], options, form: Form::Chat, param: PARAM }).await
}

/// `POST /v1/completions`.
pub(crate) async fn completions(State(api): State<Api>, request: Request) -> Result<Response, ApiError> {
    const PARAM: &str = "prompt";
    let (model, fields, size) = read(&api, request).await?;
    let CompletionRequest { prompts, echo, options } =
        CompletionRequest::read(&fields, model.tokenizer.n_vocab())?;
    let echo =
        if echo { prompts.iter().map(|prompt| prompt_text(&model, prompt)).collect() } else { Vec::new() };
    let prompts = {
        let model = model.clone();
        aside(size, move || prompts.into_iter().map(|prompt| prompt_tokens(&model, prompt)).collect()).await?
    };
    answer(&api, &model, Job { prompts, options, form: Form::Completion { echo }, param: PARAM }).await
}

/// Anything else.
pub(crate) async fn unknown_url(OriginalUri(uri): OriginalUri) -> ApiError {
    ApiError::UnknownUrl(uri.path().chars().take(200).collect())
}

/// A route's wrong method.
pub(crate) async fn wrong_method(method: Method) -> ApiError {
    ApiError::MethodNotAllowed(method.to_string())
}

/// A request whose prompts are tokens.
struct Job {
    prompts: Vec<Vec<Token>>,
    options: Options,
    form: Form,
    /// The field that the prompts came from.
    param: &'static str,
}

async fn answer(api: &Api, model: &Arc<Model>, job: Job) -> Result<Response, ApiError> {
    let generations = generation::start(api, model, &job.prompts, &job.options, job.param).await?;
    let prefix = match job.form {
        Form::Chat => "chatcmpl",
        Form::Completion { .. } => "cmpl",
    };
    let reply = Reply {
        form: job.form,
        id: format!("{prefix}-{}", Uuid::new_v4().simple()),
        created: now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs()),
        model: model.info.id.clone(),
        fingerprint: model.info.fingerprint.clone(),
        tokenizer: model.tokenizer.clone(),
        n: job.options.n as usize,
        prompt_tokens: job.prompts.iter().map(|prompt| prompt.len() as u32).collect(),
        top_logprobs: job.options.top_logprobs,
    };
    if job.options.stream {
        let keep_alive = api.config().keep_alive;
        return Ok(stream::respond(generations, reply, job.options.include_usage, keep_alive));
    }
    Ok(Json(stream::collect(generations, &reply).await?).into_response())
}

/// The model that the request is for, the body's fields, and the body's size in bytes.
async fn read(api: &Api, request: Request) -> Result<(Arc<Model>, Fields, usize), ApiError> {
    let model = api.ready()?.clone();
    let body = timeout(limits::BODY_TIME, Bytes::from_request(request, &()))
        .await
        .map_err(|_| ApiError::TooSlow(limits::BODY_TIME))?
        .map_err(|rejection| match rejection.status() {
            StatusCode::PAYLOAD_TOO_LARGE => ApiError::TooLarge { limit: api.config().max_body_bytes },
            _ => ApiError::Json(rejection.body_text()),
        })?;
    let fields = Fields::parse(&body)?;
    if let Some(asked) = fields.text("model")? {
        model.answers_to(asked)?;
    }
    Ok((model, fields, body.len()))
}

/// Runs work that takes as long as `size` bytes do: little work here, much on a thread where it holds up nobody.
async fn aside<T: Send + 'static>(
    size: usize,
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ApiError> {
    if size <= limits::TOKENISE_INLINE_BYTES {
        return Ok(work());
    }
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|error| ApiError::Internal(format!("the prompt could not be prepared: {error}")))
}

fn render(model: &Model, conversation: &Conversation, now: SystemTime) -> Result<Vec<Token>, ApiError> {
    let invalid = |message: String| ApiError::value("messages", message);
    let template = model.template.as_ref().map_err(|error| invalid(error.to_string()))?;
    let specials = Specials { bos: &model.info.bos, eos: &model.info.eos };
    let text = template.render(conversation, specials, now).map_err(|error| invalid(error.to_string()))?;
    Ok(tokenise(model, &text))
}

fn prompt_tokens(model: &Model, prompt: Prompt) -> Vec<Token> {
    match prompt {
        Prompt::Text(text) => tokenise(model, &text),
        Prompt::Tokens(tokens) => tokens,
    }
}

fn prompt_text(model: &Model, prompt: &Prompt) -> String {
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
fn tokenise(model: &Model, text: &str) -> Vec<Token> {
    let bos = &model.info.bos;
    let has_bos = !bos.is_empty() && text.starts_with(bos.as_str());
    model.tokenizer.tokenize(text, !has_bos, true)
}

/// The wall clock, for `created` and for templates that tell the model the date.
#[allow(clippy::disallowed_methods, reason = "a driver: the time goes to the client, and decides nothing")]
fn now() -> SystemTime {
    SystemTime::now()
}
