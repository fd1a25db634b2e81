//! Bodies and chat templates that mean harm: whatever comes, there is a whole answer, and it is never the server's fault.
//!
//! The checks are those of the fuzz targets, and so are the inputs that they begin with; here they are changed by chance.

#[cfg(test)]
#[expect(dead_code, reason = "nothing is written here: these are by hand")]
#[path = "../../../../fuzz/src/seeds.rs"]
mod files;

use serde_json::Value;
use server::ModelInfo;

use crate::fake::{Harness, model_info};

/// Where bodies go; an input's first byte says to which, from `a`.
const ROUTES: [&str; 9] = [
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/embeddings",
    "/v1/messages/count_tokens",
    "/tokenize",
    "/detokenize",
    "/apply-template",
];

/// Sends the body behind an input's first byte; whether it was a good one.
pub(crate) async fn body(harness: &Harness, input: &[u8]) -> bool {
    let Some((&route, body)) = input.split_first() else { return false };
    let route = ROUTES[usize::from(route.wrapping_sub(b'a')) % ROUTES.len()];
    post(harness, route, body.to_vec()).await
}

/// Writes conversations by a template: a plain one, one with a tool, and one in which it was called.
pub(crate) async fn template(source: &str) -> bool {
    let harness = Harness::answering(ModelInfo { chat_template: Some(source.to_owned()), ..model_info() });
    let mut was_good = false;
    for chat in [PLAIN, WITH_TOOL, CALLED] {
        was_good |= post(&harness, "/v1/chat/completions", chat.as_bytes().to_vec()).await;
    }
    was_good
}

const PLAIN: &str =
    r#"{"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}]}"#;
const WITH_TOOL: &str = r#"{"messages": [{"role": "user", "content": [{"type": "text", "text": "Hi"}]}], "tools":
    [{"type": "function", "function": {"name": "f", "parameters": {"type": "object", "properties": {"x": {"type": "number"}}}}}],
    "chat_template_kwargs": {"enable_thinking": true, "n": 3}}"#;
const CALLED: &str = r#"{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": null, "tool_calls":
    [{"id": "a", "type": "function", "function": {"name": "f", "arguments": "{\"x\": 1}"}}]},
    {"role": "tool", "tool_call_id": "a", "content": "2"}]}"#;

async fn post(harness: &Harness, route: &str, body: Vec<u8>) -> bool {
    let answer = harness.post_bytes(route, body).await;
    match answer.status {
        200 if answer.header("content-type").is_some_and(|kind| kind.starts_with("text/event-stream")) => {
            assert!(answer.events().iter().all(Value::is_object), "{}", answer.text);
            true
        }
        200 => {
            assert!(!answer.json().is_null());
            true
        }
        400..=499 => {
            let error = &answer.json()["error"]["message"];
            assert!(error.as_str().is_some_and(|said| !said.is_empty()), "{}", answer.text);
            false
        }
        other => panic!("{other} to {route}: {}", answer.text),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use proptest::sample::Index;
    use serde_json::json;

    use super::*;

    fn seeds(target: &str) -> Vec<Vec<u8>> {
        files::of(target).into_values().collect()
    }

    fn run<T>(work: impl Future<Output = T>) -> T {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
    }

    /// What clients should not send where something else belongs.
    fn odd() -> impl Strategy<Value = Value> {
        let long = |n: usize| json!("a".repeat(n));
        let deep = (0..100).fold(json!({}), |inner, _| json!({ "properties": [inner] }));
        prop::sample::select(vec![
            Value::Null,
            json!(true),
            json!(0),
            json!(-1),
            json!(1.5),
            json!(1e308),
            json!(u64::MAX),
            json!(i64::MIN),
            json!(""),
            json!("\0"),
            json!("\u{fffd}</s><s>"),
            json!("{\"x\":"),
            json!("auto"),
            long(300),
            json!([]),
            json!({}),
            json!([[]]),
            json!([0, -1, 300]),
            json!(["a", 1]),
            json!(vec![1; 3000]),
            deep,
        ])
    }

    /// Puts something odd in the place of one of the values in a body, all of them counted.
    fn spoil(value: &mut Value, at: &mut usize, with: &Value) {
        if *at == 0 {
            *value = with.clone();
        }
        *at = at.wrapping_sub(1);
        match value {
            Value::Array(list) => list.iter_mut().for_each(|value| spoil(value, at, with)),
            Value::Object(map) => map.values_mut().for_each(|value| spoil(value, at, with)),
            _ => {}
        }
    }

    #[test]
    fn the_bodies_that_fuzzing_begins_with_are_good_ones() {
        let harness = Harness::answering(model_info());
        let bodies = seeds("http_body").into_iter().filter(|seed| !run(body(&harness, seed)));
        let is_good = |seed: &[u8]| std::str::from_utf8(seed).is_ok_and(|source| run(template(source)));
        let templates = seeds("chat_template").into_iter().filter(|seed| !is_good(seed));
        let bad: Vec<_> = bodies.chain(templates).map(|seed| String::from_utf8(seed).unwrap()).collect();
        assert!(bad.is_empty(), "{bad:#?}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(100))]

        #[test]
        fn odd_values_in_bodies_are_answered(
            seed in any::<Index>(),
            changes in prop::collection::vec((any::<Index>(), odd()), 1..4),
        ) {
            let seed = seed.get(&seeds("http_body")).clone();
            let mut value: Value = serde_json::from_slice(&seed[1..]).unwrap();
            for (at, with) in changes {
                spoil(&mut value, &mut at.index(40), &with);
            }
            let input = [&seed[..1], value.to_string().as_bytes()].concat();
            run(body(&Harness::answering(model_info()), &input));
        }

        #[test]
        fn broken_bodies_are_answered(
            seed in any::<Index>(),
            changes in prop::collection::vec((any::<Index>(), any::<u8>()), 0..4),
            cut in any::<Index>(),
        ) {
            let mut input = seed.get(&seeds("http_body")).clone();
            for (at, with) in changes {
                let at = at.index(input.len());
                input[at] = with;
            }
            input.truncate(cut.index(input.len()) + 1);
            run(body(&Harness::answering(model_info()), &input));
        }

        #[test]
        fn parts_of_templates_are_answered(
            pieces in prop::collection::vec((any::<Index>(), any::<Index>(), any::<Index>()), 1..4),
        ) {
            let all = seeds("chat_template");
            let mut source = Vec::new();
            for (seed, from, to) in pieces {
                let seed = seed.get(&all);
                let (from, to) = (from.index(seed.len()), to.index(seed.len()));
                source.extend(&seed[from.min(to)..from.max(to)]);
            }
            run(template(&String::from_utf8_lossy(&source)));
        }
    }
}
