//! `GET /openapi.json`: what the API takes, for tools that read OpenAPI 3.1.
//!
//! The tables in [`fields`] say what the readers of requests look for; a test holds the two against each other.

mod fields;

use std::sync::LazyLock;

use axum::Json;
use serde_json::{Map, Value, json};

use fields::Body;

/// `GET /openapi.json`.
pub(crate) async fn document() -> Json<Value> {
    static DOCUMENT: LazyLock<Value> = LazyLock::new(build);
    Json(DOCUMENT.clone())
}

/// A route: method, path, what it is for, its body.
type Route = (&'static str, &'static str, &'static str, Option<fn() -> Body>);

/// Without the console's files, and without `/v1/line/events`: tools that try every route would wait for its end.
const ROUTES: &[Route] = &[
    ("get", "/health", "Whether the process lives", None),
    ("get", "/ready", "Whether a token can flow through every stage", None),
    ("get", "/metrics", "Prometheus metrics", None),
    ("get", "/props", "Properties of the model, in llama-server's form", None),
    ("get", "/openapi.json", "This document", None),
    ("post", "/tokenize", "Tokens of a text", Some(fields::tokenize)),
    ("post", "/detokenize", "Text of tokens", Some(fields::detokenize)),
    ("post", "/apply-template", "The prompt that a chat would have", Some(fields::chat)),
    ("get", "/v1/line", "Stages, sequences and windows now", None),
    ("post", "/v1/requests/{id}/cancel", "Ends a request that waits or runs", None),
    ("get", "/v1/models", "The model", None),
    ("get", "/v1/models/{id}", "The model, by its name", None),
    ("post", "/v1/chat/completions", "Answers a chat", Some(fields::chat)),
    ("post", "/v1/completions", "Goes on from prompts", Some(fields::completion)),
    ("post", "/v1/embeddings", "Embeddings of texts", Some(fields::embeddings)),
    ("post", "/v1/responses", "Answers a chat, in the form of the Responses API", Some(fields::responses)),
    ("get", "/v1/responses/{id}", "A response that is kept", None),
    ("delete", "/v1/responses/{id}", "Forgets a response", None),
    ("post", "/v1/responses/{id}/cancel", "Ends a response in the background", None),
    ("get", "/v1/responses/{id}/input_items", "What the model read for a response", None),
    ("post", "/v1/messages", "Answers a chat, in Anthropic's form", Some(fields::messages)),
    ("post", "/v1/messages/count_tokens", "Tokens of a chat", Some(fields::messages)),
];

fn build() -> Value {
    let mut paths = Map::new();
    for (method, path, summary, body) in ROUTES {
        let entry = paths.entry((*path).to_owned()).or_insert_with(|| json!({}));
        entry[*method] = operation(path, summary, body.map(|body| body()));
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Paceline",
            "version": env!("CARGO_PKG_VERSION"),
            "description": "Unknown fields are ignored. A field that is known and cannot be honoured is an error that \
                            names it.",
        },
        "paths": paths,
        "components": {
            "schemas": { "Error": error_schema() },
            "securitySchemes": { "key": { "type": "http", "scheme": "bearer" } },
        },
        "security": [{}, { "key": [] }],
    })
}

fn operation(path: &str, summary: &str, body: Option<Body>) -> Value {
    let content = if path == "/metrics" { "text/plain" } else { "application/json" };
    let mut content = json!({ content: { "schema": {} } });
    let streams = body.as_ref().is_some_and(|body| body.fields.iter().any(|(name, _)| *name == "stream"));
    if streams {
        // Readers differ in whether a stream is its text or its events; what these hold is in docs/api.md.
        content["text/event-stream"] = json!({ "schema": {} });
    }
    let error = json!({ "schema": { "$ref": "#/components/schemas/Error" } });
    let mut operation = json!({
        "summary": summary,
        "responses": {
            "200": { "description": "As asked for", "content": content },
            "default": {
                "description": "An error that says what to do",
                "content": { "application/json": error },
            },
        },
    });
    if path.contains("{id}") {
        operation["parameters"] =
            json!([{ "name": "id", "in": "path", "required": true, "schema": { "type": "string" } }]);
    }
    if path.ends_with("/input_items") {
        let query = |name: &str, schema: Value| json!({ "name": name, "in": "query", "schema": schema });
        if let Some(parameters) = operation["parameters"].as_array_mut() {
            parameters.push(query("limit", json!({ "type": "integer", "minimum": 1, "maximum": 100 })));
            parameters.push(query("order", json!({ "enum": ["asc", "desc"] })));
            parameters.push(query("after", json!({ "type": "string" })));
        }
    }
    if let Some(Body { fields, required }) = body {
        let properties: Map<String, Value> =
            fields.into_iter().map(|(name, schema)| (name.to_owned(), schema)).collect();
        let schema = json!({ "type": "object", "properties": properties, "required": required });
        operation["requestBody"] =
            json!({ "required": true, "content": { "application/json": { "schema": schema } } });
    }
    operation
}

/// OpenAI's envelope, or Anthropic's.
fn error_schema() -> Value {
    let text = json!({ "type": "string" });
    let error = json!({
        "type": "object",
        "properties": { "message": text, "type": text, "code": text, "param": { "type": ["string", "null"] } },
        "required": ["message", "type"],
    });
    json!({ "type": "object", "properties": { "error": error }, "required": ["error"] })
}

#[cfg(test)]
mod documented;
#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::embeddings::request::EmbeddingRequest;
    use crate::fields::{Fields, asked};
    use crate::request::{ChatRequest, CompletionRequest};

    /// Fields that only need a place in the document if they mean something.
    fn missing(asked: BTreeSet<String>, body: Body, inner: &[&str]) -> Vec<String> {
        let known: BTreeSet<&str> = body.fields.iter().map(|(name, _)| *name).collect();
        let refused = crate::request::UNSUPPORTED;
        let covered = |name: &String| {
            known.contains(name.as_str())
                || refused.contains(&name.as_str())
                || inner.contains(&name.as_str())
        };
        asked.into_iter().filter(|name| !covered(name)).collect()
    }

    #[test]
    fn every_field_that_is_read_is_in_the_document() {
        let inner = [
            "include_usage",
            crate::structured::RESPONSES_FORMAT,
            crate::structured::OUTPUT_CONFIG_FORMAT,
            crate::request::UNSUPPORTED_IN_CHATS[0],
        ];
        let chat = json!({ "messages": [{ "role": "user", "content": "Hi" }], "stream_options": {} });
        let chat = Fields::parse(chat.to_string().as_bytes()).unwrap();
        asked::take();
        ChatRequest::read(&chat, 100).unwrap();
        assert!(missing(asked::take(), fields::chat(), &inner).is_empty());
        let completion = Fields::parse(br#"{ "prompt": "Hi", "stream_options": {} }"#).unwrap();
        asked::take();
        CompletionRequest::read(&completion, 100).unwrap();
        assert!(missing(asked::take(), fields::completion(), &inner).is_empty());
        let embeddings = Fields::parse(br#"{ "input": "Hi" }"#).unwrap();
        asked::take();
        EmbeddingRequest::read(&embeddings).unwrap();
        assert!(missing(asked::take(), fields::embeddings(), &inner).is_empty());
    }

    #[test]
    fn required_fields_are_described() {
        for (_, path, _, body) in ROUTES {
            let Some(Body { fields, required }) = body.map(|body| body()) else { continue };
            let names: Vec<&str> = fields.iter().map(|(name, _)| *name).collect();
            assert!(required.iter().all(|name| names.contains(name)), "{path}");
            let unique: BTreeSet<&str> = names.iter().copied().collect();
            assert_eq!(unique.len(), names.len(), "{path}");
        }
    }
}
