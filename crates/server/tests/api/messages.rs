//! Anthropic's Messages API.

use axum::body::Body;
use axum::http::Request;
use insta::assert_snapshot;
use scheduler::{Event, Failure, Finish, Refusal};
use serde_json::{Value, json};
use server::{ApiConfig, ApiKeys};

use crate::fake::{Answer, Harness, Script, answer, done, ends, says, started, with};

const HERMES: &str = "{% if tools %}{% for t in tools %}[{{ t.function.name }}]{% endfor %}{# <tool_call> </think> #}{% endif %}\
    {% for m in messages %}[{{ m.role }} {{ m.content }}{% for c in m.tool_calls or [] %}\
    <tool_call>{{ c.function.name }} {{ c.function.arguments | tojson }}</tool_call>{% endfor %}]{% endfor %}";

fn body(extra: Value) -> Value {
    let body = json!({ "model": "toy", "max_tokens": 64, "messages": [{ "role": "user", "content": "Hi" }] });
    with(body, extra)
}

async fn ask(harness: &Harness, extra: Value) -> Answer {
    harness.post("/v1/messages", &body(extra)).await
}

fn tools() -> Value {
    json!([{ "name": "weather", "description": "Tells it", "input_schema": { "type": "object" } }])
}

/// Without ids, which differ from run to run.
fn stable(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = ["msg_", "call_"].iter().filter_map(|p| rest.find(p).map(|at| at + p.len())).min() {
        out.push_str(&rest[..at]);
        rest = rest[at..].trim_start_matches(|c: char| c.is_ascii_hexdigit());
    }
    out + rest
}

fn calls() -> Script {
    Script::Play(vec![
        started(10),
        says("<think>Hm"),
        says("</think>I look.\n<tool_call>{\"name\": \"weather\", \"arguments\": {\"city\": "),
        says("\"Oslo\"}}</tool_call>"),
        ends(),
        done(Finish::Stop, 60),
    ])
}

#[tokio::test]
async fn a_stream_has_the_documented_events_in_order() {
    let harness = Harness::with_template(HERMES, [calls()]);
    let answer = ask(&harness, json!({ "stream": true, "tools": tools() })).await;
    assert_eq!(answer.header("content-type"), Some("text/event-stream"));
    assert_snapshot!(stable(&answer.text));
}

#[tokio::test]
async fn a_whole_message_has_blocks() {
    let harness = Harness::with_template(HERMES, [calls()]);
    let answer = ask(&harness, json!({ "tools": tools() })).await;
    assert_snapshot!(stable(&serde_json::to_string_pretty(&answer.json()).unwrap()));
}

#[tokio::test]
async fn the_reason_of_the_end_is_named() {
    let length = Script::Play(vec![started(0), says("abc"), done(Finish::Length, 3)]);
    let stop = Script::Play(vec![started(0), says("one STOP two")]);
    let harness = Harness::new([answer("x"), length, stop]);
    let reason = async |extra: Value| {
        let answer = ask(&harness, extra).await.json();
        (answer["stop_reason"].clone(), answer["stop_sequence"].clone())
    };
    assert_eq!(reason(json!({})).await, (json!("end_turn"), Value::Null));
    assert_eq!(reason(json!({})).await, (json!("max_tokens"), Value::Null));
    assert_eq!(
        reason(json!({ "stop_sequences": ["END", "STOP"] })).await,
        (json!("stop_sequence"), json!("STOP"))
    );
}

#[tokio::test]
async fn system_blocks_tool_uses_and_results_reach_the_template() {
    let harness = Harness::with_template(HERMES, [answer("x")]);
    let messages = json!([
        { "role": "user", "content": [{ "type": "text", "text": "Weather?" }] },
        { "role": "assistant", "content": [
            { "type": "thinking", "thinking": "Hm", "signature": "" },
            { "type": "text", "text": "I look." },
            { "type": "tool_use", "id": "toolu_1", "name": "weather", "input": { "city": "Oslo" } },
        ] },
        { "role": "user", "content": [
            { "type": "tool_result", "tool_use_id": "toolu_1", "content": [{ "type": "text", "text": "Rain" }] },
            { "type": "text", "text": "And now?" },
        ] },
    ]);
    let system = json!([{ "type": "text", "text": "Be brief.", "cache_control": { "type": "ephemeral" } }]);
    let extra =
        json!({ "messages": messages, "system": system, "tools": tools(), "temperature": 0.5, "top_k": 3 });
    assert_eq!(ask(&harness, extra).await.status, 200);
    let request = harness.line.requests().remove(0);
    let prompt: Vec<u8> = request.prompt.iter().filter_map(|token| u8::try_from(token.0).ok()).collect();
    assert_eq!(
        String::from_utf8(prompt).unwrap(),
        "[weather][system Be brief.][user Weather?][assistant I look.<tool_call>weather {\"city\": \"Oslo\"}\
         </tool_call>][tool Rain][user And now?]"
    );
    assert_eq!((request.sampler.temperature, request.sampler.top_k, request.max_tokens), (0.5, 3, Some(64)));
}

#[tokio::test]
async fn a_message_of_the_assistant_at_the_end_is_gone_on_with() {
    const THINKS: &str = "{% for m in messages %}[{{ m.role }} {{ m.content }}]{% endfor %}\
        {% if add_generation_prompt %}[assistant <think>{# </think> #}{% endif %}";
    let harness = Harness::with_template(THINKS, [answer(" Oslo."), answer("x"), answer("y")]);
    let hello = json!({ "role": "user", "content": "Capital?" });
    let begun = json!([hello, { "role": "assistant", "content": [{ "type": "text", "text": "It is" }] }]);
    let said = ask(&harness, json!({ "messages": begun })).await.json();
    assert_eq!(said["content"], json!([{ "type": "text", "text": " Oslo." }]));
    let prompt = |at: usize| -> Vec<u8> {
        harness.line.requests()[at].prompt.iter().filter_map(|token| u8::try_from(token.0).ok()).collect()
    };
    let expected = "[user Capital?][assistant <think>\n</think>\n\nIt is";
    assert_eq!(String::from_utf8(prompt(0)).unwrap(), expected);
    let chat = json!({ "messages": begun, "continue_final_message": true, "add_generation_prompt": false });
    assert_eq!(harness.chat(chat).await.json()["choices"][0]["message"]["content"], "x");
    assert_eq!(prompt(1), prompt(0));
    let chat = json!({ "messages": begun });
    assert_eq!(harness.chat(chat).await.status, 200);
    let expected = "[user Capital?][assistant It is][assistant <think>";
    assert_eq!(String::from_utf8(prompt(2)).unwrap(), expected);
    let refused = harness.chat(json!({ "messages": [hello], "continue_final_message": true })).await;
    assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!("continue_final_message")));
}

#[tokio::test]
async fn tokens_are_counted_without_an_answer() {
    let harness = Harness::new([]);
    let answer = harness.post("/v1/messages/count_tokens", &body(json!({}))).await.json();
    let prompt = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(answer, json!({ "input_tokens": prompt.len() + 1 }));
    assert!(harness.line.requests().is_empty());
}

#[tokio::test]
async fn errors_have_anthropics_form() {
    let lost = || Failure::LineLost { reason: "stage 1 was killed".into() };
    let harness = Harness::new([
        Script::Refuse(Refusal::QueueFull { limit: 8 }),
        Script::Play(vec![started(0), Event::Failed(lost())]),
        Script::Play(vec![started(0), says("a"), Event::Failed(lost())]),
    ]);
    let mut all = String::new();
    for (name, extra) in [
        ("queue full", json!({})),
        ("line lost", json!({})),
        ("line lost in a stream", json!({ "stream": true })),
        ("unknown model", json!({ "model": "claude" })),
        ("no messages", json!({ "messages": [] })),
        ("unknown role", json!({ "messages": [{ "role": "tool", "content": "x" }] })),
        (
            "image",
            json!({ "messages": [{ "role": "user", "content": [{ "type": "image", "source": {} }] }] }),
        ),
        ("system", json!({ "system": 1 })),
        ("stop sequences", json!({ "stop_sequences": "x".repeat(300) })),
        ("tool of Anthropic's", json!({ "tools": [{ "type": "bash_20250124", "name": "bash" }] })),
        ("tool without schema", json!({ "tools": [{ "name": "f" }] })),
        ("tool choice", json!({ "tool_choice": { "type": "any" } })),
        ("thinking", json!({ "thinking": { "type": "much" } })),
    ] {
        let answer = ask(&harness, extra).await;
        all.push_str(&format!("{name}: {} {}\n", answer.status, stable(&answer.text)));
    }
    assert_snapshot!(all);
}

#[tokio::test]
async fn a_key_may_come_in_anthropics_header() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("keys");
    std::fs::write(&path, "sk-1\n").unwrap();
    let keys = ApiKeys::load(&path).unwrap();
    let harness = Harness::with_config(ApiConfig { api_keys: Some(keys), ..ApiConfig::default() });
    let count = async |key: &str| {
        let request = Request::post("/v1/messages/count_tokens").header("x-api-key", key);
        Answer::read(harness.send(request.body(Body::from(body(json!({})).to_string())).unwrap()).await).await
    };
    assert_eq!(count("sk-1").await.status, 200);
    let refused = count("sk-2").await;
    assert_eq!((refused.status, &refused.json()["error"]["type"]), (401, &json!("authentication_error")));
}

#[tokio::test]
async fn answers_may_be_asked_for_in_a_form() {
    let schema = json!({ "type": "object", "properties": { "a": { "type": "integer" } } });
    let format = json!({ "type": "json_schema", "schema": schema });
    for extra in [json!({ "output_config": { "format": format } }), json!({ "output_format": format })] {
        let harness = Harness::new([answer("{\"a\":1}")]);
        assert_eq!(ask(&harness, extra).await.status, 200);
        let grammar = harness.line.requests().remove(0).sampler.grammar.unwrap();
        assert_eq!(serde_json::from_str::<Value>(&grammar.text).unwrap(), schema);
    }
    let broken = json!({ "output_config": { "format": { "type": "json_schema" } } });
    let refused = ask(&Harness::new([]), broken).await;
    assert_eq!((refused.status, refused.text.contains("`output_config.format.schema`")), (400, true));
}

#[tokio::test]
async fn the_effort_reaches_the_template() {
    let harness = Harness::with_template("{{ reasoning_effort }}", [answer("x")]);
    assert_eq!(ask(&harness, json!({ "output_config": { "effort": "low" } })).await.status, 200);
    assert!(harness.line.requests()[0].prompt.ends_with(&crate::fake::tokens("low")));
}

#[tokio::test]
async fn what_answers_have_no_place_for_is_refused() {
    let harness = Harness::new([answer("x")]);
    let none = json!({ "logprobs": false, "top_logprobs": 0, "n": 1, "mcp_servers": [] });
    assert_eq!(ask(&harness, none).await.status, 200);
    for extra in [json!({ "logprobs": true }), json!({ "n": 2 }), json!({ "mcp_servers": [{ "url": "x" }] })]
    {
        let refused = ask(&harness, extra.clone()).await;
        assert_eq!((refused.status, refused.text.contains("not supported")), (400, true), "{extra}");
    }
}

#[tokio::test]
async fn every_answer_below_the_path_is_in_anthropics_form_and_carries_its_id() {
    let harness = Harness::new([answer("x")]);
    let get = harness.get("/v1/messages").await;
    assert_eq!((get.status, &get.json()["type"]), (405, &json!("error")));
    let unknown = harness.get("/v1/messages/batches").await;
    assert_eq!((unknown.status, &unknown.json()["error"]["type"]), (404, &json!("not_found_error")));
    for answer in [get, unknown, ask(&harness, json!({})).await] {
        assert!(answer.header("request-id").is_some());
        assert_eq!(answer.header("request-id"), answer.header("x-request-id"));
    }
    assert_eq!(harness.get("/v1/models").await.header("request-id"), None);
}
