//! Answers in a given form: what reaches the line.

use insta::assert_snapshot;
use protocol::{After, Grammar, GrammarKind};
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
    assert_eq!(found.after, Some(After::must("</think>")));
}

/// A template in the form that `marks` gives away.
fn template(marks: &str) -> String {
    format!(
        "{{# {marks} #}}{{% for t in tools or [] %}}{{{{ t | tojson }}}}{{% endfor %}}{{% for m in messages %}}{{{{ m.content }}}}\
         {{% for c in m.tool_calls or [] %}}{{{{ c }}}}{{% endfor %}}{{% endfor %}}"
    )
}

/// The forms of calls, by what their templates hold. The grammars that are made for them are snapshots, which the crate
/// `grammar` holds against texts as models write them.
const FORMS: [(&str, &str); 9] = [
    ("hermes", "<tool_call>"),
    ("qwen_xml", "<tool_call> <function= <parameter="),
    ("llama3", "<|python_tag|>"),
    ("mistral", "[TOOL_CALLS]"),
    ("mistral_named", "[TOOL_CALLS] [ARGS]"),
    ("deepseek", "<｜tool▁call▁begin｜> ```json"),
    ("deepseek_plain", "<｜tool▁call▁begin｜>"),
    ("harmony", "<|channel|>"),
    ("json", ""),
];

fn tools() -> Value {
    let weather = json!({
        "type": "object",
        "properties": {
            "city": { "type": "string" },
            "unit": { "enum": ["C", "F"] },
            "days": { "$ref": "#/$defs/days" },
        },
        "required": ["city"],
        "additionalProperties": false,
        "$defs": { "days": { "type": "array", "items": { "type": "integer" } } },
    });
    json!([
        { "type": "function", "function": { "name": "weather", "parameters": weather } },
        { "type": "function", "function": { "name": "time" } },
    ])
}

async fn with_tools(marks: &str, extra: Value) -> Option<Grammar> {
    let base = json!({ "messages": [{ "role": "user", "content": "Hi" }], "tools": tools() });
    let harness = Harness::with_template(&template(marks), [answer("x")]);
    grammar(&harness, "/v1/chat/completions", &with(base, extra)).await
}

#[tokio::test]
async fn a_call_that_is_insisted_on_follows_its_tools_schema_in_every_form() {
    for (name, marks) in FORMS {
        let named = json!({ "tool_choice": { "type": "function", "function": { "name": "weather" } } });
        let found = with_tools(marks, named).await.unwrap();
        assert_eq!((found.kind, found.after), (GrammarKind::Lark, None));
        assert_snapshot!(format!("{name}_named"), found.text);
        let found = with_tools(marks, json!({ "tool_choice": "required" })).await.unwrap();
        assert_eq!((found.kind, found.after), (GrammarKind::Lark, None));
        assert_snapshot!(format!("{name}_required"), found.text);
    }
}

#[tokio::test]
async fn a_call_that_the_model_begins_by_itself_follows_a_tools_schema() {
    for (name, marks) in FORMS {
        let Some(found) = with_tools(marks, json!({})).await else {
            assert_eq!(name, "json", "only bare JSON has no beginning of its own");
            continue;
        };
        let after = found.after.unwrap();
        assert!(after.may_end, "{name}");
        assert_snapshot!(format!("{name}_auto"), format!("# after {}\n{}", after.text, found.text));
    }
    // One call only, no tools, an answer that goes on behind its end.
    let single = with_tools("<tool_call>", json!({ "parallel_tool_calls": false })).await.unwrap();
    assert!(!single.text.contains(")*"), "{}", single.text);
    assert_eq!(with_tools("<tool_call>", json!({ "tools": [] })).await, None);
    assert_eq!(with_tools("<tool_call>", json!({ "tool_choice": "none" })).await, None);
    assert_eq!(with_tools("<tool_call>", json!({ "ignore_eos": true })).await, None);
}

#[tokio::test]
async fn tools_whose_calls_cannot_be_held_to_a_grammar_are_left_to_the_model() {
    let tool = |description: String| {
        let parameters = json!({ "type": "object", "properties": { "a": { "const": description } } });
        json!({ "tools": [{ "type": "function", "function": { "name": "f", "parameters": parameters } }] })
    };
    assert_eq!(with_tools("<tool_call>", tool("broken".into())).await, None);
    assert_eq!(with_tools("<tool_call>", tool("long ".repeat(100_000))).await, None);
    assert!(with_tools("<tool_call>", tool("fine".into())).await.is_some());
}

#[tokio::test]
async fn an_answer_in_a_form_may_still_be_a_call() {
    let form = json!({ "response_format": { "type": "json_object" } });
    for (name, marks) in FORMS.into_iter().filter(|(name, _)| *name != "harmony") {
        let found = with_tools(marks, form.clone()).await.unwrap();
        assert_eq!((found.kind, found.after), (GrammarKind::Lark, None), "{name}");
        assert_snapshot!(format!("{name}_or_answer"), found.text);
    }
    let harness = Harness::with_template(&template("<|channel|>"), []);
    let refused = harness.chat(with(form, json!({ "tools": tools() }))).await;
    assert_eq!((refused.status, refused.json()["error"]["param"].as_str()), (400, Some("response_format")));

    let base =
        json!({ "messages": [{ "role": "user", "content": "Hi" }], "tools": tools(), "guided_regex": "a" });
    let refused =
        Harness::with_template(&template("<tool_call>"), []).post("/v1/chat/completions", &base).await;
    assert_eq!((refused.status, refused.json()["error"]["param"].as_str()), (400, Some("guided_regex")));
}
