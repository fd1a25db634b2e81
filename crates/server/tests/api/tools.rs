//! Tools: what the model is told, what it says, and what the client gets.

use insta::assert_snapshot;
use scheduler::Finish;
use serde_json::{Value, json};

use crate::fake::{Harness, Script, answer, done, ends, says, started, tokens};

/// A template in Hermes' form.
const HERMES: &str = "{% if tools %}[tools {% for t in tools %}{{ t | tojson }}{% endfor %}]{% endif %}\
    {% for m in messages %}[{{ m.role }} {{ m.content }}{% for c in m.tool_calls or [] %}\
    <tool_call>{{ c.function.name }} {{ c.function.arguments | tojson }}</tool_call>{% endfor %}]{% endfor %}\
    {% if add_generation_prompt %}[assistant {% endif %}";

fn tools() -> Value {
    let parameters = json!({ "type": "object", "properties": { "city": { "type": "string" } } });
    json!([
        { "type": "function", "function": { "name": "weather", "description": "Tells it", "parameters": parameters } },
        { "type": "function", "function": { "name": "time", "strict": true } },
    ])
}

fn two_calls() -> Script {
    Script::Play(vec![
        started(10),
        says("I look.\n<tool_"),
        says("call>{\"name\": \"weather\", \"argu"),
        says("ments\": {\"city\": "),
        says("\"Oslo\"}}</tool_call>\n<tool_call>{\"name\": \"time\", \"arguments\": {}}"),
        says("</tool_call>"),
        ends(),
        done(Finish::Stop, 90),
    ])
}

/// Without ids and times, which differ from run to run.
fn stable(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find("call_") {
        let (before, after) = rest.split_at(at + 5);
        let hex = after.bytes().take_while(u8::is_ascii_hexdigit).count();
        out.push_str(before);
        if hex == 24 {
            out.push_str(&format!("…{}", &after[22..24]));
        }
        rest = if hex == 24 { &after[24..] } else { after };
    }
    out + rest
}

#[tokio::test]
async fn calls_stream_as_they_are_written() {
    let harness = Harness::with_template(HERMES, [two_calls()]);
    let answer = harness.chat(json!({ "tools": tools(), "stream": true })).await;
    assert_snapshot!(stable(&answer.stable()));
}

#[tokio::test]
async fn calls_end_with_tool_calls() {
    let harness = Harness::with_template(HERMES, [two_calls(), answer("Hi")]);
    let answer = harness.chat(json!({ "tools": tools() })).await.json();
    let choice = &answer["choices"][0];
    assert_eq!(
        (&choice["finish_reason"], &choice["message"]["content"]),
        (&json!("tool_calls"), &json!("I look."))
    );
    let calls = &choice["message"]["tool_calls"];
    assert_eq!(calls[0]["function"], json!({ "name": "weather", "arguments": "{\"city\": \"Oslo\"}" }));
    assert_eq!(calls[1]["function"], json!({ "name": "time", "arguments": "{}" }));
    assert_ne!(calls[0]["id"], calls[1]["id"]);
    let plain = harness.chat(json!({ "tools": tools() })).await.json();
    assert_eq!(plain["choices"][0]["message"], json!({ "role": "assistant", "content": "Hi" }));
    assert_eq!(plain["choices"][0]["finish_reason"], "stop");
}

#[tokio::test]
async fn one_call_ends_the_answer_if_calls_may_not_be_parallel() {
    let harness = Harness::with_template(HERMES, [two_calls()]);
    let answer = harness.chat(json!({ "tools": tools(), "parallel_tool_calls": false })).await.json();
    assert_eq!(answer["choices"][0]["message"]["tool_calls"].as_array().unwrap().len(), 1);
    assert_eq!(answer["choices"][0]["finish_reason"], "tool_calls");
}

#[tokio::test]
async fn calls_that_are_whole_at_the_limit_end_with_tool_calls_and_cut_ones_with_length() {
    const WHOLE: &str = "<tool_call>{\"name\": \"time\", \"arguments\": {}}";
    let cases = [
        (WHOLE.to_owned(), "tool_calls"),
        (format!("{WHOLE}</tool_call>\n<tool_"), "tool_calls"),
        (format!("{WHOLE}</tool_call>\n<tool_call>{{\"name\": \"wea"), "tool_calls"),
        (format!("{WHOLE}</tool_call>\n<tool_call>{{\"name\": \"weather\", \"arguments\": {{\"ci"), "length"),
        ("<tool_call>{\"name\": \"weather\", \"arguments\": {\"city\": \"Os".to_owned(), "length"),
        ("I look. <tool_".to_owned(), "length"),
    ];
    for (text, finish) in cases {
        let script = Script::Play(vec![started(0), says(&text), done(Finish::Length, 9)]);
        let harness = Harness::with_template(HERMES, [script]);
        let answer = harness.chat(json!({ "tools": tools() })).await.json();
        assert_eq!(answer["choices"][0]["finish_reason"], finish, "{text}");
    }
}

async fn prompt(template: &str, extra: Value) -> String {
    let harness = Harness::with_template(template, [answer("x")]);
    let answer = harness.chat(extra).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    let prompt = harness.line.requests().remove(0).prompt;
    String::from_utf8(prompt.iter().filter_map(|token| u8::try_from(token.0).ok()).collect()).unwrap()
}

fn round_trip() -> Value {
    json!([
        { "role": "user", "content": "Weather?" },
        { "role": "assistant", "content": null, "tool_calls": [{
            "id": "call_1", "type": "function", "function": { "name": "weather", "arguments": "{\"city\":\"Oslo\"}" },
        }] },
        { "role": "tool", "tool_call_id": "call_1", "content": "Rain" },
    ])
}

#[tokio::test]
async fn the_template_writes_tools_calls_and_results() {
    assert_snapshot!(prompt(HERMES, json!({ "tools": tools(), "messages": round_trip() })).await);
}

#[tokio::test]
async fn templates_without_tools_are_told_about_them_in_words() {
    let chatml = "{% for m in messages %}[{{ m.role }} {{ m.content }}]{% endfor %}";
    assert_snapshot!(prompt(chatml, json!({ "tools": tools(), "messages": round_trip() })).await);
}

#[tokio::test]
async fn what_was_thought_before_a_call_is_shown_again_also_where_the_call_is_told_in_words() {
    let thinks =
        "{% for m in messages %}[{{ m.role }} {{ m.reasoning_content }}|{{ m.content }}]{% endfor %}";
    let mut messages = round_trip();
    messages[1]["reasoning_content"] = json!("I look it up.");
    let prompt = prompt(thinks, json!({ "messages": messages })).await;
    assert!(prompt.contains("[assistant I look it up.|<tool_call>\n{"), "{prompt}");
}

#[tokio::test]
async fn templates_that_join_arguments_to_text_get_text() {
    let template = "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}\
                    {{ '<' + c.function.name + ' ' + c.function.arguments + '>' }}{% endfor %}{% endfor %}";
    let template = &format!("{{% if tools %}}{{{{ tools | tojson }}}}{{% endif %}}{template}");
    let prompt = prompt(template, json!({ "messages": round_trip() })).await;
    assert_eq!(prompt, "Weather?<weather {\"city\":\"Oslo\"}>Rain");
}

#[tokio::test]
async fn results_know_their_tools_name_and_mistral_gets_short_ids() {
    let template = "{# [TOOL_CALLS] #}{% if tools %}{{ tools | tojson }}{% endif %}{% for m in messages %}\
                    {% for c in m.tool_calls or [] %}{{ c.function.arguments | tojson }}{% endfor %}\
                    {% if m.role == 'tool' %}{{ m.name }} {{ m.tool_call_id | length }} \
                    {{ m.tool_call_id == messages[1].tool_calls[0].id }}{% endif %}{% endfor %}";
    assert_eq!(
        prompt(template, json!({ "messages": round_trip() })).await,
        "{\"city\": \"Oslo\"}weather 9 True"
    );
}

#[tokio::test]
async fn a_named_tool_is_begun_for_the_model() {
    let script =
        Script::Play(vec![started(0), says("{\"city\": \"Rome\"}}\n</tool_call>"), done(Finish::Stop, 9)]);
    let harness = Harness::with_template(HERMES, [script]);
    let choice = json!({ "type": "function", "function": { "name": "weather" } });
    let answer = harness.chat(json!({ "tools": tools(), "tool_choice": choice })).await.json();
    let prompt = harness.line.requests().remove(0).prompt;
    assert!(prompt.ends_with(&tokens("[assistant <tool_call>\n{\"name\": \"weather\", \"arguments\": ")));
    let choice = &answer["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls");
    let function = &choice["message"]["tool_calls"][0]["function"];
    assert_eq!(*function, json!({ "name": "weather", "arguments": "{\"city\": \"Rome\"}" }));
}

#[tokio::test]
async fn a_required_call_is_begun_and_its_name_left_to_the_model() {
    let script =
        Script::Play(vec![started(0), says("time\", \"arguments\": {}}</tool_call>"), done(Finish::Stop, 9)]);
    let harness = Harness::with_template(HERMES, [script]);
    let answer = harness.chat(json!({ "tools": tools(), "tool_choice": "required" })).await.json();
    assert_eq!(answer["choices"][0]["message"]["tool_calls"][0]["function"]["name"], "time");
}

#[tokio::test]
async fn no_tools_are_shown_if_none_may_be_called() {
    assert!(!prompt(HERMES, json!({ "tools": tools(), "tool_choice": "none" })).await.contains("weather"));
}

const THINKS: &str = "{% for m in messages %}[{{ m.role }} {{ m.content.split('</think>')[-1] }}]{% endfor %}[assistant <think>\n";

#[tokio::test]
async fn reasoning_is_a_field_of_its_own() {
    let script = || {
        Script::Play(vec![started(0), says("Hm.\n</thi"), says("nk>\n\nYes"), ends(), done(Finish::Stop, 9)])
    };
    let harness = Harness::with_template(THINKS, [script(), script(), script()]);
    let whole = harness.chat(json!({})).await.json();
    let expected = json!({ "role": "assistant", "content": "Yes", "reasoning_content": "Hm." });
    assert_eq!(whole["choices"][0]["message"], expected);
    let streamed = harness.chat(json!({ "stream": true })).await.events();
    let deltas: Vec<&Value> = streamed.iter().map(|event| &event["choices"][0]["delta"]).collect();
    assert_eq!(deltas[1..3], [&json!({ "reasoning_content": "Hm." }), &json!({ "content": "Yes" })]);
    let raw = harness.chat(json!({ "reasoning_format": "none" })).await.json();
    assert_eq!(raw["choices"][0]["message"]["content"], "Hm.\n</think>\n\nYes");
}
