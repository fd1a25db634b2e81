//! The thread that sends traces, and the queue before it.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use anyhow::Context as _;
use hyper::StatusCode;
use server::{Record, Trace, TraceSink, Tracing};
use tokio::runtime::Builder;
use tokio::sync::{mpsc, watch};

use super::client::Client;
use super::settings::Settings;
use super::wire::Export;

/// Requests whose traces wait to be sent: at some 100 KiB for a long answer they stay below the size of a small model.
const MAX_WAITING: usize = 256;
/// Traces that end within this time travel together.
const TOGETHER: Duration = Duration::from_millis(500);
/// Spans in one message: some MiB, where collectors take up to 20.
const MAX_SPANS: usize = 8192;
/// Pauses before a message is sent again that nobody took.
const PAUSES: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(4)];
/// How long the end of the program waits for the last traces to be sent.
const LAST_WAIT: Duration = Duration::from_secs(2);

/// Sends traces until it is told to finish.
pub(crate) struct Exporter {
    sink: Arc<Sink>,
    settings: Settings,
    stop: watch::Sender<bool>,
    /// Closes when the thread ends.
    ended: std::sync::mpsc::Receiver<()>,
}

/// Where requests leave their records.
struct Sink {
    queue: mpsc::Sender<Record>,
    /// Somebody has been told that the queue was full.
    has_told: AtomicBool,
}

impl TraceSink for Sink {
    fn take(&self, record: Record) {
        if self.queue.try_send(record).is_err() && !self.has_told.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "more requests are traced than their collector takes: some traces are lost; trace fewer with --otlp-sample"
            );
        }
    }
}

impl Exporter {
    /// Starts the thread. Nobody needs to listen at the other end yet.
    pub(crate) fn start(settings: Settings) -> anyhow::Result<Self> {
        let client = Client::new(
            settings.target.clone(),
            settings.headers.clone(),
            settings.roots.as_deref(),
            settings.timeout,
        )
        .context("traces cannot be sent")?;
        let (queue, records) = mpsc::channel(MAX_WAITING);
        let (stop, stopped) = watch::channel(false);
        let (end, ended) = std::sync::mpsc::channel();
        let runtime = Builder::new_current_thread().enable_all().build();
        let runtime = runtime.context("could not start the runtime for traces")?;
        let sender = Sender { client, settings: settings.clone(), stopped, is_failing: false };
        let run = move || {
            runtime.block_on(sender.run(records));
            drop(end);
        };
        let spawned: io::Result<_> = thread::Builder::new().name("traces".to_owned()).spawn(run);
        spawned.context("could not start the thread for traces")?;
        let sink = Arc::new(Sink { queue, has_told: AtomicBool::new(false) });
        Ok(Self { sink, settings, stop, ended })
    }

    /// What the API needs to know.
    pub(crate) fn tracing(&self) -> Tracing {
        Tracing {
            sink: Arc::clone(&self.sink) as Arc<dyn TraceSink>,
            sampler: self.settings.sampler,
            content: self.settings.content,
        }
    }

    /// Sends what is left, unless that takes too long.
    pub(crate) fn finish(self) {
        self.stop.send_replace(true);
        // Either way this is the end: the thread has ended, or it is not waited for.
        let _ = self.ended.recv_timeout(LAST_WAIT);
    }
}

/// What became of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Taken,
    /// It may be taken later.
    NotNow,
    /// It never will.
    Refused,
}

impl Outcome {
    /// As OTLP has it.
    fn of(status: StatusCode) -> Self {
        match status.as_u16() {
            200..300 => Self::Taken,
            429 | 502..=504 => Self::NotNow,
            _ => Self::Refused,
        }
    }
}

/// The thread's own.
struct Sender {
    client: Client,
    settings: Settings,
    stopped: watch::Receiver<bool>,
    /// The last message was not taken, and somebody has been told.
    is_failing: bool,
}

impl Sender {
    async fn run(mut self, mut records: mpsc::Receiver<Record>) {
        while let Some(first) = self.next(&mut records).await {
            self.pause(TOGETHER).await;
            let mut n_spans = 0;
            let mut traces: Vec<Trace> = Vec::new();
            let mut next = Some(first);
            while let Some(record) = next {
                let trace = record.trace();
                n_spans += trace.spans.len();
                traces.push(trace);
                next = if n_spans < MAX_SPANS { records.try_recv().ok() } else { None };
            }
            self.deliver(traces).await;
        }
    }

    /// The next record; none once it is time to stop and nothing is left.
    async fn next(&mut self, records: &mut mpsc::Receiver<Record>) -> Option<Record> {
        tokio::select! {
            biased;
            record = records.recv() => record,
            _ = self.stopped.wait_for(|&stopped| stopped) => None,
        }
    }

    /// Waits, but not when it is time to stop. Whether there is time left.
    async fn pause(&mut self, time: Duration) -> bool {
        let stopped = self.stopped.wait_for(|&stopped| stopped);
        tokio::time::timeout(time, stopped).await.is_err()
    }

    async fn deliver(&mut self, traces: Vec<Trace>) {
        let body =
            hyper::body::Bytes::from(self.settings.encoding.encode(&Export::of(&self.settings, traces)));
        let mut pauses = PAUSES.into_iter();
        loop {
            let answer = self.client.post(self.settings.encoding.content_type(), body.clone()).await;
            let (outcome, why) = match answer {
                Ok(status) => (Outcome::of(status), format!("it answers {status}")),
                Err(error) => (Outcome::NotNow, format!("{error:#}")),
            };
            if outcome == Outcome::Taken {
                return self.recovered();
            }
            self.failed(&why);
            let may_try_again = outcome == Outcome::NotNow;
            match pauses.next().filter(|_| may_try_again) {
                Some(pause) if self.pause(pause).await => {}
                _ => return,
            }
        }
    }

    /// Says so once, until it works again.
    fn failed(&mut self, why: &str) {
        let is_known = std::mem::replace(&mut self.is_failing, true);
        if !is_known {
            let target = self.client.target();
            tracing::warn!("traces do not reach {target}: {why}; requests are served without them");
        }
    }

    fn recovered(&mut self) {
        if std::mem::take(&mut self.is_failing) {
            tracing::info!("traces reach {} again", self.client.target());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_collector_cannot_take_now_is_sent_again_and_nothing_else() {
        for (status, outcome) in [
            (200, Outcome::Taken),
            (202, Outcome::Taken),
            (429, Outcome::NotNow),
            (503, Outcome::NotNow),
            (400, Outcome::Refused),
            (401, Outcome::Refused),
            (404, Outcome::Refused),
            (500, Outcome::Refused),
            (301, Outcome::Refused),
        ] {
            assert_eq!(Outcome::of(StatusCode::from_u16(status).unwrap()), outcome, "{status}");
        }
    }
}
