//! OpenAI's Responses API.

use std::sync::Arc;

use axum::body::Body;
use axum::http::{Method, Request};
use http_body_util::BodyExt;
use insta::assert_snapshot;
use scheduler::{Event, Failure, Finish};
use serde_json::{Value, json};
use server::{ApiConfig, ApiKeys};

use crate::errors::line;
use crate::fake::{
    Answer, Bytes, Harness, Script, Seen, answer, done, ends, model_info, says, says_with_logprobs, started,
    with,
};

const HERMES: &str = "{# <tool_call> </think> #}{% for t in tools or [] %}[{{ t.function.name }}]{% endfor %}\
    {% for m in messages %}[{{ m.role }} {{ m.content }}{% for c in m.tool_calls or [] %}\
    <tool_call>{{ c.function.name }} {{ c.function.arguments | tojson }}</tool_call>{% endfor %}]{% endfor %}";

async fn ask(harness: &Harness, extra: Value) -> Answer {
    harness.post("/v1/responses", &with(json!({ "model": "toy", "input": "Hi" }), extra)).await
}

async fn ask_json(harness: &Harness, extra: Value) -> Value {
    let answer = ask(harness, extra).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    answer.json()
}

fn tools() -> Value {
    json!([{ "type": "function", "name": "weather", "parameters": { "type": "object" }, "strict": true }])
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

/// Without ids and times, which differ from run to run.
fn stable(text: &str) -> String {
    let mut out = String::new();
    let mut rest = text;
    let marks = ["resp_", "msg_", "call_", "fc_", "rs_", "item_", "\"created_at\":"];
    while let Some(at) = marks.iter().filter_map(|mark| rest.find(mark).map(|at| at + mark.len())).min() {
        out.push_str(&rest[..at]);
        let after = rest[at..].trim_start_matches(|c: char| c.is_ascii_hexdigit());
        // Field names such as `call_id` go on with other letters.
        rest = if rest.len() - at - after.len() > 8 { after } else { &rest[at..] };
    }
    out + rest
}

fn last_prompt(harness: &Harness) -> String {
    let prompt = harness.line.requests().pop().unwrap().prompt;
    String::from_utf8(prompt.iter().filter_map(|token| u8::try_from(token.0).ok()).collect()).unwrap()
}

#[tokio::test]
async fn a_stream_has_the_documented_events_in_order() {
    let harness = Harness::with_template(HERMES, [calls()]);
    let answer = ask(&harness, json!({ "stream": true, "tools": tools() })).await;
    assert!(answer.text.starts_with("event: response.created\ndata: {"), "{}", answer.text);
    let events = answer.events();
    for (i, event) in events.iter().enumerate() {
        assert_eq!(event["sequence_number"], i);
    }
    let lines: Vec<String> = events
        .into_iter()
        .map(|mut event| {
            if event["type"] != "response.completed" {
                event.as_object_mut().unwrap().remove("response");
            }
            stable(&event.to_string())
        })
        .collect();
    assert_snapshot!(lines.join("\n"));
}

#[tokio::test]
async fn a_whole_response_has_items() {
    let harness = Harness::new([answer("Hello")]);
    let extra = json!({ "instructions": "Be brief.", "metadata": { "a": "b" }, "max_output_tokens": 20 });
    let mut response = ask_json(&harness, extra).await;
    response["created_at"] = json!(0);
    assert_snapshot!(stable(&serde_json::to_string_pretty(&response).unwrap()));
    assert!(last_prompt(&harness).starts_with("<|im_start|>system\nBe brief.<|im_end|>"));
    assert_eq!(harness.line.requests()[0].max_tokens, Some(20));
}

#[tokio::test]
async fn an_answer_cut_off_is_incomplete() {
    let script = Script::Play(vec![started(0), says("Hel"), done(Finish::Length, 3)]);
    let response = ask_json(&Harness::new([script]), json!({})).await;
    assert_eq!(
        (&response["status"], &response["output"][0]["status"]),
        (&json!("incomplete"), &json!("incomplete"))
    );
    assert_eq!(response["incomplete_details"], json!({ "reason": "max_output_tokens" }));
}

#[tokio::test]
async fn a_request_goes_on_from_an_earlier_response() {
    let harness = Harness::with_template(HERMES, [calls(), answer("Rain.")]);
    let first = ask_json(&harness, json!({ "tools": tools() })).await;
    let call = &first["output"][2];
    assert_eq!(
        (&call["type"], &call["arguments"]),
        (&json!("function_call"), &json!("{\"city\": \"Oslo\"}"))
    );
    let output = json!([{ "type": "function_call_output", "call_id": call["call_id"], "output": "wet" }]);
    let extra = json!({ "previous_response_id": first["id"], "input": output, "tools": tools() });
    let second = ask_json(&harness, extra).await;
    assert_eq!(
        last_prompt(&harness),
        "[weather][user Hi][assistant I look.<tool_call>weather {\"city\": \"Oslo\"}</tool_call>][tool wet]"
    );
    let path = format!("/v1/responses/{}", second["id"].as_str().unwrap());
    assert_eq!(harness.get(&path).await.json(), second);
    let items = harness.get(&format!("{path}/input_items?limit=2")).await.json();
    let kinds: Vec<&str> =
        items["data"].as_array().unwrap().iter().map(|item| item["type"].as_str().unwrap()).collect();
    assert_eq!((kinds, &items["has_more"]), (vec!["function_call_output", "function_call"], &json!(true)));
    let after = items["last_id"].as_str().unwrap();
    let rest = harness.get(&format!("{path}/input_items?after={after}")).await.json();
    assert_eq!((rest["data"].as_array().unwrap().len(), &rest["has_more"]), (3, &json!(false)));
    let first_item = harness.get(&format!("{path}/input_items?order=asc&limit=1")).await.json();
    assert_eq!(first_item["data"][0]["content"], json!([{ "type": "input_text", "text": "Hi" }]));
    for wrong in ["limit=0", "limit=x", "order=up", "after=nobody"] {
        assert_eq!(harness.get(&format!("{path}/input_items?{wrong}")).await.status, 400, "{wrong}");
    }
}

#[tokio::test]
async fn responses_can_be_deleted_and_need_not_be_kept() {
    let harness = Harness::new([answer("a"), answer("b"), answer("c")]);
    let path = |response: &Value| format!("/v1/responses/{}", response["id"].as_str().unwrap());
    let response = ask_json(&harness, json!({})).await;
    let delete = async || {
        let request = Request::delete(path(&response)).body(Body::empty()).unwrap();
        Answer::read(harness.send(request).await).await
    };
    assert_eq!(delete().await.json()["deleted"], true);
    assert_eq!((delete().await.status, harness.get(&path(&response)).await.status), (404, 404));
    let response = ask_json(&harness, json!({ "store": false })).await;
    assert_eq!(harness.get(&path(&response)).await.status, 404);
    let streamed = ask(&harness, json!({ "stream": true })).await.events();
    assert_eq!(harness.get(&path(&streamed[0]["response"])).await.json()["status"], "completed");
}

#[tokio::test]
async fn a_response_in_the_background_can_be_watched_and_cancelled() {
    let mut harness = Harness::new([Script::Play(vec![started(0), says("Hel")]), answer("x")]);
    let response = ask_json(&harness, json!({ "background": true })).await;
    assert_eq!(response["status"], "in_progress");
    let Seen::Request(id) = harness.next_seen().await else { panic!("the line sees the request first") };
    let path = format!("/v1/responses/{}", response["id"].as_str().unwrap());
    assert_eq!(harness.get(&path).await.json()["status"], "in_progress");
    let extra = json!({ "previous_response_id": response["id"] });
    assert_eq!(ask(&harness, extra).await.status, 400);
    let cancelled = harness.post(&format!("{path}/cancel"), &json!({})).await.json();
    assert_eq!(cancelled["status"], "cancelled");
    assert_eq!(harness.next_seen().await, Seen::Cancel(id));
    assert_eq!(harness.get(&path).await.json()["status"], "cancelled");
    let other = ask_json(&harness, json!({})).await;
    let path = format!("/v1/responses/{}/cancel", other["id"].as_str().unwrap());
    assert_eq!(harness.post(&path, &json!({})).await.status, 400);
}

fn thinks_with_logprobs() -> Script {
    let said =
        [says_with_logprobs("<think>Hm</th"), says_with_logprobs("ink>\n\nYe"), says_with_logprobs("s.")];
    Script::Play([vec![started(0)], said.to_vec(), vec![ends(), done(Finish::Stop, 24)]].concat())
}

fn tokens_of(logprobs: &Value) -> String {
    logprobs.as_array().unwrap().iter().map(|entry| entry["token"].as_str().unwrap()).collect()
}

#[tokio::test]
async fn log_probabilities_are_those_of_the_messages_text() {
    let harness = Harness::with_template(HERMES, [thinks_with_logprobs(), thinks_with_logprobs()]);
    let asked = json!({ "include": ["message.output_text.logprobs"], "top_logprobs": 2, "stream": true });
    let events = ask(&harness, asked).await.events();
    assert_eq!(harness.line.requests()[0].top_logprobs, Some(2));
    let deltas = events.iter().filter(|event| event["type"] == "response.output_text.delta");
    let streamed: Vec<String> = deltas
        .map(|event| {
            assert_eq!(tokens_of(&event["logprobs"]), event["delta"].as_str().unwrap());
            tokens_of(&event["logprobs"])
        })
        .collect();
    assert_eq!(streamed, ["Ye", "s."]);
    let response = &events.last().unwrap()["response"];
    let part = &response["output"][1]["content"][0];
    assert_eq!((&part["text"], tokens_of(&part["logprobs"]).as_str()), (&json!("Yes."), "Yes."));
    let first = json!({
        "token": "Y", "bytes": [89], "logprob": -0.5,
        "top_logprobs": [
            { "token": "Y", "bytes": [89], "logprob": -0.5 }, { "token": "!", "bytes": [33], "logprob": -2.0 },
        ],
    });
    assert_eq!(part["logprobs"][0], first);
    let whole = ask_json(&harness, json!({ "top_logprobs": 2 })).await;
    assert_eq!(whole["output"][1]["content"][0]["logprobs"], part["logprobs"]);
    assert_eq!(whole["top_logprobs"], 2);
}

#[tokio::test]
async fn log_probabilities_are_left_out_unless_asked_for() {
    let harness = Harness::new([answer("Hello"), answer("Hello")]);
    let response = ask_json(&harness, json!({ "include": ["reasoning.encrypted_content"] })).await;
    assert_eq!(response["output"][0]["content"][0]["logprobs"], json!([]));
    ask_json(&harness, json!({ "top_logprobs": 0 })).await;
    assert!(harness.line.requests().iter().all(|request| request.top_logprobs.is_none()));
}

#[tokio::test]
async fn what_cannot_be_done_is_said() {
    let lost = || Failure::LineLost { reason: "stage 1 was killed".into() };
    let harness = Harness::new([
        Script::Play(vec![started(0), Event::Failed(lost())]),
        Script::Play(vec![started(0), says("a"), Event::Failed(lost())]),
    ]);
    assert_eq!(ask(&harness, json!({})).await.status, 503);
    let events = ask(&harness, json!({ "stream": true })).await.events();
    let last = events.last().unwrap();
    assert_eq!(
        (&last["type"], &last["response"]["error"]["code"]),
        (&json!("response.failed"), &json!("line_lost"))
    );
    let mut all = String::new();
    for extra in [
        json!({ "input": null }),
        json!({ "input": [] }),
        json!({ "input": ["Hi"] }),
        json!({ "input": [{ "type": "item_reference", "id": "x" }] }),
        json!({ "previous_response_id": "resp_x" }),
        json!({ "text": { "format": { "type": "xml" } } }),
        json!({ "text": { "format": { "type": "json_schema", "name": "x" } } }),
        json!({ "tools": [{ "type": "web_search" }] }),
        json!({ "truncation": "auto" }),
        json!({ "conversation": "conv_1" }),
        json!({ "include": "message.output_text.logprobs" }),
        json!({ "top_logprobs": 65 }),
        json!({ "functions": [{ "name": "f" }] }),
        json!({ "background": true, "store": false }),
        json!({ "max_output_tokens": 0 }),
    ] {
        let answer = ask(&harness, extra.clone()).await;
        let error = &answer.json()["error"];
        all.push_str(&format!(
            "{extra}\n  {} {} {} {}\n",
            answer.status, error["code"], error["param"], error["message"]
        ));
    }
    for path in ["/v1/responses/resp_x", "/v1/responses/resp_x/input_items"] {
        let answer = harness.get(path).await;
        all.push_str(&format!("{path}\n  {} {}\n", answer.status, answer.json()["error"]["code"]));
    }
    assert_snapshot!(all);
}

#[tokio::test]
async fn chats_names_for_fields_are_honoured_or_refused() {
    let schema = json!({ "type": "object" });
    let harness = Harness::new([answer("{}"), answer("a")]);
    let form = json!({ "type": "json_schema", "json_schema": { "name": "a", "schema": schema } });
    let chats = json!({ "max_tokens": 7, "response_format": form, "logprobs": true, "n": 1, "messages": [] });
    ask_json(&harness, chats).await;
    let request = harness.line.requests().remove(0);
    assert_eq!((request.max_tokens, request.top_logprobs), (Some(7), Some(0)));
    assert_eq!(request.sampler.grammar.unwrap().text, schema.to_string());
    let both = json!({ "max_tokens": 7, "max_output_tokens": 5 });
    ask_json(&harness, both).await;
    assert_eq!(harness.line.requests()[1].max_tokens, Some(5));
    for (param, extra) in [
        ("n", json!({ "n": 2 })),
        ("messages", json!({ "messages": [{ "role": "user", "content": "Hi" }] })),
        ("guided_whitespace_pattern", json!({ "guided_whitespace_pattern": " *" })),
        ("include[1]", json!({ "include": ["reasoning.encrypted_content", "message.logprobs"] })),
        ("include[0]", json!({ "include": [1] })),
    ] {
        let answer = ask(&harness, extra.clone()).await;
        assert_eq!((answer.status, &answer.json()["error"]["param"]), (400, &json!(param)), "{extra}");
    }
}

#[tokio::test]
async fn a_kept_response_is_told_once_more_event_by_event() {
    let lost = Failure::LineLost { reason: "stage 1 was killed".into() };
    let cut = Script::Play(vec![started(0), says("Hel"), says("lo"), done(Finish::Length, 3)]);
    let failed = Script::Play(vec![started(0), says("a"), Event::Failed(lost)]);
    let scripts = [calls(), thinks_with_logprobs(), cut, failed];
    let harness = Harness::with_template(HERMES, scripts);
    for extra in [json!({ "tools": tools() }), json!({ "top_logprobs": 2 }), json!({}), json!({})] {
        let told = ask(&harness, with(extra, json!({ "stream": true }))).await;
        let path = format!("/v1/responses/{}", told.events()[0]["response"]["id"].as_str().unwrap());
        let again = harness.get(&format!("{path}?stream=true")).await;
        assert_eq!((again.header("content-type"), &again.text), (Some("text/event-stream"), &told.text));
        let rest = harness.get(&format!("{path}?stream=true&starting_after=3")).await;
        assert_eq!(rest.events()[0]["sequence_number"], 4);
        assert!(told.text.ends_with(&rest.text));
        let none = harness.get(&format!("{path}?stream=true&starting_after={}", u64::MAX)).await;
        assert_eq!((none.status, none.text.as_str()), (200, ""));
        let whole = harness.get(&format!("{path}?stream=false&include=x")).await.json();
        assert_eq!(again.events().last().unwrap()["response"], whole);
        for wrong in ["stream=maybe", "starting_after=3", "stream=true&starting_after=-1"] {
            assert_eq!(harness.get(&format!("{path}?{wrong}")).await.status, 400, "{wrong}");
        }
    }
}

#[tokio::test]
async fn a_response_that_did_not_stream_has_events_all_the_same() {
    let harness = Harness::with_template(HERMES, [calls(), answer("x")]);
    let response = ask_json(&harness, json!({ "tools": tools() })).await;
    let path = format!("/v1/responses/{}?stream=true", response["id"].as_str().unwrap());
    let events = harness.get(&path).await.events();
    assert_eq!(
        (&events[0]["type"], &events[0]["response"]["output"]),
        (&json!("response.created"), &json!([]))
    );
    assert_eq!(events.last().unwrap()["response"], response);
    let unkept = ask_json(&harness, json!({ "store": false })).await;
    let path = format!("/v1/responses/{}?stream=true", unkept["id"].as_str().unwrap());
    assert_eq!(harness.get(&path).await.status, 404);
}

#[tokio::test]
async fn a_response_in_the_background_streams_to_whoever_asks_while_it_is_made() {
    let begun = || Script::Play(vec![started(0), says("Hel")]);
    let mut harness = Harness::new([begun(), begun()]);
    let gone = json!({ "model": "toy", "input": "Hi", "background": true, "stream": true });
    let request = Request::post("/v1/responses").body(Body::from(gone.to_string())).unwrap();
    let mut first = harness.send(request).await.into_body();
    let Seen::Request(id) = harness.next_seen().await else { panic!("the line sees the request first") };
    // The first event says how the response is called. Then its client leaves, which ends nothing.
    let event = first.frame().await.unwrap().unwrap().into_data().unwrap();
    drop(first);
    let event: Value =
        serde_json::from_str(std::str::from_utf8(&event).unwrap().split_once("data: ").unwrap().1).unwrap();
    let path = format!("/v1/responses/{}", event["response"]["id"].as_str().unwrap());
    let get = Request::get(format!("{path}?stream=true&starting_after=0")).body(Body::empty()).unwrap();
    let follower = harness.send(get).await;
    for event in [says("lo"), ends(), done(Finish::Stop, 6)] {
        harness.line.say(id, event);
    }
    let events = Answer::read(follower).await.events();
    assert_eq!(events[0]["type"], "response.in_progress");
    let deltas = events.iter().filter_map(|event| event["delta"].as_str());
    assert_eq!(deltas.collect::<String>(), "Hello");
    assert_eq!(events.last().unwrap()["response"], harness.get(&path).await.json());

    let response = ask_json(&harness, json!({ "background": true })).await;
    assert!(matches!(harness.next_seen().await, Seen::Request(_)));
    let path = format!("/v1/responses/{}", response["id"].as_str().unwrap());
    let get = Request::get(format!("{path}?stream=true")).body(Body::empty()).unwrap();
    let follower = harness.send(get).await;
    assert_eq!(harness.post(&format!("{path}/cancel"), &json!({})).await.status, 200);
    let events = Answer::read(follower).await.events();
    let last = events.last().unwrap();
    assert_eq!(
        (&last["type"], &last["response"]["status"]),
        (&json!("response.incomplete"), &json!("cancelled"))
    );
}

#[tokio::test]
async fn so_many_clients_at_once_are_told_responses_once_more() {
    let harness = Harness::new([answer("Hello")]);
    let response = ask_json(&harness, json!({})).await;
    let path = format!("/v1/responses/{}?stream=true", response["id"].as_str().unwrap());
    let mut told = Vec::new();
    for _ in 0..16 {
        told.push(harness.send(Request::get(&path).body(Body::empty()).unwrap()).await);
    }
    let refused = harness.get(&path).await;
    assert_snapshot!(line("one too many", &refused), @r#"
    one too many
      429 retry-after=1 "rate_limit_error" "too_many_replays" param=null
      "16 clients read the events of kept responses already: try again in a moment, or get the response without `stream`"
    "#);
    // As the error says.
    assert_eq!(harness.get(path.trim_end_matches("?stream=true")).await.json(), response);
    told.pop();
    assert_eq!(harness.get(&path).await.events().last().unwrap()["response"], response);
}

#[tokio::test]
async fn a_response_exists_for_its_own_key_alone() {
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), "sk-1\nsk-2\n").unwrap();
    let keys = ApiKeys::load(file.path()).unwrap();
    let config = ApiConfig { api_keys: Some(keys), ..ApiConfig::default() };
    let harness = Harness::without_model([Script::Play(vec![started(0), says("Hel")]), answer("x")], config);
    harness.api.set_model(model_info(), Arc::new(Bytes)).unwrap();
    let send = async |key: &str, method: Method, path: &str, body: Value| {
        let request = Request::builder().method(method).uri(path).header("x-api-key", key);
        let body = Body::from(body.to_string());
        Answer::read(harness.send(request.body(body).unwrap()).await).await
    };
    let create = "/v1/responses";
    let body = json!({ "input": "Hi", "background": true });
    let id = send("sk-1", Method::POST, create, body).await.json()["id"].as_str().unwrap().to_owned();
    let path = format!("/v1/responses/{id}");
    let (cancel, items) = (format!("{path}/cancel"), format!("{path}/input_items"));
    let routes =
        [(Method::GET, &path), (Method::GET, &items), (Method::POST, &cancel), (Method::DELETE, &path)];
    for (method, path) in &routes {
        let answer = send("sk-2", method.clone(), path, json!({})).await;
        assert_eq!((answer.status, &answer.json()["error"]["code"]), (404, &json!("response_not_found")));
    }
    let later = json!({ "input": "And?", "previous_response_id": id });
    let refused = send("sk-2", Method::POST, create, later.clone()).await;
    assert_eq!(refused.json()["error"]["code"], "previous_response_not_found");
    for (method, path) in &routes[..3] {
        assert_eq!(send("sk-1", method.clone(), path, json!({})).await.status, 200, "{method} {path}");
    }
    assert_eq!(send("sk-1", Method::POST, create, later).await.status, 200);
    assert_eq!(send("sk-1", Method::DELETE, &path, json!({})).await.status, 200);
}
