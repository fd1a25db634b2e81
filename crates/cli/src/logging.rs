//! What a process says on standard error: log lines, and words for people.
//!
//! Libraries write log lines through `tracing`; nothing else decides who sees them. As text, words for people stand beside
//! them as they are. As JSON every line is an object, those words included, so that programs can read all of it.

use std::io::IsTerminal as _;
use std::sync::OnceLock;

use tracing_subscriber::EnvFilter;
use tracing_subscriber::filter::Directive;

use crate::args::{Usage, usage};

/// The target of words for people. No filter hides them.
const WORDS: &str = "paceline";

/// What lines look like.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Format {
    /// For people.
    #[default]
    Text,
    /// One object a line.
    Json,
}

/// As the process was started; text until then.
static FORMAT: OnceLock<Format> = OnceLock::new();

impl Format {
    /// By its name.
    pub(crate) fn named(name: Option<&str>) -> anyhow::Result<Self> {
        match name {
            None | Some("text") => Ok(Self::Text),
            Some("json") => Ok(Self::Json),
            Some(other) => usage(format!("--log-format must be text or json, not `{other}`")),
        }
    }

    /// What this process writes.
    pub(crate) fn of_process() -> Self {
        FORMAT.get().copied().unwrap_or_default()
    }
}

/// Starts logging by `filter`, or as loudly as `verbose` says.
pub(crate) fn start(filter: Option<&str>, verbose: u8, format: Format) -> anyhow::Result<()> {
    let filter = filter.unwrap_or(match verbose {
        0 => "warn",
        1 => "info",
        2 => "debug",
        _ => "trace",
    });
    let filter = EnvFilter::builder().parse(filter).map_err(|why| {
        Usage(format!("--log `{filter}` is no filter ({why}): write for example info,net=debug"))
    })?;
    let lines = tracing_subscriber::fmt().with_writer(std::io::stderr);
    let started = match format {
        Format::Text => lines.with_env_filter(filter).with_ansi(std::io::stderr().is_terminal()).try_init(),
        Format::Json => {
            let words: Directive = format!("{WORDS}=info").parse().expect("a target and a level");
            let filter = filter.add_directive(words);
            lines.json().flatten_event(true).with_span_list(false).with_env_filter(filter).try_init()
        }
    };
    // A second start in one process (tests) keeps the first logger.
    if started.is_ok() && FORMAT.set(format).is_ok() && format == Format::Json {
        std::panic::set_hook(Box::new(|panic| tracing::error!(target: WORDS, "{panic}")));
    }
    Ok(())
}

/// Says something to whoever started the program.
pub(crate) fn say(words: &str) {
    match Format::of_process() {
        Format::Text => eprintln!("{words}"),
        Format::Json => tracing::info!(target: WORDS, "{words}"),
    }
}

/// Says why the program ends.
pub(crate) fn complain(words: &str) {
    match Format::of_process() {
        Format::Text => eprintln!("paceline: {words}"),
        Format::Json => tracing::error!(target: WORDS, "{words}"),
    }
}
