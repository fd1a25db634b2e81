//! OpenAI's Responses API over the same chats.
//!
//! Owns: its routes, and what requests, answers and events look like there. Answers are kept in memory, within limits,
//! so that a later request can go on from them.

mod aligned;
mod object;
mod output;
mod record;
pub(crate) mod request;
mod store;

use std::sync::Arc;

use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, Request, State};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};
use uuid::Uuid;

use crate::api::Api;
use crate::auth::Caller;
use crate::body::{self, Body};
use crate::chat::{self, Running};
use crate::error::ApiError;
use crate::{prompt, stream};
use output::Output;
use record::Record;
use request::ResponseRequest;
use store::Entry;

pub(crate) use object::ResponseObject;
pub(crate) use store::Store;

/// Items in one page at most, and when nothing is said: OpenAI's numbers.
const MAX_PAGE: usize = 100;
const PAGE: usize = 20;

/// `POST /v1/responses`.
pub(crate) async fn create(State(api): State<Api>, request: Request) -> Result<Response, ApiError> {
    let Body { model, fields, caller, trace, .. } = body::read(&api, request).await?;
    let mut request = ResponseRequest::read(&fields, api.responses(), caller, model.tokenizer.n_vocab())?;
    request.chat.options.trace = trace;
    let chat = request.chat.clone();
    let streaming = chat.options.stream;
    let tokenizer = model.tokenizer.clone();
    let keep_alive = api.config().keep_alive;
    let Running { generations, prompt_tokens } = chat::start(&api, &model, chat).await?;
    let id = format!("resp_{}", Uuid::new_v4().simple());
    let response = request.describe(&id, prompt::unix_seconds(), &model.info.id);
    let store = request.store.then(|| api.responses().clone());
    let entry =
        Entry { response, input: request.input, owner: caller, prompt_tokens, record: Record::default() };
    let output = Output::new(entry, store.clone(), tokenizer.clone());
    if let Some(store) = store.filter(|_| request.background) {
        let entry = output.entry();
        store.put(entry.clone());
        let task = tokio::spawn(async move {
            // A failure is part of the stored response.
            if let Err(error) = stream::drive(generations, output).await {
                tracing::warn!(%error, "background response failed");
            }
        });
        store.running(&id, task.abort_handle());
        if streaming {
            return Ok(stream::send(record::replay(entry, tokenizer, None, None), keep_alive));
        }
        return Ok(Json(entry.response).into_response());
    }
    if streaming {
        return Ok(stream::respond(generations, output, keep_alive));
    }
    let output = stream::drive(generations, output).await?;
    Ok(Json(output.response().clone()).into_response())
}

/// How a response is wanted.
#[derive(Debug, Deserialize)]
pub(crate) struct Shape {
    stream: Option<bool>,
    /// The number of the last event that is known already.
    starting_after: Option<u64>,
}

/// `GET /v1/responses/{id}`: whole, or its events once more.
pub(crate) async fn get(
    State(api): State<Api>,
    Path(id): Path<String>,
    caller: Option<Extension<Caller>>,
    shape: Result<Query<Shape>, QueryRejection>,
) -> Result<Response, ApiError> {
    let Query(Shape { stream, starting_after }) =
        shape.map_err(|rejection| ApiError::value("query", rejection.body_text()))?;
    let streaming = stream == Some(true);
    if starting_after.is_some() && !streaming {
        return Err(ApiError::value("starting_after", "`starting_after` needs `stream` to be true"));
    }
    let entry = api.responses().get(&id, who(caller)).ok_or(ApiError::UnknownResponse(id))?;
    if streaming {
        let place = api.responses().place()?;
        let events = record::replay(entry, api.model()?.tokenizer.clone(), starting_after, Some(place));
        return Ok(stream::send(events, api.config().keep_alive));
    }
    Ok(Json(entry.response).into_response())
}

/// What became of a response that was to be deleted.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Deleted {
    id: String,
    /// `response.deleted`.
    object: &'static str,
    deleted: bool,
}

/// `DELETE /v1/responses/{id}`.
pub(crate) async fn delete(
    State(api): State<Api>,
    Path(id): Path<String>,
    caller: Option<Extension<Caller>>,
) -> Result<Json<Deleted>, ApiError> {
    if !api.responses().remove(&id, who(caller)) {
        return Err(ApiError::UnknownResponse(id));
    }
    Ok(Json(Deleted { id, object: "response.deleted", deleted: true }))
}

/// `POST /v1/responses/{id}/cancel`: only for responses in the background; others end with their connection.
pub(crate) async fn cancel(
    State(api): State<Api>,
    Path(id): Path<String>,
    caller: Option<Extension<Caller>>,
) -> Result<Json<ResponseObject>, ApiError> {
    let response = api.responses().cancel(&id, who(caller)).ok_or(ApiError::UnknownResponse(id))?;
    if !response.background {
        let message = "only a response with `background` can be cancelled: close the connection of others";
        return Err(ApiError::value("background", message));
    }
    Ok(Json(response))
}

/// Which part of a list.
#[derive(Debug, Deserialize)]
pub(crate) struct Page {
    limit: Option<usize>,
    order: Option<String>,
    after: Option<String>,
}

/// A part of a list of items.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Items {
    /// `list`.
    object: &'static str,
    data: Vec<Map<String, Value>>,
    first_id: Option<String>,
    last_id: Option<String>,
    has_more: bool,
}

/// `GET /v1/responses/{id}/input_items`: newest first unless told otherwise.
pub(crate) async fn input_items(
    State(api): State<Api>,
    Path(id): Path<String>,
    caller: Option<Extension<Caller>>,
    page: Result<Query<Page>, QueryRejection>,
) -> Result<Json<Items>, ApiError> {
    let Query(page) = page.map_err(|rejection| ApiError::value("query", rejection.body_text()))?;
    let Entry { input: items, .. } =
        api.responses().get(&id, who(caller)).ok_or(ApiError::UnknownResponse(id))?;
    let limit = page.limit.unwrap_or(PAGE);
    if !(1..=MAX_PAGE).contains(&limit) {
        return Err(ApiError::value("limit", format!("`limit` must be from 1 to {MAX_PAGE}")));
    }
    let mut items: Vec<&Value> = items.iter().collect();
    match page.order.as_deref() {
        None | Some("desc") => items.reverse(),
        Some("asc") => {}
        Some(_) => return Err(ApiError::value("order", "`order` must be asc or desc")),
    }
    let start = match &page.after {
        None => 0,
        Some(after) => {
            let at = items.iter().position(|item| item["id"] == **after);
            at.ok_or_else(|| ApiError::value("after", "`after` names no item of this response"))? + 1
        }
    };
    let rest = &items[start..];
    let data = &rest[..rest.len().min(limit)];
    let id = |item: &&Value| item["id"].as_str().map(str::to_owned);
    Ok(Json(Items {
        object: "list",
        data: data.iter().filter_map(|item| item.as_object().cloned()).collect(),
        first_id: data.first().and_then(id),
        last_id: data.last().and_then(id),
        has_more: rest.len() > data.len(),
    }))
}

fn who(caller: Option<Extension<Caller>>) -> Caller {
    caller.map(|Extension(caller)| caller).unwrap_or_default()
}

/// Items as they are listed: with an id each, and texts as parts.
fn listed(items: Vec<Value>) -> Arc<[Value]> {
    items
        .into_iter()
        .map(|mut item| {
            if let Some(Value::String(text)) = item.get("content") {
                let kind = if item["role"] == "assistant" { "output_text" } else { "input_text" };
                item["content"] = json!([{ "type": kind, "text": text }]);
            }
            if item.get("id").is_none_or(Value::is_null) {
                item["id"] = json!(format!("item_{}", Uuid::new_v4().simple()));
            }
            item
        })
        .collect()
}
