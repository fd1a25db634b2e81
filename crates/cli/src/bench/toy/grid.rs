//! Delays, lengths and ways to guess, each measured on a toy line and predicted by `forecast` for the same times.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use forecast::{Job, Kind, LineModel, StageModel, Workload};
use serde::Serialize;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::engine::SLOTS;
use super::extent::{Extent, Way};
use super::line::{ToyLine, ToyPlan};
use crate::bench::plots;
use crate::bench::report::{Bound, Report};
use crate::bench::stats::Median;
use crate::bench::svg::{self, Panel, Series};

/// Each stage takes 5 ms for a row and 15 % of it for each more: about a quarter of a 7B model on a good CPU.
const ONE_ROW: Duration = Duration::from_millis(5);
const PER_ROW: f64 = 0.15;
/// Seed of the texts.
const SEED: u64 = 2;
/// Lines that run at the same time. Their engines sleep, but their links want a processor now and then.
const LINES_AT_ONCE: usize = 16;
/// Measured and predicted speed may differ by this much.
const OFF_BY_AT_MOST: f64 = 0.10;
/// At least this share of what is measured does.
const MOST: f64 = 0.95;
/// `auto` over the best fixed width and depth of the sweep, measured again.
const OVER_FIXED: f64 = 0.95;

/// One text on one line, measured and predicted; tokens per second while it decodes.
#[derive(Clone, Debug, Serialize)]
struct Cell {
    stages: u16,
    delay_ms: u64,
    way: Way,
    workload: String,
    measured: f64,
    predicted: f64,
    /// Share of the windows that a wrong guess made useless.
    stale_share: f64,
    /// Whether it was measured once more because it was the best of several.
    again: bool,
}

/// A line to be formed and measured.
#[derive(Clone, Copy, Debug)]
struct Task {
    stages: u16,
    delay_ms: u64,
    way: Way,
}

/// Everything that was measured.
#[derive(Clone, Debug, Serialize)]
pub(in crate::bench) struct Grid {
    cells: Vec<Cell>,
}

/// Runs the grid.
pub(in crate::bench) async fn measure(extent: &Extent, report: &mut Report) -> anyhow::Result<Grid> {
    let workloads = Arc::new(Kind::ALL.map(|kind| kind.workload(SEED, extent.n_tokens)).to_vec());
    let mut tasks = Vec::new();
    for &stages in &extent.stages {
        for &delay_ms in &extent.delays_ms {
            let fixed = |width, depth| Way::Fixed { width, depth };
            let serial = extent.serial.iter().map(|&width| fixed(width, 1));
            let deep = extent.deep.iter().map(|&(width, depth)| fixed(width, depth));
            let ways = [Way::Off, Way::Auto].into_iter().chain(serial).chain(deep);
            tasks.extend(ways.map(|way| Task { stages, delay_ms, way }));
        }
    }
    // The slowest first, so that none is left over in the end.
    tasks.sort_by_key(|task| std::cmp::Reverse(u64::from(task.stages) * (task.delay_ms + 5)));
    let all: Vec<usize> = (0..workloads.len()).collect();
    let runs = tasks.into_iter().map(|task| (task, all.clone())).collect();
    let mut grid = Grid { cells: run(runs, &workloads, false).await? };
    // The best of many is partly the luckiest: it is measured again before anything is compared with it.
    let again = grid.winners();
    grid.cells.extend(run(again, &workloads, true).await?);
    // Lines end in any order; the texts of one are in order already.
    grid.cells.sort_by_key(|cell| (cell.stages, cell.delay_ms, cell.way, cell.again));
    grid.tell(extent, report);
    Ok(grid)
}

/// Measures texts on lines, some lines at a time.
async fn run(
    tasks: Vec<(Task, Vec<usize>)>,
    workloads: &Arc<Vec<Workload>>,
    again: bool,
) -> anyhow::Result<Vec<Cell>> {
    let room = Arc::new(Semaphore::new(LINES_AT_ONCE));
    let total = tasks.len();
    let mut running = JoinSet::new();
    for (task, texts) in tasks {
        let (room, workloads) = (Arc::clone(&room), Arc::clone(workloads));
        running.spawn(async move {
            let _place = room.acquire_owned().await?;
            cells(task, texts, &workloads, again).await
        });
    }
    let mut cells = Vec::new();
    let mut done = 0;
    while let Some(finished) = running.join_next().await {
        cells.extend(finished??);
        done += 1;
        eprint!("\rgrid: line {done} of {total} ");
    }
    eprintln!();
    Ok(cells)
}

async fn cells(
    task: Task,
    texts: Vec<usize>,
    workloads: &Arc<Vec<Workload>>,
    again: bool,
) -> anyhow::Result<Vec<Cell>> {
    let delay = Duration::from_millis(task.delay_ms);
    let plan = ToyPlan { n_stages: task.stages, times: times(), delay, speculate: task.way.speculate() };
    let line = ToyLine::form(&plan, Arc::clone(workloads), None).await?;
    let apart = apart(task.stages, task.delay_ms);
    let model = LineModel { n_slots: SLOTS, ..LineModel::even(task.stages, times(), apart) };
    let mut cells: Vec<Cell> = Vec::new();
    for at in texts {
        let workload = &workloads[at];
        // Without guesses every text takes the same time: the first one stands for all.
        let measured = match (task.way, cells.first()) {
            (Way::Off, Some(Cell { measured, predicted, .. })) => (*measured, *predicted, 0.0),
            _ => {
                let heard = line.answer(at).await.with_context(|| format!("{task:?}, {}", workload.name))?;
                let timings = &heard.timings;
                let rest = f64::from(timings.generated_tokens.saturating_sub(1));
                let stale = f64::from(timings.stale_windows) / f64::from(timings.windows.max(1));
                let job = Job { workloads: std::slice::from_ref(workload), clients: 1 };
                let predicted = forecast::run(&model, job, &plan.speculate).decode_rate;
                (rest / timings.generation_time.as_secs_f64(), predicted, stale)
            }
        };
        let (measured, predicted, stale_share) = measured;
        cells.push(Cell {
            stages: task.stages,
            delay_ms: task.delay_ms,
            way: task.way,
            workload: workload.name.clone(),
            measured,
            predicted,
            stale_share,
            again,
        });
    }
    Ok(cells)
}

/// What lies between two stages. The front is at the first one: where that is the only one, nothing travels.
fn apart(stages: u16, delay_ms: u64) -> Duration {
    Duration::from_millis(if stages == 1 { 0 } else { delay_ms })
}

pub(super) fn times() -> StageModel {
    StageModel::linear(ONE_ROW, PER_ROW)
}

/// One text on lines of one length and delay.
struct Place<'a> {
    stages: u16,
    delay_ms: u64,
    workload: &'a str,
    off: &'a Cell,
    auto: &'a Cell,
    /// The best with one window under way, measured again.
    serial: Option<&'a Cell>,
    /// The best of all fixed ones, measured again.
    fixed: Option<&'a Cell>,
}

impl Place<'_> {
    fn over_plain(&self) -> f64 {
        self.auto.measured / self.off.measured
    }

    fn over(&self, other: Option<&Cell>) -> Option<f64> {
        other.map(|other| self.auto.measured / other.measured.max(self.off.measured))
    }
}

impl Grid {
    /// The best serial window and the best fixed choice of every text on every line.
    fn winners(&self) -> Vec<(Task, Vec<usize>)> {
        let mut again: Vec<(Task, Vec<usize>)> = Vec::new();
        for auto in self.cells.iter().filter(|cell| cell.way == Way::Auto) {
            let text = Kind::ALL.iter().position(|kind| kind.name() == auto.workload).unwrap_or(0);
            let best = |serial: bool| {
                let all = self.like(auto, false).filter(|cell| cell.way.is_serial() || !serial);
                let all = all.filter(|cell| matches!(cell.way, Way::Fixed { .. }));
                all.max_by(|a, b| a.measured.total_cmp(&b.measured)).map(|cell| cell.way)
            };
            for way in [best(true), best(false)].into_iter().flatten() {
                let same = |(task, _): &&mut (Task, Vec<usize>)| {
                    (task.stages, task.delay_ms, task.way) == (auto.stages, auto.delay_ms, way)
                };
                match again.iter_mut().find(same) {
                    Some((_, texts)) if texts.contains(&text) => {}
                    Some((_, texts)) => texts.push(text),
                    None => {
                        let task = Task { stages: auto.stages, delay_ms: auto.delay_ms, way };
                        again.push((task, vec![text]));
                    }
                }
            }
        }
        again
    }

    fn has_deep(&self) -> bool {
        self.cells.iter().any(|cell| matches!(cell.way, Way::Fixed { depth: 2.., .. }))
    }

    fn like<'a>(&'a self, one: &'a Cell, again: bool) -> impl Iterator<Item = &'a Cell> {
        self.cells.iter().filter(move |cell| {
            cell.again == again
                && (cell.stages, cell.delay_ms, &cell.workload) == (one.stages, one.delay_ms, &one.workload)
        })
    }

    fn places(&self) -> Vec<Place<'_>> {
        let place = |auto| {
            let off = self.like(auto, false).find(|cell| cell.way == Way::Off)?;
            let best = |serial: bool| {
                let all = self.like(auto, true).filter(move |cell| cell.way.is_serial() || !serial);
                all.max_by(|a, b| a.measured.total_cmp(&b.measured))
            };
            let serial = best(true);
            // Without deep windows the best of all is the best serial one.
            let fixed = best(false).filter(|_| self.has_deep());
            let Cell { stages, delay_ms, workload, .. } = auto;
            Some(Place { stages: *stages, delay_ms: *delay_ms, workload, off, auto, serial, fixed })
        };
        self.cells.iter().filter(|cell| cell.way == Way::Auto && !cell.again).filter_map(place).collect()
    }

    /// The table for people.
    pub(in crate::bench) fn print(&self) {
        println!(
            "\nToy line over real sockets, tokens per second, measured (predicted): {} ms a row and stage, {:.0} % of \
             it for each row more",
            ONE_ROW.as_millis(),
            100.0 * PER_ROW
        );
        println!(
            "{:>6} {:>8}  {:10} {:>16} {:>24} {:>28} {:>16}  {:>7} {:>8} {:>7} {:>6}",
            "stages",
            "delay ms",
            "text",
            "off",
            "best serial (w)",
            "best fixed (w, d)",
            "auto",
            "x off",
            "x serial",
            "x fixed",
            "stale"
        );
        let both = |cell: &Cell| format!("{:.1} ({:.1})", cell.measured, cell.predicted);
        let ratio = |value: Option<f64>| value.map_or_else(|| "-".into(), |value| format!("{value:.2}"));
        for place in self.places() {
            let way = |cell: Option<&Cell>| match cell {
                Some(cell @ Cell { way: Way::Fixed { width, depth: 1 }, .. }) => {
                    format!("{} {width:>2}", both(cell))
                }
                Some(cell @ Cell { way: Way::Fixed { width, depth }, .. }) => {
                    format!("{} {width:>2}, {depth:>2}", both(cell))
                }
                _ => "-".into(),
            };
            println!(
                "{:>6} {:>8}  {:10} {:>16} {:>24} {:>28} {:>16}  {:>7.2} {:>8} {:>7} {:>6.2}",
                place.stages,
                place.delay_ms,
                place.workload,
                both(place.off),
                way(place.serial),
                way(place.fixed),
                both(place.auto),
                place.over_plain(),
                ratio(place.over(place.serial)),
                ratio(place.over(place.fixed)),
                place.auto.stale_share
            );
        }
    }

    /// What was promised of such lines, as far as it was measured.
    fn tell(&self, extent: &Extent, report: &mut Report) {
        let off_by = |cell: &Cell| (cell.measured / cell.predicted - 1.0).abs();
        let name = "toy line, difference between measured and predicted".to_owned();
        // Without guesses one text stands for all.
        let own = |cell: &&Cell| cell.way != Way::Off || cell.workload == Kind::ALL[0].name();
        let values: Vec<f64> = self.cells.iter().filter(own).map(off_by).collect();
        // As many as a median takes.
        for part in values.chunks(1000) {
            report.add(name.clone(), "share", Median::of(part.to_vec()), Some(Bound::AtMost(OFF_BY_AT_MOST)));
        }
        let within = values.iter().filter(|off_by| **off_by <= OFF_BY_AT_MOST).count();
        let share = Median::of(vec![within as f64 / values.len() as f64]);
        report.add(
            format!("toy line, cells that differ by at most {OFF_BY_AT_MOST}"),
            "share",
            share,
            Some(Bound::AtLeast(MOST)),
        );
        let largest = Median::of(vec![values.iter().copied().fold(0.0, f64::max)]);
        report.add(format!("{name}, the largest"), "share", largest, None);
        let places = self.places();
        for &stages in &extent.stages {
            for &delay_ms in &extent.delays_ms {
                let here: Vec<&Place<'_>> =
                    places.iter().filter(|p| (p.stages, p.delay_ms) == (stages, delay_ms)).collect();
                tell_line(&here, (stages, delay_ms), report);
            }
        }
    }

    /// One picture for each length: tokens per second over the delay.
    pub(in crate::bench) fn draw(&self, folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
        let places = self.places();
        let mut lengths: Vec<u16> = places.iter().map(|place| place.stages).collect();
        lengths.dedup();
        let mut delays: Vec<u64> = places.iter().map(|place| place.delay_ms).collect();
        delays.sort_unstable();
        delays.dedup();
        let mut written = Vec::new();
        for stages in lengths {
            let panel = |kind: &Kind| {
                let at = |delay_ms: u64| {
                    places
                        .iter()
                        .find(|p| (p.stages, p.delay_ms, p.workload) == (stages, delay_ms, kind.name()))
                };
                type Pick = fn(&Place<'_>) -> Option<f64>;
                let lines: [(&str, Pick); 5] = [
                    ("off", |place| Some(place.off.measured)),
                    ("auto", |place| Some(place.auto.measured)),
                    ("best serial window", |place| Some(place.serial?.measured)),
                    ("best fixed", |place| Some(place.fixed?.measured)),
                    ("auto, predicted", |place| Some(place.auto.predicted)),
                ];
                let series = lines.map(|(name, pick)| Series {
                    name: name.to_owned(),
                    values: delays.iter().map(|&delay| at(delay).and_then(pick)).collect(),
                });
                let has_values = |series: &Series| series.values.iter().any(Option::is_some);
                let series: Vec<Series> = series.into_iter().filter(has_values).collect();
                Panel {
                    title: kind.name().to_owned(),
                    places: delays.iter().map(|ms| format!("{ms} ms")).collect(),
                    series,
                }
            };
            let title = format!("Toy line of {stages} stages: decoding speed by link delay");
            let picture = svg::panels(&title, "tok/s", &Kind::ALL.iter().map(panel).collect::<Vec<_>>());
            written.push(plots::save(folder, &format!("grid-{stages}-stages.svg"), &picture)?);
        }
        Ok(written)
    }
}

fn tell_line(here: &[&Place<'_>], (stages, delay_ms): (u16, u64), report: &mut Report) {
    let name = |what: &str| format!("toy line, {stages} stages, {delay_ms} ms, {what}");
    let of = |text: &str| here.iter().find(|place| place.workload == text);
    let one = |value: f64| Median::of(vec![value]);
    let mean = |ratio: &dyn Fn(&Place<'_>) -> Option<f64>| {
        // `predicted` is `edit` with a word from the client: they are one kind of work.
        let kinds = here.iter().filter(|place| place.workload != Kind::Predicted.name());
        let logs: Vec<f64> = kinds.filter_map(|place| ratio(place)).map(f64::ln).collect();
        (!logs.is_empty()).then(|| (logs.iter().sum::<f64>() / logs.len() as f64).exp())
    };
    let promised = |slow: f64, fast: f64| match (stages, delay_ms) {
        (4, 10) => Some(Bound::AtLeast(slow)),
        (4, 40) => Some(Bound::AtLeast(fast)),
        _ => None,
    };
    let at_ten = |least: f64| (stages == 4 && delay_ms == 10).then_some(Bound::AtLeast(least));
    if let Some(place) = here.first() {
        let links = apart(stages, delay_ms) * u32::from(stages);
        let ideal = (ONE_ROW * u32::from(stages) + links).as_secs_f64() * 1e3;
        let more = one(1e3 / place.off.measured - ideal);
        report.add(name("plain, per token beyond compute and delays"), "ms", more, Some(Bound::AtMost(1.0)));
    }
    if let Some(place) = of("copy") {
        report.add(name("copy over plain"), "ratio", one(place.over_plain()), promised(4.0, 6.0));
        if let Some(ratio) = place.over(place.serial) {
            report.add(name("copy over the best serial window"), "ratio", one(ratio), at_ten(1.5));
        }
    }
    if let Some(place) = of("edit") {
        report.add(name("edit over plain"), "ratio", one(place.over_plain()), at_ten(4.0));
    }
    if let Some(ratio) = mean(&|place| Some(place.over_plain())) {
        report.add(name("mean over plain"), "ratio", one(ratio), at_ten(1.8));
    }
    if let Some(ratio) = mean(&|place| place.over(place.serial)) {
        report.add(name("mean over the best serial window"), "ratio", one(ratio), at_ten(1.1));
    }
    let worst = here.iter().map(|place| place.over_plain()).fold(f64::INFINITY, f64::min);
    report.add(name("slowest text over plain"), "ratio", one(worst), Some(Bound::AtLeast(0.98)));
    if let Some(worst) = here.iter().filter_map(|place| place.over(place.fixed)).reduce(f64::min) {
        let least = Bound::AtLeast(OVER_FIXED);
        report.add(name("slowest text over the best fixed choice"), "ratio", one(worst), Some(least));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_is_far_from_the_best_fixed_choice_or_from_the_forecast_misses_a_bound() {
        let cell = |way, measured, predicted, again| {
            let workload = Kind::Copy.name().to_owned();
            Cell { stages: 2, delay_ms: 0, way, workload, measured, predicted, stale_share: 0.0, again }
        };
        let is_met = |measured, predicted| {
            let fixed = |again| cell(Way::Fixed { width: 4, depth: 2 }, 200.0, 200.0, again);
            let auto = cell(Way::Auto, measured, predicted, false);
            let cells = vec![cell(Way::Off, 100.0, 100.0, false), auto, fixed(false), fixed(true)];
            let mut report = Report::new("test");
            let extent = Extent { stages: vec![2], delays_ms: vec![0], ..Extent::modest() };
            Grid { cells }.tell(&extent, &mut report);
            report.is_met()
        };
        assert!(is_met(200.0, 200.0));
        assert!(!is_met(180.0, 180.0), "a tenth behind the best");
        assert!(!is_met(200.0, 250.0), "one cell of four");
    }
}
