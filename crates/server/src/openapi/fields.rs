//! The fields of each request, with their ranges.

use protocol::limits::{MAX_CONTEXT, MAX_ROW_WIDTH, MAX_TOP_LOGPROBS};
use serde_json::{Value, json};

use crate::limits::{
    MAX_CHOICE_TEXTS, MAX_CHOICES, MAX_INPUTS, MAX_MESSAGES, MAX_STOP_BYTES, MAX_STOPS, MAX_TOOL_NAME,
    MAX_TOOLS,
};
use crate::sampling::LARGE;

/// A field and its schema.
type Field = (&'static str, Value);

/// The fields of a body.
pub(super) struct Body {
    pub fields: Vec<Field>,
    pub required: Vec<&'static str>,
}

fn text() -> Value {
    json!({ "type": "string" })
}

fn flag() -> Value {
    json!({ "type": ["boolean", "null"] })
}

fn object() -> Value {
    json!({ "type": ["object", "null"] })
}

fn integer(from: i64, to: i64) -> Value {
    json!({ "type": ["integer", "null"], "minimum": from, "maximum": to })
}

fn number(from: f32, to: f32) -> Value {
    json!({ "type": ["number", "null"], "minimum": from, "maximum": to })
}

fn list(items: &Value) -> Value {
    json!({ "type": "array", "items": items })
}

fn tokens() -> Value {
    list(&json!({ "type": "integer", "minimum": 0, "maximum": i32::MAX }))
}

fn strings(max_count: usize, max_bytes: usize) -> Value {
    let text = json!({ "type": "string", "maxLength": max_bytes / 4 });
    json!({ "anyOf": [text, { "type": "array", "items": text, "maxItems": max_count }, { "type": "null" }] })
}

/// Sampling and what surrounds it, for every kind of generation.
fn generation() -> Vec<Field> {
    let context = i64::from(MAX_CONTEXT);
    let some = i64::from(u32::MAX);
    vec![
        ("model", text()),
        ("temperature", number(0.0, LARGE)),
        ("dynatemp_range", number(0.0, LARGE)),
        ("dynatemp_exponent", number(0.0, LARGE)),
        ("top_k", integer(-1, some)),
        ("top_p", number(0.0, 1.0)),
        ("min_p", number(0.0, 1.0)),
        ("typical_p", number(0.0, 1.0)),
        ("typ_p", number(0.0, 1.0)),
        ("top_n_sigma", number(-LARGE, LARGE)),
        ("repeat_penalty", number(1e-3, LARGE)),
        ("repetition_penalty", number(1e-3, LARGE)),
        ("frequency_penalty", number(-LARGE, LARGE)),
        ("presence_penalty", number(-LARGE, LARGE)),
        ("repeat_last_n", integer(-1, context)),
        ("logit_bias", json!({ "type": ["object", "array", "null"] })),
        ("dry_multiplier", number(0.0, LARGE)),
        ("dry_base", number(0.0, LARGE)),
        ("dry_allowed_length", integer(0, context)),
        ("dry_penalty_last_n", integer(-1, context)),
        (
            "dry_sequence_breakers",
            strings(protocol::limits::MAX_DRY_BREAKERS, crate::limits::MAX_BREAKER_BYTES),
        ),
        ("xtc_probability", number(0.0, 1.0)),
        ("xtc_threshold", number(0.0, 1.0)),
        ("mirostat", integer(0, 2)),
        ("mirostat_tau", number(0.0, LARGE)),
        ("mirostat_eta", number(0.0, LARGE)),
        ("min_keep", integer(0, some)),
        ("seed", json!({ "type": ["integer", "null"] })),
        ("ignore_eos", flag()),
        ("cache_prompt", flag()),
        ("priority", json!({ "type": ["integer", "null"], "minimum": -1000, "maximum": 1000 })),
        ("prompt_cache_key", json!({ "type": ["string", "null"] })),
        ("cache_salt", json!({ "type": ["string", "null"] })),
        ("n_predict", integer(-1, some)),
        ("max_completion_tokens", integer(-1, some)),
        (
            "prediction",
            json!({ "type": ["object", "null"], "properties": { "content": prediction_content() } }),
        ),
        ("stream", flag()),
        ("json_schema", schema()),
        ("grammar", json!({ "type": ["string", "null"] })),
        ("guided_json", schema()),
        ("guided_regex", json!({ "type": ["string", "null"] })),
        (
            "guided_choice",
            json!({ "type": ["array", "null"], "items": text(), "maxItems": MAX_CHOICE_TEXTS }),
        ),
        ("guided_grammar", json!({ "type": ["string", "null"] })),
        ("structured_outputs", object()),
        ("output_format", object()),
    ]
}

/// A JSON schema, or one in a string.
fn schema() -> Value {
    json!({ "type": ["object", "string", "null"] })
}

/// The expected answer: one text, or parts of a text.
fn prediction_content() -> Value {
    let part = json!({ "type": "object", "properties": { "text": { "type": "string" } } });
    json!({ "anyOf": [{ "type": "string" }, { "type": "array", "items": part }] })
}

/// What chats share, whichever API they come by.
fn chats() -> Vec<Field> {
    vec![
        ("parallel_tool_calls", flag()),
        ("reasoning_effort", text()),
        ("reasoning_format", text()),
        ("chat_template_kwargs", object()),
        ("add_generation_prompt", flag()),
        ("continue_final_message", flag()),
    ]
}

/// What OpenAI's two older APIs share.
fn openai() -> Vec<Field> {
    let some = i64::from(u32::MAX);
    let mut fields = generation();
    fields.extend([
        ("max_tokens", integer(-1, some)),
        ("stop", strings(MAX_STOPS, MAX_STOP_BYTES)),
        ("n", integer(1, MAX_CHOICES as i64)),
        ("return_progress", flag()),
        ("stream_options", json!({ "type": ["object", "null"], "properties": { "include_usage": flag() } })),
        ("response_format", object()),
    ]);
    fields
}

fn messages_of(roles: &[&str]) -> Value {
    let message = json!({
        "type": "object",
        "properties": { "role": { "enum": roles }, "content": { "type": ["string", "array", "null"] } },
        "required": ["role"],
    });
    json!({ "type": "array", "items": message, "minItems": 1, "maxItems": MAX_MESSAGES })
}

fn tool_name() -> Value {
    json!({ "type": "string", "maxLength": MAX_TOOL_NAME, "pattern": "^[A-Za-z0-9_.-]+$" })
}

fn tools(tool: &Value) -> Value {
    json!({ "type": ["array", "null"], "items": tool, "maxItems": MAX_TOOLS })
}

fn tool_choice() -> Value {
    json!({ "anyOf": [{ "enum": ["auto", "none", "required"] }, { "type": "object" }, { "type": "null" }] })
}

/// `POST /v1/chat/completions`.
pub(super) fn chat() -> Body {
    let function = json!({
        "type": "object",
        "properties": { "name": tool_name(), "description": text(), "parameters": object() },
        "required": ["name"],
    });
    let tool = json!({
        "type": "object",
        "properties": { "type": { "const": "function" }, "function": function },
        "required": ["type", "function"],
    });
    let mut fields = openai();
    fields.extend(chats());
    fields.extend([
        ("messages", messages_of(&["system", "developer", "user", "assistant", "tool", "function"])),
        ("tools", tools(&tool)),
        ("tool_choice", tool_choice()),
        ("functions", tools(&tool["properties"]["function"])),
        ("function_call", json!({ "anyOf": [{ "enum": ["auto", "none"] }, object()] })),
        ("logprobs", flag()),
        ("top_logprobs", integer(0, i64::from(MAX_TOP_LOGPROBS))),
    ]);
    Body { fields, required: vec!["messages"] }
}

/// `POST /v1/completions`.
pub(super) fn completion() -> Body {
    let prompt = json!({ "anyOf": [text(), list(&text()), tokens(), list(&tokens())] });
    let mut fields = openai();
    fields.extend([
        ("prompt", prompt),
        ("suffix", text()),
        ("echo", flag()),
        ("logprobs", integer(0, i64::from(MAX_TOP_LOGPROBS))),
        ("best_of", integer(0, MAX_CHOICES as i64)),
    ]);
    Body { fields, required: vec!["prompt"] }
}

/// `POST /v1/embeddings`.
pub(super) fn embeddings() -> Body {
    let one = json!({ "type": "string", "minLength": 1 });
    let some = json!({ "type": "array", "items": { "type": "integer", "minimum": 0, "maximum": i32::MAX }, "minItems": 1 });
    let several =
        |items: &Value| json!({ "type": "array", "items": items, "minItems": 1, "maxItems": MAX_INPUTS });
    let fields = vec![
        ("model", text()),
        ("input", json!({ "anyOf": [one, several(&one), some, several(&some)] })),
        ("encoding_format", json!({ "enum": ["float", "base64", null] })),
        ("dimensions", integer(1, i64::from(MAX_ROW_WIDTH))),
        ("pooling", json!({ "enum": ["none", "mean", "cls", "last", null] })),
        ("embd_normalize", json!({ "enum": [-1, 2, null] })),
        ("priority", json!({ "type": ["integer", "null"], "minimum": -1000, "maximum": 1000 })),
    ];
    Body { fields, required: vec!["input"] }
}

/// `POST /v1/responses`.
pub(super) fn responses() -> Body {
    let tool = json!({
        "type": "object",
        "properties": {
            "type": { "const": "function" }, "name": tool_name(), "description": text(), "parameters": object(),
        },
        "required": ["type", "name"],
    });
    let mut fields = generation();
    fields.extend(chats());
    fields.extend([
        ("input", json!({ "anyOf": [text(), list(&json!({ "type": "object" }))] })),
        ("instructions", json!({ "type": ["string", "null"] })),
        ("previous_response_id", json!({ "type": ["string", "null"] })),
        ("max_output_tokens", integer(1, i64::from(u32::MAX))),
        ("stop", strings(MAX_STOPS, MAX_STOP_BYTES)),
        ("tools", tools(&tool)),
        ("tool_choice", tool_choice()),
        ("include", json!({ "type": ["array", "null"], "items": text() })),
        ("top_logprobs", integer(0, i64::from(MAX_TOP_LOGPROBS))),
        ("logprobs", flag()),
        ("max_tokens", integer(-1, i64::from(u32::MAX))),
        ("response_format", object()),
        ("truncation", json!({ "enum": ["disabled", null] })),
        ("user", json!({ "type": ["string", "null"] })),
        ("reasoning", object()),
        ("text", object()),
        ("store", flag()),
        ("background", flag()),
        ("metadata", object()),
    ]);
    Body { fields, required: vec!["input"] }
}

/// `POST /v1/messages`.
pub(super) fn messages() -> Body {
    let tool = json!({
        "type": "object",
        "properties": { "name": tool_name(), "description": text(), "input_schema": { "type": "object" } },
        "required": ["name", "input_schema"],
    });
    let mut fields = generation();
    fields.extend(chats());
    fields.extend([
        ("messages", messages_of(&["user", "assistant"])),
        ("system", json!({ "type": ["string", "array", "null"] })),
        ("max_tokens", integer(-1, i64::from(u32::MAX))),
        ("stop_sequences", strings(MAX_STOPS, MAX_STOP_BYTES)),
        ("tools", tools(&tool)),
        ("tool_choice", object()),
        ("thinking", object()),
        ("response_format", object()),
        ("output_config", object()),
    ]);
    Body { fields, required: vec!["messages"] }
}

/// `POST /tokenize`.
pub(super) fn tokenize() -> Body {
    let fields = vec![
        ("content", text()),
        ("prompt", text()),
        ("add_special", flag()),
        ("add_special_tokens", flag()),
        ("parse_special", flag()),
        ("with_pieces", flag()),
        ("return_token_strs", flag()),
    ];
    Body { fields, required: Vec::new() }
}

/// `POST /detokenize`.
pub(super) fn detokenize() -> Body {
    Body { fields: vec![("tokens", tokens())], required: vec!["tokens"] }
}
