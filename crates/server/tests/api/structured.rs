//! Answers in a given form: what reaches the line.

use protocol::{Grammar, GrammarKind};
use serde_json::{Value, json};

use crate::fake::{Harness, answer, with};

async fn grammar(harness: &Harness, path: &str, body: &Value) -> Option<Grammar> {
    let answer = harness.post(path, body).await;
    assert_eq!(answer.status, 200, "{body}: {}", answer.text);
    harness.line.requests().pop().unwrap().sampler.grammar
}

async fn asked(extra: Value) -> Option<Grammar> {
    let body = with(json!({ "messages": [{ "role": "user", "content": "Hi" }] }), extra);
    grammar(&Harness::new([answer("{}")]), "/v1/chat/completions", &body).await
}

#[tokio::test]
async fn every_name_for_a_form_reaches_the_line() {
    let schema = json!({ "type": "object", "properties": { "b": {}, "a": {} } });
    let text = schema.to_string();
    let cases = [
        (json!({ "response_format": { "type": "text" } }), None),
        (json!({ "response_format": {}, "grammar": "", "guided_choice": [], "json_schema": null }), None),
        (
            json!({ "response_format": { "type": "json_object" } }),
            Some((GrammarKind::JsonSchema, r#"{"type":"object"}"#)),
        ),
        (
            json!({ "response_format": { "type": "json_object", "schema": schema } }),
            Some((GrammarKind::JsonSchema, &text)),
        ),
        (
            json!({ "response_format": { "type": "json_schema", "json_schema": { "name": "x", "strict": true, "schema": schema } } }),
            Some((GrammarKind::JsonSchema, text.as_str())),
        ),
        (json!({ "json_schema": schema }), Some((GrammarKind::JsonSchema, &text))),
        (json!({ "guided_json": schema }), Some((GrammarKind::JsonSchema, &text))),
        (json!({ "guided_json": text }), Some((GrammarKind::JsonSchema, &text))),
        (json!({ "guided_regex": "a+" }), Some((GrammarKind::Regex, "a+"))),
        (
            json!({ "guided_choice": ["a", "\"b\""] }),
            Some((GrammarKind::Lark, "start: CHOICE\nCHOICE: \"a\" | \"\\\"b\\\"\"")),
        ),
        (json!({ "guided_grammar": "start: \"a\"" }), Some((GrammarKind::Lark, "start: \"a\""))),
        (json!({ "grammar": "root ::= \"a\"" }), Some((GrammarKind::Gbnf, "root ::= \"a\""))),
        (json!({ "structured_outputs": { "regex": "a+", "json": null } }), Some((GrammarKind::Regex, "a+"))),
        (
            json!({ "structured_outputs": { "json_object": true } }),
            Some((GrammarKind::JsonSchema, r#"{"type":"object"}"#)),
        ),
    ];
    for (extra, expected) in cases {
        let expected = expected.map(|(kind, text)| Grammar::new(kind, text));
        assert_eq!(asked(extra.clone()).await, expected, "{extra}");
    }
}

#[tokio::test]
async fn completions_and_responses_have_forms_too() {
    let harness = Harness::new([answer("a"), answer("{}"), answer("x")]);
    let body = json!({ "prompt": "Hi", "guided_regex": "a+" });
    let found = grammar(&harness, "/v1/completions", &body).await;
    assert_eq!(found, Some(Grammar::new(GrammarKind::Regex, "a+")));
    let format =
        json!({ "type": "json_schema", "name": "x", "schema": { "type": "object" }, "strict": true });
    let body = json!({ "input": "Hi", "text": { "format": format } });
    let found = grammar(&harness, "/v1/responses", &body).await;
    assert_eq!(found, Some(Grammar::new(GrammarKind::JsonSchema, r#"{"type":"object"}"#)));
    let body = json!({ "input": "Hi", "text": { "format": { "type": "text" } } });
    assert_eq!(grammar(&harness, "/v1/responses", &body).await, None);
}

#[tokio::test]
async fn a_form_begins_where_the_reasoning_ends() {
    let template = "{# <think> </think> #}{% for m in messages %}{{ m.content }}{% endfor %}<think>\n";
    let harness = Harness::with_template(template, [answer("So.</think>yes")]);
    let body = json!({ "messages": [{ "role": "user", "content": "Hi" }], "guided_regex": "yes|no" });
    let found = grammar(&harness, "/v1/chat/completions", &body).await.unwrap();
    assert_eq!(found.after.as_deref(), Some("</think>"));
}

const HERMES: &str = "{# <tool_call> #}{% for t in tools or [] %}{{ t | tojson }}{% endfor %}\
    {% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}{{ c }}{% endfor %}{% endfor %}";

fn tools() -> Value {
    let city =
        json!({ "type": "object", "properties": { "city": { "type": "string" } }, "required": ["city"] });
    json!([
        { "type": "function", "function": { "name": "weather", "parameters": city } },
        { "type": "function", "function": { "name": "time" } },
    ])
}

async fn with_tools(template: &str, extra: Value) -> Option<Grammar> {
    let base = json!({ "messages": [{ "role": "user", "content": "Hi" }], "tools": tools() });
    let harness = Harness::with_template(template, [answer("x")]);
    grammar(&harness, "/v1/chat/completions", &with(base, extra)).await
}

#[tokio::test]
async fn a_call_that_is_insisted_on_follows_its_tools_schema() {
    assert_eq!(with_tools(HERMES, json!({})).await, None, "the model may call or not");
    let named = json!({ "tool_choice": { "type": "function", "function": { "name": "weather" } } });
    let found = with_tools(HERMES, named.clone()).await.unwrap();
    assert_eq!(
        found.text,
        "start: a0 \"}\"\na0: %json {\"type\":\"object\",\"properties\":{\"city\":{\"type\":\"string\"}},\"required\":[\"city\"],\
         \"x-guidance\":{\"whitespace_flexible\":false,\"lenient\":true}}\n"
    );
    let found = with_tools(HERMES, json!({ "tool_choice": "required" })).await.unwrap();
    assert!(
        found.text.starts_with("start: c0 | c1\nc0: \"weather\\\", \\\"arguments\\\": \" a0 \"}\"\n"),
        "{}",
        found.text
    );
    assert!(found.text.contains("c1: \"time\\\", \\\"arguments\\\": \" a1 \"}\"\n"), "{}", found.text);

    let mistral = "{# [TOOL_CALLS] [ARGS] #}{{ tools }}{% for m in messages %}{{ m.content }}{{ m.tool_calls }}{% endfor %}";
    let found = with_tools(mistral, named).await.unwrap();
    assert!(found.text.starts_with("start: a0\n"), "the name is said before the arguments");
    assert_eq!(with_tools(mistral, json!({ "tool_choice": "required" })).await, None);
}

#[tokio::test]
async fn an_answer_in_a_form_may_still_be_a_call() {
    let extra = json!({ "response_format": { "type": "json_object" } });
    let found = with_tools(HERMES, extra).await.unwrap();
    assert!(
        found.text.starts_with("start: answer | c0 | c1\nc0: \"<tool_call>\\n{\\\"name\\\": \\\"weather"),
        "{}",
        found.text
    );
    assert!(found.text.ends_with("answer: %json {\"type\":\"object\",\"x-guidance\":{\"whitespace_flexible\":false,\"lenient\":false}}\n"));

    let base =
        json!({ "messages": [{ "role": "user", "content": "Hi" }], "tools": tools(), "guided_regex": "a" });
    let refused = Harness::with_template(HERMES, []).post("/v1/chat/completions", &base).await;
    assert_eq!((refused.status, refused.json()["error"]["param"].as_str()), (400, Some("guided_regex")));
}
