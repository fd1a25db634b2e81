//! What each route does.

use axum::extract::{Path, Request, State};
use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use protocol::Token;
use scheduler::RequestId;
use schemars::JsonSchema;
use serde::Serialize;
use uuid::Uuid;

use crate::api::{Api, Model};
use crate::auth::Caller;
use crate::best::best;
use crate::body::Body;
use crate::chat::Running;
use crate::error::ApiError;
use crate::generation::{Generation, Job};
use crate::legacy::Echo;
use crate::reply::{Form, Reply, ReplyStream};
use crate::request::{ChatRequest, CompletionRequest, Options};
use crate::turn::Reading;
use crate::{LineStatus, body, chat, generation, messages, prompt, stream};

/// That all is well.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Condition {
    /// `ok` or `ready`.
    status: &'static str,
}

/// `GET /health`: the process lives.
pub(crate) async fn health() -> Json<Condition> {
    Json(Condition { status: "ok" })
}

/// `GET /ready`: a token went through all stages recently.
pub(crate) async fn ready(State(api): State<Api>) -> Result<Json<Condition>, ApiError> {
    api.ready()?;
    Ok(Json(Condition { status: "ready" }))
}

/// `GET /v1/line`.
pub(crate) async fn line(State(api): State<Api>) -> Json<LineStatus> {
    Json(api.line().status())
}

/// A request that was ended.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Cancelled {
    id: u64,
    /// `request.cancelled`.
    object: &'static str,
    cancelled: bool,
}

/// `POST /v1/requests/{id}/cancel`: by the number on the line, which `/v1/line/events` tells.
pub(crate) async fn cancel(
    State(api): State<Api>,
    Path(id): Path<String>,
    caller: Option<Extension<Caller>>,
) -> Result<Json<Cancelled>, ApiError> {
    let caller = caller.map(|Extension(caller)| caller).unwrap_or_default();
    let own = id.parse().map(RequestId).ok().filter(|&id| api.roll().is_own(id, caller));
    let RequestId(number) = own.ok_or(ApiError::UnknownRequest(id))?;
    api.line().cancel(RequestId(number));
    Ok(Json(Cancelled { id: number, object: "request.cancelled", cancelled: true }))
}

/// `GET /metrics`.
pub(crate) async fn metrics(State(api): State<Api>) -> Response {
    const FORMAT: HeaderValue = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    let text = api.metrics().encode(&api.line().status(), api.ready().is_ok());
    ([(header::CONTENT_TYPE, FORMAT)], text).into_response()
}

/// The models, of which there is one.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Models {
    /// `list`.
    object: &'static str,
    data: Vec<ModelCard>,
}

/// The model as OpenAI's API describes one.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ModelCard {
    id: String,
    /// `model`.
    object: &'static str,
    /// Seconds since 1970.
    created: u64,
    owned_by: &'static str,
    /// The context, by vLLM's name.
    max_model_len: u32,
    meta: ModelMeta,
}

/// What llama-server says of a model besides.
#[derive(Debug, Serialize, JsonSchema)]
struct ModelMeta {
    architecture: String,
    n_vocab: u32,
    n_ctx: u32,
    n_ctx_train: Option<u32>,
    n_params: Option<u64>,
}

impl From<&Model> for ModelCard {
    fn from(model: &Model) -> Self {
        let info = &model.info;
        Self {
            id: info.id.clone(),
            object: "model",
            created: info.created,
            owned_by: "paceline",
            max_model_len: info.context,
            meta: ModelMeta {
                architecture: info.architecture.clone(),
                n_vocab: model.tokenizer.n_vocab(),
                n_ctx: info.context,
                n_ctx_train: info.trained_context,
                n_params: info.n_params,
            },
        }
    }
}

/// `GET /v1/models`.
pub(crate) async fn models(State(api): State<Api>) -> Result<Json<Models>, ApiError> {
    let model = api.open()?;
    Ok(Json(Models { object: "list", data: vec![model.as_ref().into()] }))
}

/// `GET /v1/models/{id}`.
pub(crate) async fn model(
    State(api): State<Api>,
    Path(id): Path<String>,
) -> Result<Json<ModelCard>, ApiError> {
    let model = api.open()?;
    model.answers_to(&id)?;
    Ok(Json(model.as_ref().into()))
}

/// `POST /v1/chat/completions`.
pub(crate) async fn chat(State(api): State<Api>, request: Request) -> Result<Response, ApiError> {
    let Body { model, fields, caller, trace, .. } = body::read(&api, request).await?;
    let mut request = ChatRequest::read(&fields, model.tokenizer.n_vocab())?;
    (request.options.caller, request.options.trace) = (caller, trace);
    let options = request.options.clone();
    let form = Form::Chat { functions: request.functions };
    let Running { generations, prompt_tokens } = chat::start(&api, &model, request).await?;
    answer(&api, reply(&model, &options, form, vec![prompt_tokens]), options.stream, generations).await
}

/// `POST /v1/completions`.
pub(crate) async fn completions(State(api): State<Api>, request: Request) -> Result<Response, ApiError> {
    const PARAM: &str = "prompt";
    let Body { model, fields, caller, trace, size } = body::read(&api, request).await?;
    let CompletionRequest { prompts, suffix, echo, best_of, options } =
        CompletionRequest::read(&fields, model.tokenizer.n_vocab())?;
    let gap = suffix.map(|suffix| prompt::Gap::before(suffix, &model)).transpose()?;
    let shown: Vec<String> =
        if echo { prompts.iter().map(|prompt| prompt::shown(&model, prompt)).collect() } else { Vec::new() };
    let prompts: Vec<Vec<Token>> = {
        let model = model.clone();
        body::aside(size, move || {
            let tokens = |prompt| match &gap {
                Some(gap) => gap.after(&model, prompt),
                None => prompt::tokens_of(&model, prompt),
            };
            prompts.into_iter().map(tokens).collect()
        })
        .await?
    };
    let prompt_tokens = prompts.iter().map(|prompt| prompt.len() as u32).collect();
    let has_logprobs = options.top_logprobs.is_some();
    let echo = |(text, tokens): (String, &Vec<Token>)| {
        let tokens = if has_logprobs { tokens.clone() } else { Vec::new() };
        Echo { text, tokens }
    };
    let echo = shown.into_iter().zip(&prompts).map(echo).collect();
    let reply = reply(&model, &options, Form::Completion { echo }, prompt_tokens);
    let n = options.n;
    let mut options = Options { caller, trace, ..options };
    if best_of > n {
        options.n = best_of;
        options.top_logprobs.get_or_insert(0);
    }
    let job = Job { prompts, options: &options, param: PARAM, reading: Reading::default() };
    let generations = generation::start(&api, &model, job).await?;
    if options.stream {
        return answer(&api, reply, true, generations).await;
    }
    let choices = best(stream::collect(generations).await?, best_of as usize, n as usize);
    Ok(Json(reply.whole(choices)).into_response())
}

/// Anything else.
pub(crate) async fn unknown_url(request: Request) -> Response {
    let path = request.uri().path().chars().take(200).collect();
    messages::refusal(&request, ApiError::UnknownUrl(path))
}

/// A route's wrong method.
pub(crate) async fn wrong_method(request: Request) -> Response {
    let method = request.method().to_string();
    messages::refusal(&request, ApiError::MethodNotAllowed(method))
}

fn reply(model: &Model, options: &Options, form: Form, prompt_tokens: Vec<u32>) -> Reply {
    let prefix = match form {
        Form::Chat { .. } => "chatcmpl",
        Form::Completion { .. } => "cmpl",
    };
    Reply {
        form,
        id: format!("{prefix}-{}", Uuid::new_v4().simple()),
        created: prompt::unix_seconds(),
        model: model.info.id.clone(),
        fingerprint: model.info.fingerprint.clone(),
        tokenizer: model.tokenizer.clone(),
        n: options.n as usize,
        prompt_tokens,
        top_logprobs: options.top_logprobs,
        include_usage: options.include_usage,
    }
}

async fn answer(
    api: &Api,
    reply: Reply,
    stream: bool,
    generations: Vec<Generation>,
) -> Result<Response, ApiError> {
    if stream {
        return Ok(stream::respond(generations, ReplyStream::new(reply), api.config().keep_alive));
    }
    Ok(Json(reply.whole(stream::collect(generations).await?)).into_response())
}
