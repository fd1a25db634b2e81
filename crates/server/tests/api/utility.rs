//! Routes about the model, and the metrics.

use insta::assert_snapshot;
use serde_json::{Value, json};
use server::Readiness;

use crate::fake::{Harness, answer};

#[tokio::test]
async fn tokenize_speaks_llama_servers_and_vllms_names() {
    let harness = Harness::new([]);
    let tokens = async |body: Value| harness.post("/tokenize", &body).await.json()["tokens"].clone();
    assert_eq!(tokens(json!({ "content": "Hi" })).await, json!([72, 105]));
    assert_eq!(tokens(json!({ "content": "Hi", "add_special": true })).await, json!([256, 72, 105]));
    assert_eq!(tokens(json!({ "prompt": "Hi" })).await, json!([256, 72, 105]));
    assert_eq!(tokens(json!({ "prompt": "Hi", "add_special_tokens": false })).await, json!([72, 105]));
    assert_eq!(tokens(json!({ "content": "</s>" })).await, json!([257]));
    assert_eq!(
        tokens(json!({ "content": "</s>", "parse_special": false })).await.as_array().unwrap().len(),
        4
    );
    let pieces = tokens(json!({ "content": "é</s>", "with_pieces": true })).await;
    assert_eq!(
        pieces,
        json!([{ "id": 195, "piece": [195] }, { "id": 169, "piece": [169] }, { "id": 257, "piece": "</s>" }])
    );
    let whole = harness.post("/tokenize", &json!({ "prompt": "a", "return_token_strs": true })).await.json();
    assert_eq!(
        whole,
        json!({ "tokens": [256, 97], "count": 2, "max_model_len": 128, "token_strs": ["<s>", "a"] })
    );
}

#[tokio::test]
async fn detokenize_undoes_tokenize() {
    let harness = Harness::new([]);
    let answer = harness.post("/detokenize", &json!({ "tokens": [256, 195, 169, 33] })).await.json();
    assert_eq!(answer, json!({ "content": "<s>é!", "prompt": "<s>é!" }));
    for wrong in
        [json!({}), json!({ "tokens": [258] }), json!({ "tokens": [-1] }), json!({ "tokens": ["a"] })]
    {
        let answer = harness.post("/detokenize", &wrong).await;
        assert_eq!((answer.status, &answer.json()["error"]["param"]), (400, &json!("tokens")), "{wrong}");
    }
}

#[tokio::test]
async fn the_template_can_be_seen_at_work_while_the_line_is_down() {
    let harness = Harness::new([]);
    harness.line.set_readiness(Readiness::NotReady {
        reason: "stage 1 is down".into(),
        progress: None,
        takes_requests: false,
    });
    let body = json!({ "messages": [{ "role": "user", "content": "Hi" }] });
    let answer = harness.post("/apply-template", &body).await.json();
    assert_eq!(answer["prompt"], "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n");
    assert_eq!(harness.get("/props").await.status, 200);
}

#[tokio::test]
async fn properties_are_llama_servers_as_far_as_they_are_true_here() {
    let mut props = Harness::new([]).get("/props").await.json();
    props["default_generation_settings"].as_object_mut().unwrap().remove("params");
    let expected = json!({
        "default_generation_settings": { "n_ctx": 128 },
        "total_slots": 4,
        "model_alias": "toy",
        "model_path": "toy.gguf",
        "modalities": { "vision": false, "video": false, "audio": false },
        "chat_template": props["chat_template"],
        "bos_token": "<s>",
        "eos_token": "</s>",
        "endpoint_slots": false,
        "endpoint_props": false,
        "endpoint_metrics": true,
        "is_sleeping": false,
        "build_info": concat!("paceline ", env!("CARGO_PKG_VERSION")),
    });
    assert_eq!(props, expected);
    assert!(props["chat_template"].as_str().unwrap().contains("<|im_start|>"));
}

#[tokio::test]
async fn the_settings_among_the_properties_are_those_of_a_request_that_says_nothing() {
    let harness = Harness::new([answer("a"), answer("b")]);
    let props = harness.get("/props").await.json();
    let params = props["default_generation_settings"]["params"].clone();
    assert_eq!((&params["temperature"], &params["top_k"]), (&json!(1.0), &json!(0)));
    for extra in [json!({}), params] {
        assert_eq!(harness.chat(extra).await.status, 200);
    }
    let mut requests = harness.line.requests();
    // A seed is drawn for each.
    requests.iter_mut().for_each(|request| request.seed = 0);
    assert_eq!(requests[0], requests[1]);
}

#[tokio::test]
async fn metrics_count_requests_tokens_and_times() {
    let harness = Harness::new([answer("Hello")]);
    harness.chat(json!({})).await;
    harness.chat(json!({ "n": 0 })).await;
    harness.get("/no/such/path").await;
    let answer = harness.get("/metrics").await;
    assert_eq!(answer.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
    let samples: Vec<&str> =
        answer.text.lines().filter(|line| !line.contains("_bucket") && !line.starts_with("# HELP")).collect();
    let mut samples = samples.join("\n").split("# TYPE ").map(str::to_owned).collect::<Vec<_>>();
    // Samples of one family come in no particular order.
    for family in &mut samples {
        let mut lines: Vec<&str> = family.lines().collect();
        if let [_, rest @ ..] = lines.as_mut_slice() {
            rest.sort_unstable();
        }
        *family = lines.join("\n");
    }
    assert_snapshot!(samples.join("\n"));
}

#[tokio::test]
async fn the_openapi_document_names_every_route() {
    let harness = Harness::new([]);
    let document = harness.get("/openapi.json").await.json();
    assert_eq!(document["openapi"], "3.1.0");
    for (path, operations) in document["paths"].as_object().unwrap() {
        for method in operations.as_object().unwrap().keys() {
            let uri = path.replace("{id}", "default");
            let request = axum::http::Request::builder().method(method.to_uppercase().as_str()).uri(&uri);
            let response = harness.send(request.body(axum::body::Body::from("{}")).unwrap()).await;
            assert!(
                ![405, 500].contains(&response.status().as_u16()),
                "{method} {path}: {}",
                response.status()
            );
            let answer = crate::fake::Answer::read(response).await;
            assert!(!answer.text.contains("unknown_url"), "{method} {path}");
        }
    }
    let chat =
        &document["paths"]["/v1/chat/completions"]["post"]["requestBody"]["content"]["application/json"];
    assert_eq!(chat["schema"]["required"], json!(["messages"]));
    assert_eq!(chat["schema"]["properties"]["top_p"]["maximum"], 1.0);
}
