//! Texts of a real model: what it said to every workload of `paceline bench` (`line-bench --record` writes them).

use std::collections::BTreeSet;

use forecast::{Case, Comparison, Grid, Workload, compare};
use protocol::Token;

use crate::bench::{SERIAL, STAGES, Shape, geometric_mean, is_soak, line};

/// Below this share of distinct runs a text mostly repeats itself, as in the table of `paceline bench`.
const LOOPS: f64 = 0.7;
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

/// Share of the runs of three tokens that occur for the first time.
fn distinct_3grams(tokens: &[Token]) -> f64 {
    let runs: BTreeSet<&[Token]> = tokens.windows(3).collect();
    runs.len() as f64 / tokens.len().saturating_sub(2).max(1) as f64
}

/// Without the texts in which the model repeats itself, which guesses better than real work.
fn cases_that_go_on() -> Vec<Case> {
    let mut cases = cases();
    for case in &mut cases {
        case.workloads.retain(|text| distinct_3grams(&text.answer) >= LOOPS);
    }
    cases.retain(|case| !case.workloads.is_empty());
    cases
}

#[test]
fn four_stages_ten_milliseconds_apart_win_what_was_promised_on_real_texts() {
    let serial = Grid { widths: SERIAL.into(), depths: vec![1] };
    for (one, shape) in STAGES {
        let line = line(4, one, shape, 10.0);
        for (what, cases) in [("all texts", cases()), ("texts without loops", cases_that_go_on())] {
            println!("\n{one} ms, {shape:?}, {what}\n{}", Comparison::head());
            let rows: Vec<_> = cases.iter().map(|case| compare(&line, case, &serial, &|| {})).collect();
            rows.iter().for_each(|row| println!("{row}"));
            let plain = geometric_mean(&rows, Comparison::over_plain);
            let best = geometric_mean(&rows, Comparison::over_serial);
            println!("mean: {plain:.2} x plain, {best:.2} x serial");
            assert!(plain >= 1.8 && best >= 1.1, "{what}: {plain:.2} x plain, {best:.2} x serial");
            let of = |name| rows.iter().find(|row| row.name == name).expect("it was recorded");
            assert!(of("copy").over_serial() >= 1.5, "{}", of("copy"));
            for row in ["copy", "edit"].map(of) {
                assert!(row.over_plain() >= 4.0, "{row}");
            }
        }
    }
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
