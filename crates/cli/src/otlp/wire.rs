//! Traces as OTLP has them: the messages of `opentelemetry/proto/collector/trace/v1` as far as we say them, as protobuf and
//! as JSON.
//!
//! The messages are stable (OTLP 1.x); numbers and names are those of the published `.proto` files. They are written out
//! here because the crate that has all of them brings the whole SDK along, which makes spans while things happen and in one
//! process; ours are made afterwards and belong to several stages.

use std::collections::BTreeMap;
use std::time::{Duration, UNIX_EPOCH};

use prost::Message as _;
use scheduler::StageSeen;
use serde::{Serialize, Serializer};
use server::{Place, Trace, Value};

use super::settings::{Encoding, Settings};

/// `SpanKind`.
const INTERNAL: i32 = 1;
const SERVER: i32 = 2;
/// `StatusCode`.
const ERROR: i32 = 2;
/// `SpanFlags`: recorded, and whether it is known that the parent is another process's.
const SAMPLED: u32 = 0x1;
const PARENT_IS_KNOWN: u32 = 0x100;
const PARENT_IS_REMOTE: u32 = 0x200;
/// The name of what makes these spans.
const SCOPE: &str = "paceline";

/// `ExportTraceServiceRequest`.
#[derive(Clone, PartialEq, prost::Message, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct Export {
    #[prost(message, repeated, tag = "1")]
    resource_spans: Vec<ResourceSpans>,
}

#[derive(Clone, PartialEq, prost::Message, Serialize)]
#[serde(rename_all = "camelCase")]
struct ResourceSpans {
    #[prost(message, optional, tag = "1")]
    resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    scope_spans: Vec<ScopeSpans>,
}

#[derive(Clone, PartialEq, prost::Message, Serialize)]
struct Resource {
    #[prost(message, repeated, tag = "1")]
    attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, prost::Message, Serialize)]
struct ScopeSpans {
    #[prost(message, optional, tag = "1")]
    scope: Option<Scope>,
    #[prost(message, repeated, tag = "2")]
    spans: Vec<Span>,
}

/// `InstrumentationScope`.
#[derive(Clone, PartialEq, prost::Message, Serialize)]
struct Scope {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    version: String,
}

#[derive(Clone, PartialEq, prost::Message, Serialize)]
#[serde(rename_all = "camelCase")]
struct Span {
    #[prost(bytes = "vec", tag = "1")]
    #[serde(serialize_with = "as_hex")]
    trace_id: Vec<u8>,
    #[prost(bytes = "vec", tag = "2")]
    #[serde(serialize_with = "as_hex")]
    span_id: Vec<u8>,
    #[prost(string, tag = "3")]
    #[serde(skip_serializing_if = "String::is_empty")]
    trace_state: String,
    #[prost(bytes = "vec", tag = "4")]
    #[serde(serialize_with = "as_hex", skip_serializing_if = "Vec::is_empty")]
    parent_span_id: Vec<u8>,
    #[prost(string, tag = "5")]
    name: String,
    #[prost(int32, tag = "6")]
    kind: i32,
    #[prost(fixed64, tag = "7")]
    #[serde(serialize_with = "as_text")]
    start_time_unix_nano: u64,
    #[prost(fixed64, tag = "8")]
    #[serde(serialize_with = "as_text")]
    end_time_unix_nano: u64,
    #[prost(message, repeated, tag = "9")]
    attributes: Vec<KeyValue>,
    #[prost(message, optional, tag = "15")]
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<Status>,
    #[prost(fixed32, tag = "16")]
    flags: u32,
}

#[derive(Clone, PartialEq, prost::Message, Serialize)]
struct Status {
    #[prost(int32, tag = "3")]
    code: i32,
}

#[derive(Clone, PartialEq, prost::Message, Serialize)]
struct KeyValue {
    #[prost(string, tag = "1")]
    key: String,
    #[prost(message, optional, tag = "2")]
    value: Option<AnyValue>,
}

#[derive(Clone, PartialEq, prost::Message, Serialize)]
struct AnyValue {
    #[prost(oneof = "Said", tags = "1, 2, 3, 5")]
    #[serde(flatten)]
    said: Option<Said>,
}

#[derive(Clone, PartialEq, prost::Oneof, Serialize)]
enum Said {
    #[prost(string, tag = "1")]
    #[serde(rename = "stringValue")]
    Text(String),
    #[prost(bool, tag = "2")]
    #[serde(rename = "boolValue")]
    Flag(bool),
    #[prost(int64, tag = "3")]
    #[serde(rename = "intValue")]
    Number(#[serde(serialize_with = "as_text")] i64),
    #[prost(message, tag = "5")]
    #[serde(rename = "arrayValue")]
    List(ArrayValue),
}

#[derive(Clone, PartialEq, prost::Message, Serialize)]
struct ArrayValue {
    #[prost(message, repeated, tag = "1")]
    values: Vec<AnyValue>,
}

/// 64 bits are text in JSON, as protobuf has it.
fn as_text<T: std::fmt::Display, S: Serializer>(number: &T, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_str(number)
}

/// Ids are hexadecimal in OTLP's JSON, unlike protobuf's other bytes.
fn as_hex<S: Serializer>(bytes: &[u8], serializer: S) -> Result<S::Ok, S::Error> {
    let text: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    serializer.serialize_str(&text)
}

impl Encoding {
    pub(super) const fn content_type(self) -> &'static str {
        match self {
            Self::Protobuf => "application/x-protobuf",
            Self::Json => "application/json",
        }
    }

    pub(super) fn encode(self, export: &Export) -> Vec<u8> {
        match self {
            Self::Protobuf => export.encode_to_vec(),
            Self::Json => serde_json::to_vec(export).expect("there are only text and numbers in it"),
        }
    }
}

impl Export {
    /// Traces in one message. Spans of a stage carry a resource that names it.
    pub(super) fn of(settings: &Settings, traces: Vec<Trace>) -> Self {
        let resource_spans = traces.into_iter().flat_map(|trace| of_trace(settings, trace)).collect();
        Self { resource_spans }
    }
}

fn of_trace(settings: &Settings, trace: Trace) -> impl Iterator<Item = ResourceSpans> {
    let mut by_place: BTreeMap<Place, Vec<Span>> = BTreeMap::new();
    for span in &trace.spans {
        by_place.entry(span.place).or_default().push(span_of(&trace, span));
    }
    let scope = Scope { name: SCOPE.into(), version: env!("CARGO_PKG_VERSION").into() };
    let resources: Vec<ResourceSpans> = by_place
        .into_iter()
        .map(|(place, spans)| ResourceSpans {
            resource: Some(Resource { attributes: resource_of(settings, place, &trace.stages) }),
            scope_spans: vec![ScopeSpans { scope: Some(scope.clone()), spans }],
        })
        .collect();
    resources.into_iter()
}

fn span_of(trace: &Trace, span: &server::Span) -> Span {
    let since_1970 = trace.started.duration_since(UNIX_EPOCH).unwrap_or_default();
    let nanos = |at: Duration| u64::try_from((since_1970 + at).as_nanos()).unwrap_or(u64::MAX);
    let is_root = span.parent.is_none();
    let remote = if is_root { trace.parent } else { None };
    let parent = span.parent.or(remote);
    Span {
        trace_id: trace.id.to_be_bytes().to_vec(),
        span_id: span.id.to_be_bytes().to_vec(),
        trace_state: trace.state.clone().unwrap_or_default(),
        parent_span_id: parent.map_or_else(Vec::new, |parent| parent.to_be_bytes().to_vec()),
        name: span.name.clone(),
        kind: if is_root { SERVER } else { INTERNAL },
        start_time_unix_nano: nanos(span.start),
        end_time_unix_nano: nanos(span.end),
        attributes: span.attributes.iter().map(|(key, value)| pair(key, said(value))).collect(),
        status: span.failed.then_some(Status { code: ERROR }),
        flags: SAMPLED | PARENT_IS_KNOWN | if remote.is_some() { PARENT_IS_REMOTE } else { 0 },
    }
}

/// Who made a span: the front, or a stage, which is a service of its own for those who look.
fn resource_of(settings: &Settings, place: Place, stages: &[StageSeen]) -> Vec<KeyValue> {
    let text = |key: &str, value: String| pair(key, Said::Text(value));
    let mut own = match place {
        Place::Front => vec![text("service.name", settings.service.clone())],
        Place::Stage(at) => {
            let mut own = vec![
                text("service.name", format!("{}-stage", settings.service)),
                text("service.instance.id", format!("stage-{at}")),
                pair("paceline.stage.index", Said::Number(i64::from(at))),
            ];
            if let Some(stage) = stages.get(usize::from(at)) {
                let address = stage.address.clone().filter(|_| !stage.is_local);
                own.push(text("paceline.stage.address", address.unwrap_or_else(|| "local".into())));
                own.push(text("paceline.stage.layers", stage.layers.to_string()));
            }
            own
        }
    };
    own.push(text("service.version", env!("CARGO_PKG_VERSION").into()));
    for (key, value) in &settings.attributes {
        if own.iter().all(|pair| pair.key != *key) {
            own.push(text(key, value.clone()));
        }
    }
    own
}

fn pair(key: &str, said: Said) -> KeyValue {
    KeyValue { key: key.to_owned(), value: Some(AnyValue { said: Some(said) }) }
}

fn said(value: &Value) -> Said {
    match value {
        Value::Text(text) => Said::Text(text.clone()),
        Value::Number(number) => Said::Number(i64::try_from(*number).unwrap_or(i64::MAX)),
        Value::Flag(flag) => Said::Flag(*flag),
        Value::Words(words) => {
            let values = words.iter().map(|word| AnyValue { said: Some(Said::Text(word.clone())) }).collect();
            Said::List(ArrayValue { values })
        }
    }
}

#[cfg(test)]
mod tests;
