//! `sim`: runs seeds of the simulation, prints what fails and how to run it again.
#![forbid(unsafe_code)]

use std::ops::Range;
use std::process::ExitCode;

use sim::{Driver, Plan, Sabotage, Summary};

const USAGE: &str = "\
Usage: sim [--seed N | --seeds A..B] [options]

  --seed N              one run (default 0)
  --seeds A..B          one run for each seed, B excluded
  --driver WHO          scheduler, or guesses (pipelines with adversarial proposals); default: the seed decides
  --width N, --depth N  rows in a window, windows in flight (1 to 16)
  --calm                no cancellations and no outages
  --sabotage WHAT       reorder, rewind, gap, repeat, drafts, old-frames or old-reports: break something that the
                        checkers must see";

struct Args {
    seeds: Range<u64>,
    plan: Plan,
}

fn main() -> ExitCode {
    let args = match parse(std::env::args().skip(1)) {
        Ok(args) => args,
        Err(message) => {
            eprintln!("{message}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let mut sum = Summary::default();
    let mut n_failed = 0_u64;
    for seed in args.seeds.clone() {
        let plan = Plan { seed, ..args.plan };
        let outcome = sim::run(&plan);
        sum.add(&outcome.summary);
        if !outcome.violations.is_empty() {
            n_failed += 1;
            println!("seed {seed} fails; run it again with: {plan}");
            outcome.violations.iter().for_each(|violation| println!("  {violation}"));
        }
    }
    println!("seeds {}..{}, {n_failed} failed: {sum}", args.seeds.start, args.seeds.end);
    if n_failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn parse(mut args: impl Iterator<Item = String>) -> Result<Args, String> {
    let (mut seeds, mut plan) = (0..1, Plan::default());
    while let Some(flag) = args.next() {
        if flag == "--calm" {
            plan.calm = true;
            continue;
        }
        let value = args.next().ok_or_else(|| format!("{flag} is unknown or needs a value"))?;
        match flag.as_str() {
            "--seed" => {
                let seed = number(&value)?;
                seeds = seed..seed + 1;
            }
            "--seeds" => {
                let (start, end) = value.split_once("..").ok_or("--seeds takes A..B, for example 0..1000")?;
                seeds = number(start)?..number(end)?;
            }
            "--driver" => {
                plan.driver = Some(match value.as_str() {
                    "scheduler" => Driver::Scheduler,
                    "guesses" => Driver::Guesses,
                    _ => return Err(format!("--driver is scheduler or guesses, not {value}")),
                });
            }
            "--width" => plan.width = Some(reach(&value)?),
            "--depth" => plan.depth = Some(reach(&value)?),
            "--sabotage" => {
                plan.sabotage = Some(match value.as_str() {
                    "reorder" => Sabotage::Reorder,
                    "rewind" => Sabotage::DropRewind,
                    "gap" => Sabotage::LeaveGap,
                    "repeat" => Sabotage::Repeat,
                    "drafts" => Sabotage::KeepDrafts,
                    "old-frames" => Sabotage::LetFramesIn,
                    "old-reports" => Sabotage::LetReportsIn,
                    _ => {
                        return Err(format!(
                            "--sabotage is reorder, rewind, gap, repeat, drafts, old-frames or old-reports, not {value}"
                        ));
                    }
                });
            }
            _ => return Err(format!("{flag} is unknown")),
        }
    }
    Ok(Args { seeds, plan })
}

fn number(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("{text} is not a number"))
}

fn reach(text: &str) -> Result<u32, String> {
    text.parse()
        .ok()
        .filter(|n| (1..=16).contains(n))
        .ok_or_else(|| format!("{text} is not a number from 1 to 16"))
}
