//! Texts of a real model: what it said to every workload of `paceline bench` (`line-bench --record` writes them).

use forecast::{Case, Comparison, Grid, Workload, compare};
use protocol::Token;

use crate::bench::{Shape, geometric_mean, is_soak, line};

const TEXTS: &str = include_str!("../texts/recorded.jsonl");
/// `auto` over plain decoding at least.
const OVER_PLAIN: f64 = 0.98;
/// `auto` over the best fixed choice at least: the geometric mean over all kinds of work on a line, and each of them.
/// These answers are short, and the best of many choices in hindsight owes something to chance.
const OVER_FIXED: f64 = 0.95;
const OVER_FIXED_EACH: f64 = 0.92;

fn tokens(value: &serde_json::Value) -> Option<Vec<Token>> {
    let list = value.as_array()?;
    Some(list.iter().map(|id| Token(id.as_i64().expect("a token is a number") as i32)).collect())
}

/// One case a kind of work: its texts, one after the other.
fn cases() -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    for text in TEXTS.lines() {
        let text: serde_json::Value = serde_json::from_str(text).expect("a text a line");
        let name = text["name"].as_str().expect("a text has a name");
        let kind = name.split(' ').next().expect("a name has a first word");
        let workload = Workload {
            name: kind.to_owned(),
            prompt: tokens(&text["prompt"]).expect("a prompt"),
            answer: tokens(&text["answer"]).expect("an answer"),
            prediction: tokens(&text["prediction"]),
            agreement: None,
        };
        match cases.iter_mut().find(|case| case.name == kind) {
            Some(case) => case.workloads.push(workload),
            None => cases.push(Case { name: kind.to_owned(), workloads: vec![workload], clients: 1 }),
        }
    }
    cases
}

#[test]
fn auto_is_never_slower_than_plain_and_near_the_best_fixed_choice_on_real_texts() {
    let cases = cases();
    assert_eq!(cases.len(), 7, "every workload is there");
    let depths: &[u32] = if is_soak() { &[1, 2, 4, 6, 8, 12, 16, 32] } else { &[1, 4, 16] };
    let widths: &[u32] = if is_soak() { &[1, 2, 4, 8, 16] } else { &[1, 4, 16] };
    let grid = Grid { widths: widths.into(), depths: depths.into() };
    let all_shapes = [(5.0, Shape::Stairs), (5.0, Shape::PerRow(1.0)), (3.0, Shape::PerRow(0.02))];
    let shapes = if is_soak() { &all_shapes[..] } else { &all_shapes[..1] };
    let mut losers = Vec::new();
    for n_stages in [2, 4] {
        for delay in [0.0, 10.0, 40.0] {
            for &(one, shape) in shapes {
                let line = line(n_stages, one, shape, delay);
                let what = format!("{n_stages} stages of {one} ms {shape:?}, {delay} ms apart");
                println!("\n{what}\n{}", Comparison::head());
                let rows: Vec<_> = cases.iter().map(|case| compare(&line, case, &grid, &|| {})).collect();
                for row in &rows {
                    println!("{row}");
                    if row.over_plain() < OVER_PLAIN || row.over_fixed() < OVER_FIXED_EACH {
                        losers.push(format!("{what}: {row}"));
                    }
                }
                let mean = geometric_mean(&rows, Comparison::over_fixed);
                if mean < OVER_FIXED {
                    losers.push(format!("{what}: {mean:.3} of the best fixed choices on average"));
                }
            }
        }
    }
    assert!(losers.is_empty(), "{losers:#?}");
}
