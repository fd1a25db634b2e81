//! The results of `paceline bench` as a table for people.

use std::fmt::Write as _;

use super::command::Results;
use super::report::Machine;
use super::setting::Row;

/// Below this share of distinct runs of words a text mostly repeats itself.
const LOOPS: f64 = 0.7;
/// Below this share an answer is not what was asked.
pub(super) const AS_ASKED: f64 = 0.8;

/// The whole table, with what a reader must know to believe it.
pub(super) fn of(machine: &Machine, results: &Results) -> String {
    let mut out = format!("{}\n\n", machine.words());
    let links = results.rows.iter().filter_map(|row| row.link.as_ref().map(String::len));
    let link = links.max().unwrap_or(0).max(4);
    let guess = results.rows.iter().map(|row| row.speculate.to_string().len()).max().unwrap_or(0).max(7);
    let head = format!(
        "{:8} {:>6} {:link$} {:guess$} {:>8} {:>8} {:>8} {:>8} {:>6} {:>5} {:>6} {:>8} {:>8}  {}",
        "workload",
        "stages",
        "link",
        "guesses",
        "ttft ms",
        "ms/tok",
        "tok/s",
        "right/w",
        "in air",
        "stale",
        "tokens",
        "distinct",
        "as asked",
        "faster than the first (90 % interval)"
    );
    line(&mut out, &head);
    for row in &results.rows {
        let text = format!(
            "{:8} {:>6} {:link$} {:guess$} {:8.1} {:8.2} {:8.1} {:>8} {:>6} {:>5} {:6.0} {:8.2} {:>8}  {}",
            row.workload,
            row.stages.map_or_else(|| "-".into(), |n| n.to_string()),
            row.link.as_deref().unwrap_or("-"),
            row.speculate,
            row.ttft_ms,
            row.tpot_ms,
            row.decode_tok_s,
            figure(row.accepted_per_window, 2),
            figure(row.windows_in_flight, 1),
            figure(row.stale_share, 2),
            row.tokens,
            row.distinct_3grams,
            figure(row.as_asked, 2),
            against_first(row, results)
        );
        line(&mut out, &text);
    }
    notes(&mut out, results);
    out
}

fn line(out: &mut String, text: &str) {
    out.push_str(text.trim_end());
    out.push('\n');
}

fn figure(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| "-".into(), |value| format!("{value:.digits$}"))
}

fn against_first(row: &Row, results: &Results) -> String {
    let found = results.comparisons.iter().find(|one| {
        (one.workload, one.stages, &one.link, &one.speculate)
            == (row.workload, row.stages, &row.link, &row.speculate)
    });
    let Some(one) = found else { return String::new() };
    let speed = format!("{:.2}x ({:.2} – {:.2})", one.speed.median, one.speed.low, one.speed.high);
    match one.requests - one.same_texts {
        0 => speed,
        n => format!("{speed}; {n} of {} texts differ", one.requests),
    }
}

/// What could mislead.
fn notes(out: &mut String, results: &Results) {
    let named = |is: &dyn Fn(&Row) -> bool| {
        let mut names: Vec<String> =
            results.rows.iter().filter(|row| is(row)).map(|row| row.workload.to_string()).collect();
        names.dedup();
        names.sort();
        names.dedup();
        names.join(", ")
    };
    let mut note = |names: String, what: &str| {
        if !names.is_empty() {
            // Writing into a String cannot fail.
            let _ = write!(out, "\n{names}: {what}");
        }
    };
    note(
        named(&|row| row.distinct_3grams < LOOPS),
        "the model repeats itself, which guesses well: do not take these for the real thing.",
    );
    note(
        named(&|row| row.as_asked.is_some_and(|share| share < AS_ASKED)),
        "the answers are not what was asked; a better model would be guessed otherwise.",
    );
    note(
        named(&|row| row.change_made.is_some_and(|share| share < 1.0)),
        "not every answer has the change that was asked for.",
    );
    let differ = results.comparisons.iter().any(|one| one.same_texts < one.requests);
    let exact = results.rows.iter().all(|row| row.exact);
    if differ && !exact {
        note("Texts differ".into(), "batch shapes change last bits of logits; --exact keeps them the same.");
    }
    if out.ends_with('.') {
        out.push('\n');
    }
}
