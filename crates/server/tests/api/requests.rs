//! What reaches the line of what a client wrote.

use std::sync::Arc;

use protocol::SamplerParams;
use scheduler::{Finish, Request, SHARED};
use serde_json::{Value, json};
use server::{ApiConfig, ModelInfo};

use crate::fake::{Bytes, Harness, Script, answer, done, ends, model_info, says, started, tokens, with};

async fn request(extra: Value) -> Request {
    let harness = Harness::new([answer("x")]);
    let answer = harness.chat(extra).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    harness.line.requests().remove(0)
}

async fn rendered(template: &str, extra: Value) -> Vec<protocol::Token> {
    let harness = Harness::with_template(template, [answer("x")]);
    let answer = harness.chat(extra).await;
    assert_eq!(answer.status, 200, "{}", answer.text);
    harness.line.requests().remove(0).prompt
}

#[tokio::test]
async fn a_bare_chat_is_openais_default() {
    let request = request(json!({})).await;
    assert_eq!(request.sampler, SamplerParams::default());
    assert_eq!((request.max_tokens, request.ignore_eos, request.top_logprobs), (None, false, None));
}

#[tokio::test]
async fn the_seed_is_the_clients_or_drawn() {
    assert_eq!(request(json!({ "seed": 7 })).await.seed, 7);
    assert_eq!(request(json!({ "seed": u64::MAX })).await.seed, u64::MAX);
    assert_eq!(request(json!({ "seed": -2 })).await.seed, u64::MAX - 1);
    assert_ne!(request(json!({})).await.seed, request(json!({ "seed": -1 })).await.seed);
}

#[tokio::test]
async fn an_expected_answer_reaches_the_line_as_tokens() {
    assert_eq!(request(json!({})).await.prediction, None);
    let whole = request(json!({ "prediction": { "type": "content", "content": "ab" } })).await;
    let parts = json!([{ "type": "text", "text": "a" }, { "type": "text", "text": "b" }]);
    let parts = request(json!({ "prediction": { "type": "content", "content": parts } })).await;
    assert_eq!(whole.prediction, Some(tokens("ab")));
    assert_eq!(parts.prediction, whole.prediction);
    let wrong = Harness::new([answer("x")]).chat(json!({ "prediction": { "content": 3 } })).await;
    assert_eq!(wrong.status, 400, "{}", wrong.text);
}

#[tokio::test]
async fn both_names_of_the_token_limit_work_and_the_newer_wins() {
    assert_eq!(request(json!({ "max_tokens": 5 })).await.max_tokens, Some(5));
    assert_eq!(request(json!({ "max_completion_tokens": 6, "max_tokens": 5 })).await.max_tokens, Some(6));
}

#[tokio::test]
async fn llama_cpps_name_of_the_token_limit_works_where_no_other_is_said() {
    assert_eq!(request(json!({ "n_predict": 7 })).await.max_tokens, Some(7));
    assert_eq!(request(json!({ "n_predict": 7, "max_tokens": 5 })).await.max_tokens, Some(5));
    for (extra, limit) in
        [(json!({}), Some(16)), (json!({ "n_predict": 7 }), Some(7)), (json!({ "n_predict": -1 }), None)]
    {
        let harness = Harness::new([answer("x")]);
        assert_eq!(harness.complete(extra).await.status, 200);
        assert_eq!(harness.line.requests()[0].max_tokens, limit);
    }
}

#[tokio::test]
async fn requests_share_prompts_only_under_the_same_key_and_salt() {
    let (key, salt) = ("prompt_cache_key", "cache_salt");
    let none = request(json!({})).await.namespace;
    let named = request(json!({ key: "a" })).await.namespace;
    assert_ne!(none, named);
    assert_eq!(request(json!({ salt: "a" })).await.namespace, named);
    let both = request(json!({ key: "a", salt: "bc" })).await.namespace;
    assert_ne!(both, request(json!({ key: "ab", salt: "c" })).await.namespace);
    assert_eq!(request(json!({ key: "a", salt: "b", "cache_prompt": false })).await.namespace, None);
}

#[tokio::test]
async fn log_probabilities_come_with_as_many_alternatives_as_asked() {
    assert_eq!(request(json!({ "logprobs": true })).await.top_logprobs, Some(0));
    assert_eq!(request(json!({ "logprobs": true, "top_logprobs": 5 })).await.top_logprobs, Some(5));
    assert_eq!(request(json!({ "logprobs": false, "top_logprobs": 0 })).await.top_logprobs, None);
}

#[tokio::test]
async fn fields_that_ask_for_nothing_and_unknown_fields_are_fine() {
    request(json!({
        "tools": [], "tool_choice": "auto", "response_format": { "type": "text" }, "grammar": "", "stop": null,
        "modalities": ["text"], "user": "me", "metadata": { "a": "b" }, "store": true, "logit_bias": null,
        "parallel_tool_calls": true, "service_tier": "auto", "min_tokens": 0, "skip_special_tokens": true,
        "documents": [], "include_stop_str_in_output": false, "no_such_field": [1, 2],
        "stream_options": null, "n": null, "temperature": null, "model": "default", "cache_prompt": true,
        "n_cmpl": 1, "t_max_predict_ms": -1, "adaptive_target": -1.0, "echo": false, "response_fields": [],
    }))
    .await;
}

#[tokio::test]
async fn a_template_that_writes_the_beginning_token_gets_no_second_one() {
    let plain = rendered("{{ messages[0].content }}", json!({})).await;
    let own = rendered("{{ bos_token }}{{ messages[0].content }}", json!({})).await;
    assert_eq!(plain, own);
    assert_eq!(own[1..], tokens("Hi"));
}

#[tokio::test]
async fn parts_become_lines_and_silent_callers_are_accepted() {
    let template = "{% for m in messages %}[{{ m.role }}:{{ m.content }}\
                    {% for c in m.tool_calls or [] %}{{ c.function.arguments | tojson }}{% endfor %}]{% endfor %}";
    let messages = json!({ "messages": [
        { "role": "developer", "content": "s" },
        { "role": "user", "content": [{ "type": "text", "text": "a" }, { "type": "text", "text": "b" }] },
        { "role": "assistant", "content": null, "tool_calls": [
            { "id": "1", "type": "function", "function": { "name": "f", "arguments": "{\"city\":\"Oslo\"}" } },
        ] },
        { "role": "tool", "tool_call_id": "1", "content": "c" },
        { "role": "assistant", "tool_calls": [{ "id": "2", "type": "function", "function": { "name": "f", "arguments": "{}" } }] },
        { "role": "tool", "tool_call_id": "2", "content": [{ "type": "text", "text": "d" }] },
    ] });
    let prompt = rendered(template, messages).await;
    let expected = "[system:s][user:a\nb][assistant:{\"city\": \"Oslo\"}][tool:c][assistant:{}][tool:d]";
    assert_eq!(prompt[1..], tokens(expected));
}

#[tokio::test]
async fn a_template_gets_the_clients_variables() {
    let template = "{{ thinking }}{{ reasoning_effort }}{{ add_generation_prompt }}";
    let extra = json!({ "chat_template_kwargs": { "thinking": 1 }, "reasoning_effort": "low" });
    assert_eq!(rendered(template, extra).await[1..], tokens("1lowTrue"));
}

#[tokio::test]
async fn what_the_operator_shares_is_computed_once_for_all() {
    let system = "You are the assistant of a library. Be brief.";
    let config = ApiConfig { shared_prompts: vec![system.into(), "x".into()], ..ApiConfig::default() };
    let told = |cached| Script::Play(vec![started(cached), says("a"), ends(), done(Finish::Stop, 2)]);
    let harness = Harness::without_model([0, 0, 0, 3, 0, 1000, 1000, 0].map(told), config);
    harness.api.set_model(ModelInfo { context: 4096, ..model_info() }, Arc::new(Bytes)).unwrap();
    let ask = async |extra| {
        let messages =
            json!([{ "role": "system", "content": system }, { "role": "user", "content": "Books?" }]);
        let body = with(json!({ "messages": messages }), extra);
        assert_eq!(harness.chat(body).await.status, 200);
        harness.line.requests()
    };
    let seen = ask(json!({})).await;
    let [own, asked] = &seen[..] else { panic!("{seen:?}") };
    assert_eq!((own.namespace, own.max_tokens), (Some(SHARED), Some(1)));
    assert!(asked.namespace != Some(SHARED) && asked.prompt.starts_with(&own.prompt));
    let behind = &asked.prompt[own.prompt.len()..];
    assert!(behind.starts_with(&tokens("Books?")), "all that comes before what the user says");
    // While the line says that it was of no use it is computed again, and not any more once it serves.
    assert_eq!(ask(json!({})).await.len(), 4);
    assert_eq!(ask(json!({})).await.len(), 6);
    assert_eq!(ask(json!({})).await.len(), 7);
    assert_eq!(ask(json!({ "cache_prompt": false })).await.len(), 8);
}
