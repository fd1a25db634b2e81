//! The figures of a simulation, for people and for programs.

use std::fmt::Write as _;
use std::time::Duration;

use forecast::{Choice, Comparison, StageModel, rate_text};
use serde_json::{Value, json};

use super::SimulateArgs;

/// Everything as text: the line, a table per case, and the comparison.
pub(super) fn text(args: &SimulateArgs, rows: &[Comparison]) -> String {
    let mut text = head(args);
    let mut is_cut = false;
    for row in rows {
        is_cut |= sweep(&mut text, args, row);
    }
    if is_cut {
        text.push_str("\n·  fewer windows keep the slowest stage busy; more would only queue\n");
    }
    let _ = writeln!(text, "\n{}", Comparison::head());
    for row in rows {
        let _ = writeln!(text, "{row}");
    }
    let mean = |of: fn(&Comparison) -> f64| {
        (rows.iter().map(|row| of(row).ln()).sum::<f64>() / rows.len().max(1) as f64).exp()
    };
    if rows.len() > 1 {
        let _ = writeln!(
            text,
            "{:<55}{:>8.2} {:>9.2} {:>8.3}",
            "geometric mean",
            mean(Comparison::over_plain),
            mean(Comparison::over_serial),
            mean(Comparison::over_fixed)
        );
    }
    text.push_str(
        "\nplain: nothing guessed; serial: the best single window of w rows; fixed: the best w rows and d windows in\n\
         flight; auto: as `--speculate auto` chooses while it learns; stale: share of auto's windows that a correction\n\
         overtook.\n",
    );
    text
}

fn head(args: &SimulateArgs) -> String {
    let stages = &args.line.stages;
    let each = if stages.windows(2).all(|pair| pair[0] == pair[1]) {
        format!("of {}", steps(&stages[0]))
    } else {
        format!("of {}", stages.iter().map(steps).collect::<Vec<_>>().join(", "))
    };
    let around = args.line.loop_time(1);
    let noun = if stages.len() == 1 { "stage" } else { "stages" };
    let links = if args.delay.is_zero() {
        "no time on links".to_owned()
    } else {
        format!("{} on each link", ms(args.delay))
    };
    let load = match args.clients {
        1 => "one client; tokens per second while it decodes".to_owned(),
        n => format!("{n} clients at once; tokens per second of all together, prompts included"),
    };
    format!("{} {noun} {each}, {links}\none row takes {} around the line; {load}\n", stages.len(), ms(around),)
}

/// Time of one row, and how it grows.
fn steps(stage: &StageModel) -> String {
    let (one, sixteen) = (stage.time(1), stage.time(16));
    if one == sixteen { ms(one) } else { format!("{} (16 rows: {})", ms(one), ms(sixteen)) }
}

fn ms(time: Duration) -> String {
    let text = format!("{:.3}", time.as_secs_f64() * 1e3);
    format!("{} ms", text.trim_end_matches('0').trim_end_matches('.'))
}

/// One case's table; whether a choice was left out.
fn sweep(text: &mut String, args: &SimulateArgs, row: &Comparison) -> bool {
    let _ = writeln!(text, "\n{}: rows in a window (down), windows in flight (across)", row.name);
    let _ = write!(text, "{:>4}", "");
    for depth in &args.grid.depths {
        let _ = write!(text, "{depth:>8}");
    }
    let mut is_cut = false;
    for &width in &args.grid.widths {
        let _ = write!(text, "\n{width:>4}");
        for &depth in &args.grid.depths {
            let found = row.sweep.iter().find(|choice| (choice.width, choice.depth) == (width, depth));
            is_cut |= found.is_none();
            let _ = match found {
                Some(choice) => write!(text, "{:>8}", rate_text(choice.rate)),
                None => write!(text, "{:>8}", "·"),
            };
        }
    }
    text.push('\n');
    is_cut
}

/// Rows with the names that `bench --json` uses, as far as a forecast has them.
pub(super) fn json(args: &SimulateArgs, rows: &[Comparison]) -> Value {
    let times = args.line.stages.iter().map(|stage| {
        let steps = stage.steps.iter().map(|(rows, time)| json!([rows, round(time.as_secs_f64() * 1e3)]));
        steps.collect::<Vec<_>>()
    });
    json!({
        "simulated": true,
        "stage_time_ms": times.collect::<Vec<_>>(),
        "loop_ms": round(args.line.loop_time(1).as_secs_f64() * 1e3),
        "tokens": args.tokens,
        "rows": rows.iter().flat_map(|row| case(args, row)).collect::<Vec<_>>(),
    })
}

fn case(args: &SimulateArgs, row: &Comparison) -> Vec<Value> {
    let one = |speculate: &str, reach: Option<(u32, u32)>, rate: f64, stale: f64| {
        json!({
            "workload": row.name,
            "stages": args.line.stages.len(),
            "link": format!("delay={}", ms(args.delay).replace(' ', "")),
            "speculate": speculate,
            "width": reach.map(|(width, _)| width),
            "depth": reach.map(|(_, depth)| depth),
            "concurrency": args.clients,
            if args.clients == 1 { "decode_tok_s" } else { "total_tok_s" }: round(rate),
            "stale_share": round(stale),
        })
    };
    let fixed = |choice: &Choice| one("fixed", Some((choice.width, choice.depth)), choice.rate, choice.stale);
    let ends = [one("off", None, row.plain, 0.0), one("auto", None, row.auto_rate, row.auto.stale_share())];
    ends.into_iter().chain(row.sweep.iter().map(fixed)).collect()
}

/// Four decimals: what is behind them means nothing.
fn round(value: f64) -> f64 {
    (value * 1e4).round() / 1e4
}
