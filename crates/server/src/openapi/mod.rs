//! `GET /openapi.json`: what the API takes, for tools that read OpenAPI 3.1.
//!
//! The tables in [`fields`] say what the readers of requests look for; a test holds the two against each other. Answers are
//! described by their own types.

mod fields;

use std::sync::LazyLock;

use axum::Json;
use schemars::generate::SchemaSettings;
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde_json::{Map, Value, json};

use crate::LineStatus;
use crate::completion::{ChatChoice, TextChoice, Whole};
use crate::embeddings::Answer;
use crate::messages::{self, Counted};
use crate::props::Props;
use crate::responses::{Deleted, Items, ResponseObject};
use crate::routes::{Cancelled, Condition, ModelCard, Models};
use crate::utility::{Text, Tokens, Written};
use fields::Body;

/// Where the schemas of answers lie in the document.
const DEFINITIONS: &str = "/components/schemas";

/// `GET /openapi.json`.
pub(crate) async fn document() -> Json<Value> {
    static DOCUMENT: LazyLock<Value> = LazyLock::new(build);
    Json(DOCUMENT.clone())
}

/// A route: method, path, what it is for, its body, its answer.
struct Route {
    method: &'static str,
    path: &'static str,
    summary: &'static str,
    body: Option<fn() -> Body>,
    answer: fn(&mut SchemaGenerator) -> Schema,
}

/// A route without a body that answers `T`.
const fn asked<T: JsonSchema>(method: &'static str, path: &'static str, summary: &'static str) -> Route {
    Route { method, path, summary, body: None, answer: SchemaGenerator::subschema_for::<T> }
}

/// A route with a body that answers `T`.
const fn posted<T: JsonSchema>(path: &'static str, summary: &'static str, body: fn() -> Body) -> Route {
    Route { method: "post", path, summary, body: Some(body), answer: SchemaGenerator::subschema_for::<T> }
}

/// Without the console's files, and without `/v1/line/events`: tools that try every route would wait for its end.
const ROUTES: &[Route] = &[
    asked::<Condition>("get", "/health", "Whether the process lives"),
    asked::<Condition>("get", "/ready", "Whether a token can flow through every stage"),
    asked::<String>("get", "/metrics", "Prometheus metrics"),
    asked::<Props>("get", "/props", "Properties of the model, in llama-server's form"),
    asked::<Map<String, Value>>("get", "/openapi.json", "This document"),
    posted::<Tokens>("/tokenize", "Tokens of a text", fields::tokenize),
    posted::<Text>("/detokenize", "Text of tokens", fields::detokenize),
    posted::<Written>("/apply-template", "The prompt that a chat would have", fields::chat),
    asked::<LineStatus>("get", "/v1/line", "Stages, sequences and windows now"),
    asked::<Cancelled>("post", "/v1/requests/{id}/cancel", "Ends a request that waits or runs"),
    asked::<Models>("get", "/v1/models", "The model"),
    asked::<ModelCard>("get", "/v1/models/{id}", "The model, by its name"),
    posted::<Whole<ChatChoice>>("/v1/chat/completions", "Answers a chat", fields::chat),
    posted::<Whole<TextChoice>>("/v1/completions", "Goes on from prompts", fields::completion),
    posted::<Answer>("/v1/embeddings", "Embeddings of texts", fields::embeddings),
    posted::<ResponseObject>(
        "/v1/responses",
        "Answers a chat, in the form of the Responses API",
        fields::responses,
    ),
    asked::<ResponseObject>("get", RESPONSE, "A response that is kept, or its events once more"),
    asked::<Deleted>("delete", RESPONSE, "Forgets a response"),
    asked::<ResponseObject>("post", "/v1/responses/{id}/cancel", "Ends a response in the background"),
    asked::<Items>("get", "/v1/responses/{id}/input_items", "What the model read for a response"),
    posted::<messages::Whole>("/v1/messages", "Answers a chat, in Anthropic's form", fields::messages),
    posted::<Counted>("/v1/messages/count_tokens", "Tokens of a chat", fields::messages),
];

/// Where a response that is kept can be had.
const RESPONSE: &str = "/v1/responses/{id}";

fn build() -> Value {
    let settings = SchemaSettings::draft2020_12().for_serialize();
    let mut schemas =
        settings.with(|settings| settings.definitions_path = DEFINITIONS.into()).into_generator();
    let mut paths = Map::new();
    for route in ROUTES {
        let entry = paths.entry(route.path.to_owned()).or_insert_with(|| json!({}));
        entry[route.method] = operation(route, (route.answer)(&mut schemas));
    }
    let mut schemas = schemas.take_definitions(true);
    schemas.insert("Error".into(), error_schema());
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
            "schemas": schemas,
            "securitySchemes": { "key": { "type": "http", "scheme": "bearer" } },
        },
        "security": [{}, { "key": [] }],
    })
}

fn operation(route: &Route, answer: Schema) -> Value {
    let Route { method, path, summary, body, .. } = route;
    let body = body.map(|body| body());
    let content = if *path == "/metrics" { "text/plain" } else { "application/json" };
    let mut content = json!({ content: { "schema": answer } });
    let streams = body.as_ref().is_some_and(|body| body.fields.iter().any(|(name, _)| *name == "stream"));
    let replays = (*method, *path) == ("get", RESPONSE);
    if streams || replays {
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
    let query = |name: &str, schema: Value| json!({ "name": name, "in": "query", "schema": schema });
    let mut parameters = Vec::new();
    if path.contains("{id}") {
        let schema = json!({ "type": "string" });
        parameters.push(json!({ "name": "id", "in": "path", "required": true, "schema": schema }));
    }
    if replays {
        parameters.push(query("stream", json!({ "type": "boolean" })));
        parameters.push(query("starting_after", json!({ "type": "integer", "minimum": 0 })));
    }
    if path.ends_with("/input_items") {
        parameters.push(query("limit", json!({ "type": "integer", "minimum": 1, "maximum": 100 })));
        parameters.push(query("order", json!({ "enum": ["asc", "desc"] })));
        parameters.push(query("after", json!({ "type": "string" })));
    }
    if !parameters.is_empty() {
        operation["parameters"] = json!(parameters);
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
    use crate::http;
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
            crate::request::UNSUPPORTED_IN_CHATS[1],
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
    fn every_route_is_in_the_document_but_those_that_no_tool_can_use() {
        let left_out = ["/", "/console/{file}", "/v1/line/events"];
        let served: BTreeSet<String> = http::ROUTES.iter().map(|(path, _)| path.replace("{*", "{")).collect();
        let documented = ROUTES.iter().map(|route| route.path);
        assert_eq!(served, documented.chain(left_out).map(str::to_owned).collect());
    }

    #[test]
    fn required_fields_are_described() {
        for Route { path, body, .. } in ROUTES {
            let Some(Body { fields, required }) = body.map(|body| body()) else { continue };
            let names: Vec<&str> = fields.iter().map(|(name, _)| *name).collect();
            assert!(required.iter().all(|name| names.contains(name)), "{path}");
            let unique: BTreeSet<&str> = names.iter().copied().collect();
            assert_eq!(unique.len(), names.len(), "{path}");
        }
    }

    #[test]
    fn every_answer_has_a_schema_and_every_reference_leads_to_one() {
        let document = build();
        let schemas = document["components"]["schemas"].as_object().unwrap();
        for (path, operations) in document["paths"].as_object().unwrap() {
            for (method, operation) in operations.as_object().unwrap() {
                let content = operation["responses"]["200"]["content"].as_object().unwrap();
                let (_, answer) = content.iter().next().unwrap();
                assert!(!answer["schema"].as_object().unwrap().is_empty(), "{method} {path}");
            }
        }
        let text = document.to_string();
        let references: Vec<&str> = text.split("\"$ref\":\"#/components/schemas/").skip(1).collect();
        assert!(references.len() > schemas.len() / 2);
        for reference in references {
            let name = reference.split('"').next().unwrap();
            assert!(schemas.contains_key(name), "{name}");
        }
        assert!(!text.contains("#/$defs/"));
    }
}
