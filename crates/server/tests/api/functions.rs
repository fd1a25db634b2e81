//! OpenAI's functions, which came before tools.

use scheduler::Finish;
use serde_json::{Value, json};

use crate::fake::{Harness, Script, answer, done, ends, says, started, tokens};

const HERMES: &str = "{% if tools %}[tools {% for t in tools %}{{ t.function.name }}{% endfor %}]{# <tool_call> #}{% endif %}\
    {% for m in messages %}[{{ m.role }} {{ m.name }} {{ m.content }}{% for c in m.tool_calls or [] %}\
    <tool_call>{{ c.function.name }} {{ c.function.arguments | tojson }}</tool_call>{% endfor %}]{% endfor %}\
    {% if add_generation_prompt %}[assistant {% endif %}";

fn functions() -> Value {
    json!([{ "name": "weather", "parameters": { "type": "object" } }, { "name": "time" }])
}

fn calls() -> Script {
    Script::Play(vec![
        started(0),
        says("<tool_call>{\"name\": \"weather\", \"arguments\": {\"city\": "),
        says("\"Oslo\"}}</tool_call>\n<tool_call>{\"name\": \"time\", \"arguments\": {}}</tool_call>"),
        ends(),
        done(Finish::Stop, 60),
    ])
}

fn prompt_of(harness: &Harness) -> String {
    let prompt = harness.line.requests().remove(0).prompt;
    String::from_utf8(prompt.iter().filter_map(|token| u8::try_from(token.0).ok()).collect()).unwrap()
}

#[tokio::test]
async fn one_call_is_answered_in_the_old_form() {
    let harness = Harness::with_template(HERMES, [calls(), answer("Hi")]);
    let whole = harness.chat(json!({ "functions": functions() })).await.json();
    let call = json!({ "name": "weather", "arguments": "{\"city\": \"Oslo\"}" });
    let message = json!({ "role": "assistant", "content": null, "function_call": call });
    assert_eq!(whole["choices"][0]["message"], message);
    assert_eq!(whole["choices"][0]["finish_reason"], "function_call");
    assert!(prompt_of(&harness).starts_with("[tools weathertime][user"));
    let plain = harness.chat(json!({ "functions": functions(), "function_call": "auto" })).await.json();
    assert_eq!(plain["choices"][0]["message"], json!({ "role": "assistant", "content": "Hi" }));
    assert_eq!(plain["choices"][0]["finish_reason"], "stop");
}

#[tokio::test]
async fn a_stream_has_the_old_form_too() {
    let harness = Harness::with_template(HERMES, [calls()]);
    let events = harness.chat(json!({ "functions": functions(), "stream": true })).await.events();
    let deltas = || events.iter().map(|event| &event["choices"][0]["delta"]);
    let text = |name: &str| -> String {
        deltas().filter_map(|delta| delta["function_call"][name].as_str()).collect::<Vec<_>>().concat()
    };
    assert_eq!((text("name").as_str(), text("arguments").as_str()), ("weather", "{\"city\": \"Oslo\"}"));
    assert!(deltas().all(|delta| delta["tool_calls"].is_null()));
    assert_eq!(events.last().unwrap()["choices"][0]["finish_reason"], "function_call");
}

#[tokio::test]
async fn earlier_calls_and_results_reach_the_template_as_those_of_tools() {
    let harness = Harness::with_template(HERMES, [answer("x")]);
    let call = json!({ "name": "weather", "arguments": "{\"city\":\"Oslo\"}" });
    let messages = json!([
        { "role": "user", "content": "Weather?" },
        { "role": "assistant", "content": null, "function_call": call },
        { "role": "function", "name": "weather", "content": "Rain" },
    ]);
    assert_eq!(harness.chat(json!({ "functions": functions(), "messages": messages })).await.status, 200);
    let expected =
        "[user  Weather?][assistant  <tool_call>weather {\"city\": \"Oslo\"}</tool_call>][tool weather Rain]";
    assert!(prompt_of(&harness).contains(expected), "{}", prompt_of(&harness));
}

#[tokio::test]
async fn a_named_function_is_begun_and_none_are_shown_if_none_may_be_called() {
    let script = Script::Play(vec![started(0), says("{\"city\": \"Rome\"}}"), done(Finish::Stop, 9)]);
    let harness = Harness::with_template(HERMES, [script]);
    let named = json!({ "functions": functions(), "function_call": { "name": "weather" } });
    let whole = harness.chat(named).await.json();
    assert_eq!(whole["choices"][0]["message"]["function_call"]["arguments"], "{\"city\": \"Rome\"}");
    assert_eq!(whole["choices"][0]["finish_reason"], "function_call");
    let begun = tokens("<tool_call>\n{\"name\": \"weather\", \"arguments\": ");
    assert!(harness.line.requests()[0].prompt.ends_with(&begun));
    let harness = Harness::with_template(HERMES, [answer("x")]);
    harness.chat(json!({ "functions": functions(), "function_call": "none" })).await;
    assert!(!prompt_of(&harness).contains("weather"));
}

#[tokio::test]
async fn what_contradicts_itself_is_refused_by_name() {
    let tools = json!([{ "type": "function", "function": { "name": "time" } }]);
    for (extra, param) in [
        (json!({ "functions": functions(), "tools": tools }), "functions"),
        (json!({ "functions": functions(), "function_call": { "name": "none" } }), "function_call"),
        (json!({ "functions": functions(), "function_call": {} }), "function_call.name"),
        (json!({ "functions": functions(), "function_call": "required" }), "function_call"),
        (json!({ "functions": [], "function_call": { "name": "time" } }), "function_call"),
        (json!({ "functions": [{ "name": "two words" }] }), "functions[0].name"),
        (json!({ "functions": ["time"] }), "functions[0]"),
        (json!({ "functions": "time" }), "functions"),
    ] {
        let refused = Harness::new([answer("x")]).chat(extra.clone()).await;
        assert_eq!((refused.status, &refused.json()["error"]["param"]), (400, &json!(param)), "{extra}");
    }
}
