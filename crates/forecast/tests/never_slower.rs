//! Left to itself, guessing is never slower than plain decoding and nearly as fast as the best fixed choice.
//! `cargo run --release -p forecast` does the same on many more lines.

use std::time::Duration;

use forecast::{Comparison, Grid, Job, Kind, LineModel, StageModel, Workload, compare, run};
use spec::Speculate;

const TOKENS: usize = 1024;

fn ms(ms: u64) -> Duration {
    Duration::from_millis(ms)
}

/// Stages of `one` ms for a row and a share of it for each row more, `delay` ms apart.
fn line(n_stages: u16, one: u64, per_row: f64, delay: u64) -> LineModel {
    LineModel::even(n_stages, StageModel::linear(ms(one), per_row), ms(delay))
}

fn geometric_mean(values: impl Iterator<Item = f64> + Clone) -> f64 {
    let n = values.clone().count() as f64;
    (values.map(f64::ln).sum::<f64>() / n).exp()
}

/// Compares every kind of text, and sources of every agreement.
fn table(line: &LineModel, grid: &Grid) -> Vec<Comparison> {
    println!("{}", Comparison::head());
    let texts = Kind::ALL.map(|kind| kind.workload(1, TOKENS));
    let traces = [0.0, 0.2, 0.5, 0.8, 0.95].map(|right| Workload::agreeing(right, 1, TOKENS));
    let rows: Vec<_> = texts.iter().chain(&traces).map(|workload| compare(line, workload, grid)).collect();
    rows.iter().for_each(|row| println!("{row}"));
    rows
}

/// The rows that lose against plain decoding or are far from the best fixed choice.
fn losers(rows: &[Comparison]) -> Vec<String> {
    let loses = |row: &&Comparison| row.over_plain() < 0.98 || row.over_fixed() < 0.95;
    rows.iter().filter(loses).map(ToString::to_string).collect()
}

#[test]
fn auto_is_never_slower_than_plain_and_near_the_best_fixed_choice() {
    let grid = Grid { widths: vec![1, 2, 4, 16], depths: vec![1, 2, 8, 12] };
    for (n_stages, one, per_row, delay) in [(4, 5, 0.15, 10), (2, 15, 0.5, 2), (2, 15, 1.0, 0)] {
        println!("\n{n_stages} stages of {one} ms, {per_row} for a row more, {delay} ms");
        let found = losers(&table(&line(n_stages, one, per_row, delay), &grid));
        assert!(found.is_empty(), "{found:#?}");
    }
}

#[test]
fn four_stages_ten_milliseconds_apart_win_what_was_promised() {
    let grid = Grid { widths: vec![1, 2, 3, 4, 6, 8, 12, 16], depths: vec![1] };
    for per_row in [0.15, 0.5, 1.0] {
        println!("\n{per_row} for a row more");
        let line = line(4, 5, per_row, 10);
        let rows: Vec<_> = Kind::ALL.map(|kind| compare(&line, &kind.workload(2, TOKENS), &grid)).into();
        rows.iter().for_each(|row| println!("{row}"));
        for row in rows.iter().filter(|row| ["copy", "edit"].contains(&row.name.as_str())) {
            assert!(row.over_plain() >= 4.0, "{row}");
        }
        assert!(rows[0].over_serial() >= 1.5, "{}", rows[0]);
        let mean = geometric_mean(rows.iter().map(Comparison::over_plain));
        assert!(mean >= 1.8, "{mean:.2} x plain");
        let mean = geometric_mean(rows.iter().map(Comparison::over_serial));
        assert!(mean >= 1.1, "{mean:.2} x serial");
    }
}

#[test]
fn forty_milliseconds_are_hidden_from_a_copy() {
    let row = compare(
        &line(4, 5, 0.5, 40),
        &Kind::Copy.workload(3, TOKENS),
        &Grid { widths: vec![], depths: vec![] },
    );
    assert!(row.over_plain() >= 6.0, "{row}");
}

/// As many requests at once as `clients`, some three rounds of them. Their lengths differ, else plain decoding would go
/// in lockstep, all prompts together and then all answers, as real requests never do.
fn crowd(line: &LineModel, kind: Kind, clients: usize, speculate: &Speculate) -> forecast::Forecast {
    let workloads: Vec<_> =
        (0..3 * clients as u64).map(|seed| kind.workload(seed, 192 + (seed as usize * 37) % 128)).collect();
    run(line, Job { workloads: &workloads, clients }, speculate)
}

#[test]
fn running_ahead_yields_when_others_fill_the_line() {
    let few = [Kind::Copy, Kind::Code, Kind::Novel];
    for (line, what, kinds) in
        [(line(4, 5, 0.5, 10), "10 ms", &Kind::ALL[..]), (line(2, 15, 1.0, 1), "1 ms", &few)]
    {
        for &kind in kinds {
            for clients in [4, 8] {
                let plain = crowd(&line, kind, clients, &Speculate::off());
                let auto = crowd(&line, kind, clients, &Speculate::auto());
                let gain = auto.tokens_per_second / plain.tokens_per_second;
                let stats = auto.stats;
                let stale = stats.stale_windows as f64 / stats.windows as f64;
                let waste = auto.stages[0].stats.wasted_share();
                println!(
                    "{what} {} {clients}: {gain:.2} x plain, {stale:.2} stale, {waste:.2} wasted",
                    kind.name()
                );
                assert!(
                    stale <= 0.25 && waste <= 0.25,
                    "{}: {stale:.2} stale, {waste:.2} wasted",
                    kind.name()
                );
                assert!(gain >= 0.97, "{}, {clients} clients: {gain:.3} x plain", kind.name());
            }
        }
    }
}

#[test]
fn a_forecast_depends_on_its_inputs_alone() {
    let line = line(3, 4, 0.3, 5);
    let workloads = [Kind::Code.workload(5, 200), Kind::Chat.workload(6, 200)];
    let job = Job { workloads: &workloads, clients: 2 };
    let forecast = || format!("{:?}", run(&line, job, &Speculate::auto()));
    assert_eq!(forecast(), forecast());
}

#[test]
fn plain_decoding_takes_the_loop_for_each_token() {
    let line = line(4, 5, 0.5, 10);
    let workload = [Kind::Novel.workload(7, 200)];
    let plain = run(&line, Job { workloads: &workload, clients: 1 }, &Speculate::off());
    let token = 1.0 / plain.decode_rate;
    assert!((token - line.loop_time().as_secs_f64()).abs() < 1e-6, "{token}");
}
