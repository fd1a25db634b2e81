//! One conversation with a server, measured from outside: what it said, and when.

use std::time::Duration;

use anyhow::{Context as _, bail};
use serde_json::{Value, json};

use super::http::{self, Target, now};
use super::workload::{Task, Wanted};

/// One answer and its times.
#[derive(Clone, Debug)]
pub(super) struct Outcome {
    pub(super) text: String,
    /// Tokens of the answer.
    pub(super) n_tokens: u64,
    /// Whether it ended by itself.
    pub(super) ended: bool,
    pub(super) wanted: Wanted,
    /// From sending the request to the first text.
    pub(super) first: Duration,
    /// Per token after the first text; `None` if all came at once.
    pub(super) per_token: Option<Duration>,
    /// What the server says about it, if it does.
    pub(super) inside: Option<Inside>,
}

/// A server's own figures of one request.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Inside {
    pub(super) accepted_per_window: f64,
    /// `None` from a Paceline that does not count them.
    pub(super) windows_in_flight: Option<f64>,
    pub(super) stale_share: f64,
    pub(super) stage_busy: Vec<f64>,
}

/// The name of the first model that the server offers.
pub(super) async fn model(target: &Target) -> anyhow::Result<String> {
    let models = http::get(target, "/v1/models").await?;
    models["data"][0]["id"].as_str().map(str::to_owned).context("the server offers no model")
}

/// Asks one task and listens to the answer, greedily sampled and of at most so many tokens.
pub(super) async fn ask(
    target: &Target,
    model: &str,
    task: Task,
    max_tokens: u16,
) -> anyhow::Result<Outcome> {
    let mut body = json!({
        "model": model,
        "messages": [{ "role": "user", "content": task.prompt }],
        "max_tokens": max_tokens,
        "temperature": 0,
        "stream": true,
        "stream_options": { "include_usage": true },
    });
    if let Some(text) = task.prediction {
        body["prediction"] = json!({ "type": "content", "content": text });
    }
    if let Some(schema) = task.schema {
        let schema: Value = serde_json::from_str(schema)?;
        body["response_format"] = json!({ "type": "json_schema", "json_schema": { "name": "form", "strict": true, "schema": schema } });
    }
    let sent = now();
    let events = http::stream(target, "/v1/chat/completions", &body).await?;
    let mut pieces = Vec::new();
    let (mut finish, mut n_tokens, mut inside) = (None, None, None);
    for (at, event) in &events {
        let choice = &event["choices"][0];
        for part in ["reasoning_content", "content"] {
            let piece = choice["delta"][part].as_str().filter(|piece| !piece.is_empty());
            pieces.extend(piece.map(|piece| (*at, piece)));
        }
        finish = choice["finish_reason"].as_str().or(finish);
        n_tokens = event["usage"]["completion_tokens"].as_u64().or(n_tokens);
        inside = self::inside(&event["timings"]).or(inside);
        if let Some(error) = event["error"]["message"].as_str() {
            bail!("the server broke off: {error}");
        }
    }
    let (Some(&(first, opening)), Some(&(last, _))) = (pieces.first(), pieces.last()) else {
        bail!("the server answered without any text");
    };
    let text: String = pieces.iter().map(|(_, piece)| *piece).collect();
    let n_tokens = n_tokens.unwrap_or(pieces.len() as u64);
    Ok(Outcome {
        per_token: per_token(last - first, n_tokens, opening.len(), text.len()),
        text,
        n_tokens,
        ended: finish == Some("stop"),
        wanted: task.wanted,
        first: first - sent,
        inside,
    })
}

/// Time per token between the first text and the last. A server that guesses may say several tokens at once in the
/// beginning; they took none of this time, and are left out by their share of the text.
pub(super) fn per_token(time: Duration, n_tokens: u64, first_bytes: usize, bytes: usize) -> Option<Duration> {
    let at_first = (n_tokens as f64 * first_bytes as f64 / bytes.max(1) as f64).round().max(1.0);
    let rest = n_tokens as f64 - at_first;
    (rest >= 1.0 && !time.is_zero()).then(|| time.div_f64(rest))
}

/// The figures in `timings`, as Paceline writes them.
fn inside(timings: &Value) -> Option<Inside> {
    let figure = |value: &Value| value.as_f64();
    let sent = figure(&timings["windows"]["sent"])?;
    let stale = figure(&timings["windows"]["stale"])?;
    let took = figure(&timings["predicted_ms"])?;
    let accepted = figure(&timings["draft_n_accepted"])?;
    let stages = timings["stages"].as_array()?;
    let share = |part: f64, whole: f64| if whole > 0.0 { part / whole } else { 0.0 };
    Some(Inside {
        accepted_per_window: share(accepted, sent - stale),
        windows_in_flight: figure(&timings["windows"]["in_flight_mean"]),
        stale_share: share(stale, sent),
        stage_busy: stages
            .iter()
            .filter_map(|stage| figure(&stage["compute_ms"]))
            .map(|ms| share(ms, took).min(1.0))
            .collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_that_come_with_the_first_text_take_no_time() {
        let ms = Duration::from_millis;
        assert_eq!(per_token(ms(100), 11, 4, 44), Some(ms(10)));
        assert_eq!(per_token(ms(100), 20, 30, 60), Some(ms(10)));
        assert_eq!(per_token(ms(100), 1, 4, 4), None);
        assert_eq!(per_token(ms(0), 9, 40, 40), None);
    }

    #[test]
    fn the_servers_figures_are_read_where_there_are_any() {
        let timings = json!({
            "predicted_ms": 100.0, "draft_n_accepted": 24,
            "windows": {"sent": 10, "stale": 2, "in_flight_mean": 2.0}, "stages": [{"compute_ms": 50.0}, {"compute_ms": 25.0}],
        });
        let expected = Inside {
            accepted_per_window: 3.0,
            windows_in_flight: Some(2.0),
            stale_share: 0.2,
            stage_busy: vec![0.5, 0.25],
        };
        assert_eq!(inside(&timings), Some(expected));
        assert_eq!(inside(&Value::Null), None);
    }
}
