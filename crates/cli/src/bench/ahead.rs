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
    for Comparison { workload, speed, .. } in
        results.comparisons.iter().filter(|compared| is_here(compared.stages, &compared.link))
    {
        let least = Bound::AtLeast(promised(*workload, line));
        report.add_surely(format!("{what}, {workload}, auto / plain"), "ratio", *speed, least);
    }
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

    #[test]
    fn plain_decoding_is_what_the_others_are_compared_with() {
        let group = group((2, 10)).unwrap();
        assert!(group[0].strategy.is_off() && !group[1].strategy.is_off());
        assert!(group.iter().all(|setting| setting.link.as_deref() == Some("delay=10ms")));
    }
}
