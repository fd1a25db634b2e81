//! Errors name fields as the client wrote them, also where a request is read as a chat.

use scheduler::Refusal;
use serde_json::{Value, json};

use crate::fake::{Harness, Script, answer, with};

/// What each body is refused for, with something before its messages that a chat has among them.
async fn check(path: &str, least: Value, cases: impl IntoIterator<Item = (&str, Value)>) {
    let harness = Harness::new([]);
    for (name, extra) in cases {
        let answer = harness.post(path, &with(least.clone(), extra.clone())).await;
        let error = answer.json()["error"].clone();
        assert_eq!(answer.status, 400, "{path} {extra}: {error}");
        let message = error["message"].as_str().unwrap();
        assert!(message.contains(&format!("`{name}`")), "{path} {extra}: {name} in {message}");
        assert!(error.get("param").is_none_or(|param| param == name), "{path} {extra}: {error}");
    }
    assert!(harness.line.requests().is_empty());
}

#[tokio::test]
async fn responses_name_items_by_their_place_in_the_input() {
    let user = json!({ "role": "user", "content": "Hi" });
    let items = |item: Value| json!({ "input": [user, item] });
    let part = |kind: &str| json!([{ "type": "input_text", "text": "a" }, { "type": kind }]);
    let output = |output: Value| json!({ "type": "function_call_output", "call_id": "a", "output": output });
    let cases = [
        ("input[1]", items(json!("Hi"))),
        ("input[1].role", items(json!({ "content": "Hi" }))),
        ("input[1].role", items(json!({ "role": "king", "content": "Hi" }))),
        ("input[1].role", items(json!({ "role": 1, "content": "Hi" }))),
        ("input[1].content", items(json!({ "role": "user" }))),
        ("input[1].content", items(json!({ "role": "user", "content": 1 }))),
        ("input[1].content[1].text", items(json!({ "role": "user", "content": part("input_text") }))),
        ("input[1].content[1]", items(json!({ "role": "user", "content": ["a", 1] }))),
        ("input[1].name", items(json!({ "type": "function_call", "call_id": "a", "arguments": "{}" }))),
        ("input[1].output", items(output(json!(1)))),
        ("input[1].output[1].text", items(output(part("input_text")))),
        ("input", json!({ "input": vec![user.clone(); 5000] })),
        ("tools[0].name", json!({ "tools": [{ "type": "function", "name": "a b" }] })),
        ("tools[0].parameters", json!({ "tools": [{ "type": "function", "name": "a", "parameters": 1 }] })),
        ("tools[0].type", json!({ "tools": [{ "type": "web_search" }] })),
        (
            "tool_choice.name",
            json!({ "tools": [{ "type": "function", "name": "a" }], "tool_choice": { "type": "function" } }),
        ),
        ("reasoning.effort", json!({ "reasoning": { "effort": 1 } })),
        ("text.format.schema", json!({ "text": { "format": { "type": "json_schema" } } })),
    ];
    let image = json!({ "input": [user, { "role": "user", "content": part("input_image") }] });
    let least = json!({ "model": "toy", "input": "Hi", "instructions": "Be brief." });
    check("/v1/responses", least.clone(), cases).await;
    let refused = Harness::new([]).post("/v1/responses", &with(least.clone(), image)).await.json();
    assert_eq!(refused["error"]["param"], "input[1].content[1].type");

    let harness =
        Harness::new([answer("Hello"), Script::Refuse(Refusal::ContextLength { prompt: 200, context: 128 })]);
    let first = harness.post("/v1/responses", &least).await.json();
    let later = json!({ "previous_response_id": first["id"], "input": [{ "role": "user", "content": 1 }] });
    let refused = harness.post("/v1/responses", &with(least.clone(), later)).await.json();
    assert_eq!(refused["error"]["param"], "input[0].content", "earlier items do not count");
    let long = harness.post("/v1/responses", &least).await.json();
    assert_eq!(
        (&long["error"]["code"], &long["error"]["param"]),
        (&json!("context_length_exceeded"), &json!("input"))
    );
}

#[tokio::test]
async fn messages_name_blocks_by_their_place_in_the_message() {
    let user = json!({ "role": "user", "content": "Hi" });
    let last = |content: Value| json!({ "messages": [user, { "role": "user", "content": content }] });
    let image = json!({ "type": "image", "source": {} });
    let result = |content: Value| json!({ "type": "tool_result", "tool_use_id": "a", "content": content });
    let text = json!({ "type": "text", "text": "a" });
    let cases = [
        ("messages[1].content", last(json!(null))),
        ("messages[1].content", last(json!(1))),
        ("messages[1].content[1]", last(json!([text, image]))),
        ("messages[1].content[2]", last(json!([result(json!("x")), text, image]))),
        ("messages[1].content[1].text", last(json!([result(json!("x")), { "type": "text" }]))),
        ("messages[1].content[0].content", last(json!([result(json!(1))]))),
        ("messages[1].content[0].content[1]", last(json!([result(json!([text, image])), text]))),
        ("messages[1].content[0].tool_use_id", last(json!([{ "type": "tool_result" }]))),
        ("messages[1].role", json!({ "messages": [user, { "content": "Hi" }] })),
        ("messages[1]", json!({ "messages": [user, "Hi"] })),
        ("messages", json!({ "messages": vec![user.clone(); 5000] })),
        ("messages", json!({ "messages": "Hi" })),
        ("system[1]", json!({ "system": [text, image] })),
        ("tools[0].name", json!({ "tools": [{ "name": "a b", "input_schema": {} }] })),
        ("tools[0].input_schema", json!({ "tools": [{ "name": "a", "input_schema": 1 }] })),
        ("tool_choice.type", json!({ "tool_choice": { "type": 1 } })),
        (
            "tool_choice.disable_parallel_tool_use",
            json!({ "tool_choice": { "type": "auto", "disable_parallel_tool_use": 1 } }),
        ),
        ("thinking.type", json!({ "thinking": { "type": 1 } })),
        ("thinking.type", json!({ "thinking": { "type": "much" } })),
        ("output_config.effort", json!({ "output_config": { "effort": 1 } })),
        ("stop_sequences", json!({ "stop_sequences": 1 })),
    ];
    let least = json!({ "model": "toy", "max_tokens": 9, "system": "Be brief.", "messages": [user] });
    check("/v1/messages", least, cases).await;
}

#[tokio::test]
async fn chats_name_what_stands_inside_of_objects() {
    let least = json!({ "messages": [{ "role": "user", "content": "Hi" }] });
    let cases = [("stream_options.include_usage", json!({ "stream_options": { "include_usage": 1 } }))];
    check("/v1/chat/completions", least, cases).await;
}

#[tokio::test]
async fn as_many_messages_and_tools_as_the_limits_say_are_read() {
    let user = json!({ "role": "user", "content": "Hi" });
    let tool = json!({ "type": "function", "function": { "name": "a" } });
    let status = async |extra: Value| {
        let answer = Harness::new([answer("x")]).chat(extra).await;
        (answer.status, answer.json()["error"]["param"].clone())
    };
    assert_eq!(status(json!({ "messages": vec![user.clone(); 4096] })).await, (200, Value::Null));
    assert_eq!(status(json!({ "messages": vec![user.clone(); 4097] })).await, (400, json!("messages")));
    assert_eq!(status(json!({ "tools": vec![tool.clone(); 1024] })).await, (200, Value::Null));
    assert_eq!(status(json!({ "tools": vec![tool.clone(); 1025] })).await, (400, json!("tools")));
    let functions = |n| json!({ "functions": vec![tool["function"].clone(); n] });
    assert_eq!(status(functions(1025)).await, (400, json!("functions")));
    // What a chat has among its messages counts for none of them.
    let harness = Harness::new([answer("x"), answer("x")]);
    let messages = json!({ "system": "Be brief.", "messages": vec![user.clone(); 4096] });
    assert_eq!(harness.post("/v1/messages", &messages).await.status, 200);
    let input = json!({ "instructions": "Be brief.", "input": vec![user; 4096] });
    assert_eq!(harness.post("/v1/responses", &input).await.status, 200);
}
