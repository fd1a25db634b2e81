//! What running ahead promises over slow links, on a real model: plain decoding and `auto` answer in turn, for each length
//! of the line and each delay.
//!
//! Owns the promises. What is asked and how it is measured is that of `paceline bench`.

use std::path::Path;

use anyhow::Context as _;

use super::args::{BenchArgs, Subject};
use super::command::{self, Results};
use super::outcomes::Comparison;
use super::report::{Bound, Report};
use super::setting::{Row, Setting, Strategy};
use super::stats::Median;
use super::table::AS_ASKED;
use super::workload::Workload;

/// Stages and the delay of each link, one way, in milliseconds.
const LINES: [(u16, u32); 6] = [(2, 0), (4, 0), (2, 10), (4, 10), (2, 40), (4, 40)];
const ASKED: [Workload; 4] = [Workload::Copy, Workload::Edit, Workload::Chat, Workload::Novel];
const TOKENS: u16 = 96;
/// The form's own line, and the tokens of a filled-in form.
const FORM_LINE: (u16, u32) = (2, 10);
const FORM_TOKENS: u16 = 400;

/// `auto` over plain decoding, where more is promised than not to be slower.
const PROMISES: [(Workload, (u16, u32), f64); 3] =
    [(Workload::Copy, (4, 10), 4.0), (Workload::Copy, (4, 40), 6.0), (Workload::Form, FORM_LINE, 1.5)];
/// Never slower, within what a machine that is shared lets anybody tell.
const NEVER_SLOWER: f64 = 0.95;
/// What a token of plain decoding may take beyond engines and delays.
const BEYOND_MS: f64 = 1.0;

/// Measures every line.
pub(super) async fn measure(model: &Path, rounds: usize, report: &mut Report) -> anyhow::Result<()> {
    let name = model.file_stem().context("a model has a name")?.to_string_lossy().into_owned();
    let rounds = u16::try_from(rounds)?;
    let asking = |groups, workloads, max_tokens| BenchArgs {
        subject: Subject::Model { path: model.to_path_buf(), groups },
        workloads,
        requests: rounds,
        concurrency: 1,
        max_tokens,
        json: None,
        plot: None,
    };
    let groups = LINES.into_iter().map(group).collect::<anyhow::Result<_>>()?;
    let texts = command::measure(&asking(groups, ASKED.to_vec(), TOKENS)).await?;
    let form = asking(vec![group(FORM_LINE)?], vec![Workload::Form], FORM_TOKENS);
    let form = command::measure(&form).await?;
    for line in LINES {
        tell(&name, line, &texts, report);
    }
    tell(&name, FORM_LINE, &form, report);
    Ok(())
}

/// Plain decoding first.
fn group((stages, delay_ms): (u16, u32)) -> anyhow::Result<Vec<Setting>> {
    let setting = |strategy| {
        Ok(Setting {
            stages,
            link: link(delay_ms),
            strategy: Strategy::parse(strategy).map_err(anyhow::Error::msg)?,
            width: None,
            depth: None,
            exact: false,
            threads: Some(1),
            concurrency: 1,
        })
    };
    ["off", "auto"].map(setting).into_iter().collect()
}

fn link(delay_ms: u32) -> Option<String> {
    (delay_ms > 0).then(|| format!("delay={delay_ms}ms"))
}

fn tell(name: &str, line: (u16, u32), results: &Results, report: &mut Report) {
    let (stages, delay_ms) = line;
    let is_here =
        |of: Option<u16>, through: &Option<String>| of == Some(stages) && *through == link(delay_ms);
    let what = format!("{name}, {stages} stages, {delay_ms} ms");
    let rows: Vec<&Row> =
        results.rows.iter().filter(|row| row.speculate.is_off() && is_here(row.stages, &row.link)).collect();
    if rows.is_empty() {
        return;
    }
    let each = |figure: &dyn Fn(&Row) -> f64| Median::of(rows.iter().map(|row| figure(row)).collect());
    let beyond = |row: &Row| beyond_ms(row, f64::from(stages) * f64::from(delay_ms));
    report.add(format!("{what}, plain"), "ms/tok", each(&|row| row.tpot_ms), None);
    let bound = Some(Bound::AtMost(BEYOND_MS));
    report.add(format!("{what}, plain beyond engines and links"), "ms/tok", each(&beyond), bound);
    for compared in results.comparisons.iter().filter(|compared| is_here(compared.stages, &compared.link)) {
        let Comparison { workload, speed, same_texts, requests, speculate, .. } = compared;
        let what = format!("{what}, {workload}");
        report.add_surely(
            format!("{what}, auto / plain"),
            "ratio",
            *speed,
            Bound::AtLeast(promised(*workload, line)),
        );
        let same = Median::of(vec![*same_texts as f64 / *requests as f64]);
        report.add(format!("{what}, auto says what plain says"), "share", same, None);
        let judged = results.rows.iter().find(|row| {
            row.workload == *workload && row.speculate == *speculate && is_here(row.stages, &row.link)
        });
        if let Some(row) = judged {
            tell_texts(&what, row, report);
        }
    }
}

/// Whether the answers are real work: a model that repeats itself is guessed better than one that answers.
fn tell_texts(what: &str, row: &Row, report: &mut Report) {
    if let Some(share) = row.as_asked {
        report.add(format!("{what}, as asked"), "share", Median::of(vec![share]), asked_for(row.workload));
    }
    let distinct = Median::of(vec![row.distinct_3grams]);
    report.add(format!("{what}, distinct runs of three words"), "share", distinct, None);
}

/// How far an answer must be what was asked. A small model can repeat a text; what it cannot do is told, not judged.
fn asked_for(workload: Workload) -> Option<Bound> {
    (workload == Workload::Copy).then_some(Bound::AtLeast(AS_ASKED))
}

/// What a token took beyond the stages' engines and the delays of all links together.
fn beyond_ms(row: &Row, delays_ms: f64) -> f64 {
    row.tpot_ms * (1.0 - row.stage_busy.iter().sum::<f64>()) - delays_ms
}

fn promised(workload: Workload, line: (u16, u32)) -> f64 {
    let promise = PROMISES.iter().find(|(asked, on, _)| *asked == workload && *on == line);
    promise.map_or(NEVER_SLOWER, |(.., least)| *least)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_line_is_promised_not_to_be_slower_and_some_more() {
        assert_eq!(promised(Workload::Novel, (4, 40)), 0.95);
        assert_eq!(promised(Workload::Copy, (4, 40)), 6.0);
        assert_eq!(promised(Workload::Copy, (2, 40)), 0.95);
        assert!(PROMISES.iter().all(|(_, line, _)| LINES.contains(line)));
    }

    fn row(workload: Workload, (stages, delay_ms): (u16, u32), as_asked: Option<f64>) -> Row {
        Row {
            workload,
            stages: Some(stages),
            link: link(delay_ms),
            speculate: Strategy::parse("auto").unwrap(),
            width: None,
            depth: None,
            exact: false,
            concurrency: 1,
            requests: 8,
            ttft_ms: 80.0,
            tpot_ms: 4.0,
            decode_tok_s: 250.0,
            total_tok_s: 200.0,
            accepted_per_window: None,
            windows_in_flight: None,
            stale_share: None,
            stage_busy: Vec::new(),
            text_sha256: String::new(),
            tokens: 96.0,
            distinct_3grams: 0.1,
            as_asked,
            change_made: None,
        }
    }

    /// Whether a run is good in which `auto` is so many times as fast as plain decoding, and answers so far as asked.
    fn is_met(workload: Workload, line: (u16, u32), speed: f64, as_asked: Option<f64>) -> bool {
        let auto = row(workload, line, as_asked);
        let off = Strategy::parse("off").unwrap();
        // Half of the time in engines, and the rest on the links.
        let tpot_ms = 2.0 * f64::from(line.0) * f64::from(line.1);
        let plain = Row { speculate: off.clone(), tpot_ms, stage_busy: vec![0.5], ..auto.clone() };
        let compared = Comparison {
            workload,
            stages: auto.stages,
            link: auto.link.clone(),
            speculate: auto.speculate.clone(),
            against: off,
            speed: Median::of(vec![speed]),
            same_texts: 8,
            requests: 8,
        };
        let results = Results { rows: vec![plain, auto], comparisons: vec![compared] };
        let mut report = Report::new("test");
        tell("model", line, &results, &mut report);
        report.is_met()
    }

    #[test]
    fn a_copy_that_loops_misses_its_bound() {
        let is_met = |workload, as_asked| is_met(workload, (4, 10), 15.0, as_asked);
        assert!(is_met(Workload::Copy, Some(0.9)) && !is_met(Workload::Copy, Some(0.3)));
        assert!(is_met(Workload::Edit, Some(0.3)) && is_met(Workload::Novel, None));
    }

    #[test]
    fn a_form_that_is_not_half_again_as_fast_misses_its_bound() {
        assert!(is_met(Workload::Form, FORM_LINE, 1.5, None));
        assert!(
            !is_met(Workload::Form, FORM_LINE, 1.4, None) && is_met(Workload::Chat, FORM_LINE, 1.4, None)
        );
    }

    #[test]
    fn plain_decoding_is_what_the_others_are_compared_with() {
        let group = group((2, 10)).unwrap();
        assert!(group[0].strategy.is_off() && !group[1].strategy.is_off());
        assert!(group.iter().all(|setting| setting.link.as_deref() == Some("delay=10ms")));
    }
}
