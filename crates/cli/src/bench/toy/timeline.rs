//! One request on a toy line as a picture: stages as rows, windows as bars, and what was computed for nothing.

use std::path::{Path, PathBuf};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use forecast::Kind;
use spec::Speculate;

use super::engine::{Call, Log, SharedLog};
use super::grid::times;
use super::line::{Heard, ToyLine, ToyPlan};
use crate::bench::plots;
use crate::bench::svg::{Anchor, COLOURS, GREY, Svg};

/// The line of the picture.
const STAGES: u16 = 4;
const DELAY: Duration = Duration::from_millis(10);
/// Most of this text has been there before, and here and there a word is new: guesses are right and wrong.
const TEXT: Kind = Kind::Edit;
const SEED: u64 = 2;
const TOKENS: usize = 240;
/// What is shown, from the middle of the answer on: by then it is known how well guessing does.
const SHOWN: Duration = Duration::from_millis(600);

const WIDTH: f64 = 1240.0;
const LEFT: f64 = 70.0;
const TOP: f64 = 64.0;
const LANE: f64 = 34.0;
const BAR: f64 = 22.0;

/// Runs the request without guesses and with them, and draws both into the folder.
pub(in crate::bench) async fn draw(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let mut written = Vec::new();
    for (name, speculate) in [("off", Speculate::off()), ("auto", Speculate::auto())] {
        let plan = ToyPlan { n_stages: STAGES, times: times(), delay: DELAY, speculate };
        let log = SharedLog::default();
        let workloads = Arc::new(vec![TEXT.workload(SEED, TOKENS)]);
        let line = ToyLine::form(&plan, workloads, Some(Arc::clone(&log))).await?;
        let heard = line.answer(0).await?;
        let log = std::mem::take(&mut *log.lock().unwrap_or_else(PoisonError::into_inner));
        written.push(plots::save(folder, &format!("timeline-{name}.svg"), &picture(name, &log, &heard))?);
    }
    Ok(written)
}

/// A call of a window, and whether anything came of it.
struct Bar<'a> {
    call: &'a Call,
    is_live: bool,
}

fn picture(guesses: &str, log: &Log, heard: &Heard) -> String {
    let Some(&(begin, _)) = heard.tokens.get(heard.tokens.len() / 2) else {
        return Svg::new(WIDTH, TOP).finish();
    };
    let is_shown = |at: Instant| at >= begin && at < begin + SHOWN;
    let bars: Vec<Bar<'_>> = log
        .calls
        .iter()
        .filter(|call| is_shown(call.start))
        .map(|call| Bar { call, is_live: log.live.contains(&call.serial) })
        .collect();
    let tokens: Vec<(Instant, usize)> =
        heard.tokens.iter().copied().filter(|(at, _)| is_shown(*at)).collect();
    let ends = bars.iter().map(|bar| bar.call.end).chain(tokens.iter().map(|(at, _)| *at));
    let span = ends.max().map_or(SHOWN, |end| end.saturating_duration_since(begin)).max(SHOWN / 4);
    let scale = (WIDTH - LEFT - 16.0) / span.as_secs_f64();
    let x_of = |at: Instant| LEFT + at.saturating_duration_since(begin).as_secs_f64() * scale;
    let height = TOP + LANE * (f64::from(STAGES) + 1.0) + 44.0;
    let mut svg = Svg::new(WIDTH, height);
    head(&mut svg, guesses, &bars, &tokens);
    axis(&mut svg, span, scale, height - 34.0);
    svg.text((LEFT - 8.0, TOP + 16.0), 12, Anchor::End, "front");
    for (at, n) in &tokens {
        // A taller line where more tokens came at once.
        let tall = (4.0 + 1.2 * *n as f64).min(BAR);
        svg.line((x_of(*at), TOP + BAR), (x_of(*at), TOP + BAR - tall), COLOURS[3]);
    }
    for stage in 0..usize::from(STAGES) {
        let y = TOP + LANE * (stage as f64 + 1.0);
        svg.text((LEFT - 8.0, y + 16.0), 12, Anchor::End, &format!("stage {stage}"));
    }
    for Bar { call, is_live } in &bars {
        let y = TOP + LANE * (call.stage as f64 + 1.0);
        let (x, end) = (x_of(call.start), x_of(call.end));
        // More rows, a higher bar.
        let tall = BAR * (0.35 + 0.65 * (call.n_rows as f64 / 8.0).min(1.0));
        let colour = if *is_live { COLOURS[1] } else { COLOURS[2] };
        svg.bar((x, y + BAR - tall), (end - x, tall), colour, !is_live);
    }
    svg.finish()
}

fn head(svg: &mut Svg, guesses: &str, bars: &[Bar<'_>], tokens: &[(Instant, usize)]) {
    let n_tokens: usize = tokens.iter().map(|(_, n)| n).sum();
    let title = format!(
        "One request on {STAGES} stages, {} apart, guesses {guesses}: {n_tokens} tokens of an edited text",
        plots::ms(DELAY)
    );
    svg.text((12.0, 22.0), 15, Anchor::Start, &title);
    let stale = bars.iter().filter(|bar| !bar.is_live).count();
    let mut x = 12.0;
    let legend = [
        (COLOURS[3], false, "tokens heard (higher: more at once)".to_owned()),
        (COLOURS[1], false, "window with a verdict (higher: more rows)".to_owned()),
        (COLOURS[2], true, format!("stale, computed for nothing ({stale} of {} calls)", bars.len())),
    ];
    for (colour, is_hollow, words) in legend {
        svg.bar((x, 36.0), (14.0, 10.0), colour, is_hollow);
        svg.text((x + 20.0, 45.0), 12, Anchor::Start, &words);
        x += 20.0 + 6.6 * words.len() as f64 + 20.0;
    }
}

fn axis(svg: &mut Svg, span: Duration, scale: f64, y: f64) {
    svg.line((LEFT, y), (WIDTH - 16.0, y), GREY);
    let step = crate::bench::svg::tick(span.as_secs_f64() * 500.0) / 1e3;
    let n = (span.as_secs_f64() / step) as usize;
    for at in (0..=n).map(|n| n as f64 * step) {
        let x = LEFT + at * scale;
        svg.line((x, y), (x, y + 5.0), GREY);
        svg.text((x, y + 18.0), 11, Anchor::Middle, &format!("{:.0} ms", at * 1e3));
    }
}
