//! Whether `docs/api.md` says of every field what the code does with it.
//!
//! A field of a request has a row in a table below a line `Routes: …`, its names in the first column and `honoured`,
//! `ignored` or `refused` in the second. Here every row is tried on the code, and every field that the code knows is
//! looked for in the rows.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::fields::{self, Body};
use crate::auth::Caller;
use crate::embeddings::request as embeddings;
use crate::error::ApiError;
use crate::fields::{Fields, asked};
use crate::messages::request as messages;
use crate::request::{self, ChatRequest, CompletionRequest};
use crate::responses::{Store, request as responses};

const DOCUMENT: &str = include_str!("../../../../docs/api.md");

/// A route with a body: what it takes, refuses, and makes of a request, as a text.
struct Known {
    path: &'static str,
    body: fn() -> Body,
    refused: &'static [&'static str],
    least: Value,
    read: fn(&Fields) -> Result<String, ApiError>,
}

fn routes() -> [Known; 5] {
    let hello = json!([{ "role": "user", "content": "Hi" }]);
    [
        Known {
            path: "/v1/chat/completions",
            body: fields::chat,
            refused: request::UNSUPPORTED,
            least: json!({ "messages": hello }),
            read: |fields| Ok(format!("{:?}", ChatRequest::read(fields, 100)?)),
        },
        Known {
            path: "/v1/completions",
            body: fields::completion,
            refused: request::UNSUPPORTED,
            least: json!({ "prompt": "Hi" }),
            read: |fields| Ok(format!("{:?}", CompletionRequest::read(fields, 100)?)),
        },
        Known {
            path: "/v1/embeddings",
            body: fields::embeddings,
            refused: embeddings::UNSUPPORTED,
            least: json!({ "input": "Hi" }),
            read: |fields| Ok(format!("{:?}", embeddings::EmbeddingRequest::read(fields)?)),
        },
        Known {
            path: "/v1/responses",
            body: fields::responses,
            refused: responses::UNSUPPORTED,
            least: json!({ "input": "Hi" }),
            read: |fields| {
                let response =
                    responses::ResponseRequest::read(fields, &Store::default(), Caller::default(), 100)?;
                Ok(format!("{:?} {:?}", response.chat, response.describe("id", 0, "toy")))
            },
        },
        Known {
            path: "/v1/messages",
            body: fields::messages,
            refused: messages::UNSUPPORTED,
            least: json!({ "messages": hello }),
            read: |fields| Ok(format!("{:?}", messages::read(fields, 100)?)),
        },
    ]
}

/// A row: what the code does with the field, and its range.
#[derive(Clone, Debug)]
struct Row {
    verdict: String,
    range: String,
}

/// Rows by route and field.
type Rows = BTreeMap<String, BTreeMap<String, Row>>;

fn quoted(text: &str) -> Vec<&str> {
    text.split('`').skip(1).step_by(2).collect()
}

fn rows() -> Rows {
    let mut rows = Rows::new();
    let mut paths: Vec<&str> = Vec::new();
    for line in DOCUMENT.lines() {
        if line.starts_with('#') {
            paths.clear();
        } else if let Some(list) = line.strip_prefix("Routes: ") {
            paths = quoted(list);
        } else if let Some(cells) = line.strip_prefix("| `") {
            let cells: Vec<&str> = cells.split(" | ").map(str::trim).collect();
            for path in &paths {
                assert!(cells.len() > 2, "{line}");
                for name in quoted(&format!("`{}", cells[0])) {
                    let row = Row { verdict: cells[1].into(), range: cells[2].into() };
                    let twice = rows.entry((*path).to_owned()).or_default().insert(name.to_owned(), row);
                    assert!(twice.is_none(), "{path} has two rows for `{name}`");
                }
            }
        }
    }
    rows
}

/// What becomes of a field, tried with values of every type.
#[derive(Debug, PartialEq, Eq)]
enum Fate {
    Honoured,
    Ignored,
    Refused,
}

fn fate(route: &Known, name: &str) -> Fate {
    let with = |value: Value| {
        let mut request = route.least.clone();
        request[name] = value;
        (route.read)(&Fields::parse(request.to_string().as_bytes()).unwrap())
    };
    let plain = (route.read)(&Fields::parse(route.least.to_string().as_bytes()).unwrap()).unwrap();
    let mut fate = Fate::Ignored;
    for value in [json!("x"), json!(7), json!(true), json!(false), json!(["x"]), json!({ "x": 1 })] {
        match with(value) {
            Ok(request) if request == plain => {}
            Err(ApiError::Invalid { code: "unsupported_parameter", param: Some(param), .. })
                if param == name =>
            {
                return Fate::Refused;
            }
            Ok(_) | Err(_) => fate = Fate::Honoured,
        }
    }
    fate
}

/// The range as the document writes it, of a schema that has one.
fn range(schema: &Value) -> Option<String> {
    let (from, to) = (schema.get("minimum")?.as_f64()? as f32, schema.get("maximum")?.as_f64()?);
    // More than a context holds is as good as any number.
    Some(if to >= f64::from(u32::MAX) { format!("{from} or more") } else { format!("{from} to {to}") })
}

#[test]
fn every_field_of_the_openapi_document_has_a_row_with_its_range() {
    let rows = rows();
    for (path, body) in [
        ("/tokenize", fields::tokenize as fn() -> Body),
        ("/detokenize", fields::detokenize),
        ("/v1/chat/completions", fields::chat),
        ("/v1/completions", fields::completion),
        ("/v1/embeddings", fields::embeddings),
        ("/v1/responses", fields::responses),
        ("/v1/messages", fields::messages),
    ] {
        let rows = rows.get(path).unwrap_or_else(|| panic!("docs/api.md has no table for {path}"));
        let fields = body().fields;
        for (name, schema) in &fields {
            let row = rows.get(*name).unwrap_or_else(|| panic!("docs/api.md: {path} lacks `{name}`"));
            assert_eq!(row.verdict, "honoured", "docs/api.md: `{name}` of {path}");
            if let Some(range) = range(schema) {
                assert_eq!(row.range, range, "docs/api.md: the range of `{name}` of {path}");
            }
        }
        let known: BTreeSet<&str> = fields.iter().map(|(name, _)| *name).collect();
        for (name, _) in rows.iter().filter(|(_, row)| row.verdict == "honoured") {
            let whole = name.split(['.', '[']).next().unwrap_or_default();
            assert!(known.contains(whole), "docs/api.md: {path} is said to honour `{name}`");
        }
    }
}

#[test]
fn the_code_does_with_every_field_what_its_row_says() {
    let rows = rows();
    for route in routes() {
        let rows = &rows[route.path];
        for (name, row) in rows.iter().filter(|(name, _)| !name.contains(['.', '['])) {
            let fate = match fate(&route, name) {
                // The route's body reader looks at it.
                _ if name == "model" => "honoured",
                // Only one value is taken.
                Fate::Refused if name == "truncation" => "honoured",
                Fate::Honoured => "honoured",
                Fate::Ignored => "ignored",
                Fate::Refused => "refused",
            };
            assert_eq!(row.verdict, fate, "docs/api.md: `{name}` of {}", route.path);
        }
    }
}

#[test]
fn every_field_that_any_route_knows_has_a_row_where_it_matters() {
    let rows = rows();
    let mut names: BTreeSet<String> = rows.values().flat_map(|rows| rows.keys().cloned()).collect();
    for route in routes() {
        names.extend((route.body)().fields.iter().map(|(name, _)| (*name).to_owned()));
        names.extend(route.refused.iter().map(ToString::to_string));
        asked::take();
        (route.read)(&Fields::parse(route.least.to_string().as_bytes()).unwrap()).unwrap();
        names.extend(asked::take());
    }
    for route in routes() {
        let rows = &rows[route.path];
        for name in names.iter().filter(|name| !name.contains(['.', '[']) && !rows.contains_key(*name)) {
            let fate = fate(&route, name);
            assert_eq!(fate, Fate::Ignored, "docs/api.md: {} lacks `{name}`", route.path);
        }
    }
}

#[test]
fn every_error_has_a_row_with_its_status_and_type() {
    let text = String::new;
    let time = std::time::Duration::ZERO;
    let errors = [
        ApiError::value("", ""),
        ApiError::missing(""),
        ApiError::unsupported(""),
        crate::fields::wrong("", "", &Value::Null),
        ApiError::Json(text()),
        ApiError::UnknownModel { asked: text(), ours: text() },
        ApiError::UnknownResponse(text()),
        ApiError::UnknownRequest(text()),
        ApiError::ContextLength { prompt: 0, context: 0, param: "" },
        ApiError::NotReady { reason: text(), progress: None },
        ApiError::QueueFull { limit: 0 },
        ApiError::QueueTimeout(time),
        ApiError::TooManyWatchers,
        ApiError::TooManyReplays { limit: 0 },
        ApiError::Unauthorised,
        ApiError::ForeignPage(text()),
        ApiError::UnknownUrl(text()),
        ApiError::MethodNotAllowed(text()),
        ApiError::TooLarge { limit: 0 },
        ApiError::HeadTooLarge { bytes: 0, headers: 0 },
        ApiError::TooManyConnections { limit: 0 },
        ApiError::TooSlow(time),
        ApiError::Cancelled,
        ApiError::LineLost(text()),
        ApiError::Internal(text()),
    ];
    for error in errors {
        let (status, code) = (error.status().as_u16(), error.code());
        let kind = error.body()["error"]["type"].as_str().unwrap_or_default().to_owned();
        let is_row = |line: &&str| {
            let cells: Vec<&str> = line.split(" | ").collect();
            cells.len() == 4
                && cells[0] == format!("| {status}")
                && quoted(cells[1]).contains(&code)
                && quoted(cells[2]) == [kind.as_str()]
        };
        assert!(DOCUMENT.lines().any(|line| is_row(&line)), "docs/api.md lacks {status} {code} {kind}");
    }
}

#[test]
fn every_route_is_listed() {
    for super::Route { method, path, .. } in super::ROUTES {
        let listed = format!("`{} {path}`", method.to_uppercase());
        // The second method of a path stands beside the first.
        let beside = format!("{path}`, `{}`", method.to_uppercase());
        assert!(DOCUMENT.contains(&listed) || DOCUMENT.contains(&beside), "docs/api.md lacks {listed}");
    }
}
