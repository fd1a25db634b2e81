//! From many answers to figures: rows of medians, and how much faster one setting is than another.

use super::client::{Inside, Outcome};
use super::judge;
use super::setting::{Row, Setting, Strategy};
use super::stats::{Median, quantile};
use super::workload::Workload;
use serde::Serialize;

/// What one setting did with one workload at once.
#[derive(Clone, Debug)]
pub(super) struct Turn {
    pub(super) outcomes: Vec<Outcome>,
    /// Tokens of all answers over the time until the last of them ended.
    pub(super) total_tok_s: f64,
}

impl Turn {
    /// Median time per token in milliseconds; `None` if every answer came at once.
    fn tpot_ms(&self) -> Option<f64> {
        median(self.outcomes.iter().filter_map(tpot_ms))
    }
}

/// One setting against the first one of its group, turn by turn.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Comparison {
    pub(super) workload: Workload,
    pub(super) stages: Option<u16>,
    pub(super) link: Option<String>,
    pub(super) speculate: Strategy,
    pub(super) against: Strategy,
    /// Decoding speed over that of the other.
    pub(super) speed: Median,
    /// Requests whose text was that of the other, to the byte.
    pub(super) same_texts: usize,
    pub(super) requests: usize,
}

/// The row of a setting's turns with one workload; at least one turn.
pub(super) fn row(workload: Workload, setting: Option<&Setting>, turns: &[Turn]) -> Row {
    let outcomes: Vec<&Outcome> = turns.iter().flat_map(|turn| &turn.outcomes).collect();
    let of = |figure: &dyn Fn(&Outcome) -> Option<f64>| median(outcomes.iter().filter_map(|one| figure(one)));
    let inside = |figure: fn(&Inside) -> f64| of(&|one| one.inside.as_ref().map(figure));
    let n_stages =
        outcomes.iter().filter_map(|one| Some(one.inside.as_ref()?.stage_busy.len())).max().unwrap_or(0);
    let busy = |at: usize| of(&|one| one.inside.as_ref()?.stage_busy.get(at).copied()).unwrap_or(0.0);
    let tpot = of(&tpot_ms).unwrap_or(0.0);
    let changes: Vec<bool> =
        outcomes.iter().filter_map(|one| judge::change_made(&one.text, &one.wanted)).collect();
    Row {
        workload,
        stages: setting.map(|setting| setting.stages),
        link: setting.and_then(|setting| setting.link.clone()),
        speculate: setting.map_or_else(Strategy::of_server, |setting| setting.strategy.clone()),
        width: setting.filter(|setting| !setting.strategy.is_off()).and_then(|setting| setting.width),
        depth: setting.filter(|setting| !setting.strategy.is_off()).and_then(|setting| setting.depth),
        exact: setting.is_some_and(|setting| setting.exact),
        concurrency: turns[0].outcomes.len() as u16,
        requests: outcomes.len(),
        ttft_ms: rounded(of(&|one| Some(one.first.as_secs_f64() * 1e3)).unwrap_or(0.0)),
        tpot_ms: rounded(tpot),
        decode_tok_s: rounded(if tpot > 0.0 { 1e3 / tpot } else { 0.0 }),
        total_tok_s: rounded(median(turns.iter().map(|turn| turn.total_tok_s)).unwrap_or(0.0)),
        accepted_per_window: inside(|inside| inside.accepted_per_window).map(rounded),
        windows_in_flight: of(&|one| one.inside.as_ref()?.windows_in_flight).map(rounded),
        stale_share: inside(|inside| inside.stale_share).map(rounded),
        stage_busy: (0..n_stages).map(|at| rounded(busy(at))).collect(),
        text_sha256: judge::sha256(outcomes.iter().map(|one| one.text.as_str())),
        tokens: of(&|one| Some(one.n_tokens as f64)).unwrap_or(0.0),
        distinct_3grams: rounded(of(&|one| Some(judge::distinct_3grams(&one.text))).unwrap_or(1.0)),
        as_asked: of(&|one| judge::as_asked(&one.text, &one.wanted, one.ended)).map(rounded),
        change_made: (!changes.is_empty())
            .then(|| rounded(changes.iter().filter(|made| **made).count() as f64 / changes.len() as f64)),
    }
}

/// One setting's turns against another's; `None` if too little was said to have a speed.
pub(super) fn compare(
    workload: Workload,
    (one, turns): (&Setting, &[Turn]),
    (other, base): (&Setting, &[Turn]),
) -> Option<Comparison> {
    let ratios: Vec<f64> =
        turns.iter().zip(base).filter_map(|(turn, base)| Some(base.tpot_ms()? / turn.tpot_ms()?)).collect();
    if ratios.is_empty() {
        return None;
    }
    let texts = |turns: &[Turn]| -> Vec<String> {
        turns.iter().flat_map(|turn| &turn.outcomes).map(|one| one.text.clone()).collect()
    };
    let (mine, others) = (texts(turns), texts(base));
    Some(Comparison {
        workload,
        stages: Some(one.stages),
        link: one.link.clone(),
        speculate: one.strategy.clone(),
        against: other.strategy.clone(),
        speed: Median::of(ratios),
        same_texts: mine.iter().zip(&others).filter(|(a, b)| a == b).count(),
        requests: mine.len(),
    })
}

fn tpot_ms(outcome: &Outcome) -> Option<f64> {
    outcome.per_token.map(|time| time.as_secs_f64() * 1e3)
}

fn median(values: impl Iterator<Item = f64>) -> Option<f64> {
    let mut values: Vec<f64> = values.collect();
    values.sort_by(f64::total_cmp);
    (!values.is_empty()).then(|| quantile(&values, 0.5))
}

/// To a thousandth: what is beyond is noise, and files are read by people too.
fn rounded(value: f64) -> f64 {
    (value * 1e3).round() / 1e3
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::bench::workload::Wanted;

    fn turn(text: &str, ms: u64) -> Turn {
        let outcome = Outcome {
            text: text.into(),
            n_tokens: 3,
            ended: true,
            wanted: Wanted::Anything,
            first: Duration::from_millis(50),
            per_token: Some(Duration::from_millis(ms)),
            inside: None,
        };
        Turn { outcomes: vec![outcome], total_tok_s: 7.0 }
    }

    fn setting(strategy: &str) -> Setting {
        Setting {
            stages: 2,
            link: None,
            strategy: Strategy::parse(strategy).unwrap(),
            width: None,
            depth: None,
            exact: false,
            threads: None,
            concurrency: 1,
        }
    }

    #[test]
    fn a_row_is_the_median_of_its_requests() {
        let turns = [turn("a", 10), turn("b", 20), turn("c", 90)];
        let row = row(Workload::Chat, Some(&setting("auto")), &turns);
        assert_eq!((row.requests, row.tpot_ms, row.decode_tok_s, row.ttft_ms), (3, 20.0, 50.0, 50.0));
        assert_eq!((row.total_tok_s, row.stale_share, row.as_asked), (7.0, None, None));
    }

    #[test]
    fn settings_are_compared_turn_by_turn() {
        let (auto, off) = (setting("auto"), setting("off"));
        let (mine, base) = ([turn("a", 10), turn("b", 20)], [turn("a", 20), turn("x", 60)]);
        let found = compare(Workload::Chat, (&auto, &mine), (&off, &base)).unwrap();
        assert_eq!((found.speed.median, found.speed.low, found.speed.high), (2.5, 2.0, 3.0));
        assert_eq!((found.same_texts, found.requests), (1, 2));
    }
}
