//! What a test's thread logs at the usual level.

use std::fmt::Write as _;
use std::sync::{Arc, Mutex};

use tracing::field::{Field, Visit};
use tracing::subscriber::DefaultGuard;
use tracing::{Event, Level, Metadata, Subscriber, span};

/// Warnings and worse, a line each.
#[derive(Clone, Default)]
pub(crate) struct Log(Arc<Mutex<Vec<String>>>);

impl Log {
    /// Hears this thread until the guard is dropped.
    pub(crate) fn start() -> (Self, DefaultGuard) {
        let log = Self::default();
        (log.clone(), tracing::subscriber::set_default(log))
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.0.lock().unwrap().clone()
    }

    /// That each of these was said once, of an address on this machine, and nothing else was.
    pub(crate) fn assert_once(&self, reasons: &[&str]) {
        let lines = self.lines();
        assert_eq!(lines.len(), reasons.len(), "{lines:#?}");
        for reason in reasons {
            let said = lines.iter().filter(|line| line.contains(reason) && line.contains("127.0.0.1:"));
            assert_eq!(said.count(), 1, "{reason}: {lines:#?}");
        }
    }
}

impl Subscriber for Log {
    fn enabled(&self, of: &Metadata<'_>) -> bool {
        *of.level() <= Level::WARN
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        self.0.lock().unwrap().push(line.0);
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

#[derive(Default)]
struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        write!(self.0, "{field}={value:?} ").unwrap();
    }
}
