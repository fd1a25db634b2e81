//! The command line of Paceline: arguments, configuration, wiring and words for people.
//!
//! Owns: what a person may write, `paceline.toml`, exit codes, progress bars, where files are kept, and the wiring of
//! engines, links and HTTP into a process. Does not own: any policy; the crates below decide what a line does.
#![forbid(unsafe_code)]

mod api;
pub mod args;
pub mod bench;
mod children;
mod cluster;
mod config;
mod descriptors;
mod disk;
mod draft;
mod engines;
mod flags;
mod inspect;
mod invite;
mod later;
mod line_file;
mod logging;
mod look;
mod memory;
mod otlp;
pub mod paths;
mod pooling;
pub mod progress;
mod revoke;
mod rotate;
mod serve;
mod signals;
mod simulate;
pub mod slices;
mod split;
mod stage;
mod standing;
mod tell;
mod templates;
#[cfg(test)]
mod tests;
mod verify;

use std::ffi::OsString;
use std::io::ErrorKind;

use clap::Parser as _;
use clap::error::{ContextKind, ContextValue};

use crate::args::{EnrollArgs, InviteArgs, RotateArgs, ServeArgs, SplitArgs, StageArgs, Usage, VerifyArgs};
use crate::config::Config;
use crate::flags::cluster::ClusterAction;
use crate::flags::{CommandFlags, CommandLine, GlobalFlags};
use crate::logging::Format;
use crate::simulate::SimulateArgs;

/// What the process ends with.
const DONE: u8 = 0;
const FAILED: u8 = 1;
const WRONG_USAGE: u8 = 2;

/// Runs the command line and says how it ended: 0 done, 1 failed, 2 wrong usage.
pub fn main(argv: impl IntoIterator<Item = OsString>) -> u8 {
    let line = match CommandLine::try_parse_from(argv) {
        Ok(line) => line,
        Err(error) => return wrong_usage(&error),
    };
    match run(line) {
        Ok(()) => DONE,
        Err(error) => report(&error),
    }
}

fn run(line: CommandLine) -> anyhow::Result<()> {
    if matches!(line.command, CommandFlags::Template) {
        // Before any file is read: what it does is the front's to say.
        return templates::run();
    }
    let config = Config::read(line.global.config.as_deref())?;
    let GlobalFlags { log, log_format, verbose, .. } = line.global;
    let format = Format::named(log_format.or(config.log_format).as_deref())?;
    logging::start(log.or(config.log).as_deref(), verbose, format)?;
    descriptors::raise();
    match line.command {
        CommandFlags::Serve(flags) => serve::run(ServeArgs::from_flags(flags.over(config.serve))?),
        CommandFlags::Stage(flags) => stage::run(StageArgs::from_flags(flags.over(config.stage))?),
        CommandFlags::Verify(flags) => verify::run(&VerifyArgs::from_flags(flags.over(config.verify))?),
        CommandFlags::Split(flags) => split::run(&SplitArgs::from_flags(flags.over(config.split))?),
        CommandFlags::Simulate(flags) => {
            simulate::run(&SimulateArgs::from_flags(flags.over(config.simulate))?)
        }
        CommandFlags::Bench(flags) => {
            bench::command::run(&bench::args::BenchArgs::from_flags(flags.over(config.bench))?)
        }
        CommandFlags::Inspect { path } => inspect::run(&path),
        CommandFlags::Template => templates::run(),
        CommandFlags::Cluster(flags) => {
            let dir = flags.dir.map_or_else(paths::cluster_dir, Ok)?;
            match flags.action {
                ClusterAction::New => cluster::new(&dir),
                ClusterAction::Show => cluster::show(&dir),
                ClusterAction::Revoke { what, tell } => revoke::revoke(&dir, &what, &tell),
                ClusterAction::Rotate(flags) => rotate::rotate(&dir, &RotateArgs::from_flags(flags)?),
                ClusterAction::Tell { addresses } => tell::tell_all(&dir, &addresses),
                ClusterAction::Look { addresses } => look::look(&dir, &addresses),
                ClusterAction::Invite(flags) => invite::invite(&dir, InviteArgs::from_flags(flags)?),
                ClusterAction::Join { ticket } => invite::join(&dir, &args::ticket(&ticket)?),
                ClusterAction::Enroll(flags) => cluster::enroll(&dir, EnrollArgs::from_flags(flags)?),
            }
        }
    }
}

/// One sentence on standard error. A reader that went away (`paceline inspect … | head`) is no failure.
fn report(error: &anyhow::Error) -> u8 {
    let closed = |cause: &(dyn std::error::Error + 'static)| {
        cause.downcast_ref::<std::io::Error>().is_some_and(|io| io.kind() == ErrorKind::BrokenPipe)
    };
    if error.chain().any(closed) {
        return DONE;
    }
    logging::complain(&one_line(&format!("{error:#}")));
    let usage = error.chain().any(|cause| cause.is::<Usage>());
    if usage { WRONG_USAGE } else { FAILED }
}

/// Help goes to standard output and is success; anything else is one sentence.
fn wrong_usage(error: &clap::Error) -> u8 {
    if !error.use_stderr() {
        // Nobody is left to tell if standard output is closed.
        drop(error.print());
        return DONE;
    }
    if error.kind() == clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        drop(error.print());
        return WRONG_USAGE;
    }
    logging::complain(&usage_sentence(error));
    WRONG_USAGE
}

fn usage_sentence(error: &clap::Error) -> String {
    for kind in [ContextKind::InvalidArg, ContextKind::InvalidSubcommand] {
        if let Some(ContextValue::String(name)) = error.get(kind)
            && let Some(sentence) = later::sentence(name)
        {
            return sentence;
        }
    }
    let text = error.render().to_string();
    let what = text.split("\n\n").next().unwrap_or_default();
    let tip = text.lines().find_map(|line| line.trim().strip_prefix("tip: "));
    let what = one_line(what.trim_start_matches("error: "));
    tip.map_or_else(|| format!("{what} (see `paceline --help`)"), |tip| format!("{what}; {}", one_line(tip)))
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}
