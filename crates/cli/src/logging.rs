//! Log lines, to standard error. Libraries write them through `tracing`; nothing else decides who sees them.

use std::io::IsTerminal as _;

use tracing_subscriber::EnvFilter;

use crate::args::Usage;

/// Starts logging by `filter`, or as loudly as `verbose` says.
pub(crate) fn start(filter: Option<&str>, verbose: u8) -> anyhow::Result<()> {
    let filter = filter.unwrap_or(match verbose {
        0 => "warn",
        1 => "info",
        2 => "debug",
        _ => "trace",
    });
    let filter = EnvFilter::builder().parse(filter).map_err(|why| {
        Usage(format!("--log `{filter}` is no filter ({why}): write for example info,net=debug"))
    })?;
    let started = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal())
        .try_init();
    // A second start in one process (tests) keeps the first logger.
    drop(started);
    Ok(())
}
