//! Prometheus metrics: what this crate counts itself, and what the line says about itself when it is asked.
//!
//! Times come from the line's own figures, so this module has no clock.

use std::sync::atomic::AtomicU64;
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::prometheus_text;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;
use scheduler::Timings;

use crate::{LineStatus, StageStatus, WorkStatus};

type FloatGauge = Gauge<f64, AtomicU64>;

/// A route and how it answered. Routes are the router's patterns and methods are known ones, so their number is small.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct HttpLabels {
    route: String,
    method: String,
    status: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StageLabels {
    stage: u32,
    address: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct SourceLabels {
    source: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DraftedLabels {
    source: String,
    /// In its draft, from 1.
    position: u32,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct EndLabels {
    reason: &'static str,
}

/// Counters for the life of the process.
pub(crate) struct Metrics {
    registry: Registry,
    http: Family<HttpLabels, Counter>,
    ends: Family<EndLabels, Counter>,
    prompt_tokens: Counter,
    cached_tokens: Counter,
    generated_tokens: Counter,
    drafted_tokens: Counter,
    accepted_tokens: Counter,
    windows: Counter,
    live_windows: Counter,
    stale_windows: Counter,
    queue_time: Histogram,
    first_token: Histogram,
    per_token: Histogram,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        // From a line without links up to minutes of prefill, and from a tiny model to a huge one.
        let seconds = || Histogram::new(exponential_buckets(0.01, 2.0, 16));
        let token_seconds = Histogram::new(exponential_buckets(0.001, 2.0, 13));
        let mut metrics = Self {
            registry: Registry::with_prefix("paceline"),
            http: Family::default(),
            ends: Family::default(),
            prompt_tokens: Counter::default(),
            cached_tokens: Counter::default(),
            generated_tokens: Counter::default(),
            drafted_tokens: Counter::default(),
            accepted_tokens: Counter::default(),
            windows: Counter::default(),
            live_windows: Counter::default(),
            stale_windows: Counter::default(),
            queue_time: seconds(),
            first_token: seconds(),
            per_token: token_seconds,
        };
        metrics.register();
        metrics
    }

    fn register(&mut self) {
        let registry = &mut self.registry;
        registry.register("http_requests", "HTTP requests answered, by route and status", self.http.clone());
        registry.register("generations", "Generations that ended, by reason", self.ends.clone());
        for (name, help, counter) in [
            ("prompt_tokens", "Prompt tokens of generations that ended", &self.prompt_tokens),
            ("cached_prompt_tokens", "Of those, resident before", &self.cached_tokens),
            ("generated_tokens", "Tokens generated", &self.generated_tokens),
            ("drafted_tokens", "Tokens guessed and sent", &self.drafted_tokens),
            ("accepted_tokens", "Of those, confirmed", &self.accepted_tokens),
            ("windows", "Windows sent", &self.windows),
            ("live_windows", "Of those, answered by a verdict", &self.live_windows),
            ("stale_windows", "Of those, made stale by a contradiction or by the end", &self.stale_windows),
        ] {
            registry.register(name, help, counter.clone());
        }
        for (name, help, histogram) in [
            ("queue_seconds", "Time in the queue", &self.queue_time),
            ("time_to_first_token_seconds", "From submission to the first token", &self.first_token),
            ("time_per_token_seconds", "Mean time between a generation's tokens", &self.per_token),
        ] {
            registry.register(name, help, histogram.clone());
        }
    }

    /// Counts an answer. `route` is the router's pattern.
    pub(crate) fn answered(&self, route: String, method: String, status: u16) {
        self.http.get_or_create(&HttpLabels { route, method, status }).inc();
    }

    /// Counts a generation that ended as it should.
    pub(crate) fn ended(&self, reason: &'static str, queued: Duration, timings: &Timings) {
        self.stopped(reason);
        self.prompt_tokens.inc_by(timings.prompt_tokens.into());
        self.cached_tokens.inc_by(timings.cached_tokens.into());
        self.generated_tokens.inc_by(timings.generated_tokens.into());
        self.drafted_tokens.inc_by(timings.drafted.into());
        self.accepted_tokens.inc_by(timings.accepted.into());
        self.windows.inc_by(timings.windows.into());
        self.live_windows.inc_by(timings.live_windows.into());
        self.stale_windows.inc_by(timings.stale_windows.into());
        self.queue_time.observe(queued.as_secs_f64());
        if timings.generated_tokens > 0 {
            self.first_token.observe((queued + timings.prompt_time).as_secs_f64());
        }
        if timings.generated_tokens > 1 {
            let intervals = f64::from(timings.generated_tokens - 1);
            self.per_token.observe(timings.generation_time.as_secs_f64() / intervals);
        }
    }

    /// Counts a generation that failed or was cancelled.
    pub(crate) fn stopped(&self, reason: &'static str) {
        self.ends.get_or_create(&EndLabels { reason }).inc();
    }

    /// The text format, version 0.0.4.
    pub(crate) fn encode(&self, line: &LineStatus, ready: bool) -> String {
        let mut text = String::new();
        for registry in [&self.registry, &line_registry(line, ready)] {
            prometheus_text::encode(&mut text, registry).expect("writing to a string does not fail");
        }
        text
    }
}

/// The line as it is now.
fn line_registry(line: &LineStatus, ready: bool) -> Registry {
    let mut registry = Registry::with_prefix("paceline");
    let mut gauge = |name: &str, help: &str, value: f64| {
        let gauge = FloatGauge::default();
        gauge.set(value);
        registry.register(name, help, gauge);
    };
    gauge("ready", "1 if a token can flow through every stage", f64::from(u8::from(ready)));
    let relayed = f64::from(u8::from(line.mode == "relay"));
    gauge("relayed", "1 if verdicts come back through the stages instead of straight from the tail", relayed);
    gauge("queue", "Requests that wait", line.queue.into());
    gauge("running", "Live sequences", line.sequences.len() as f64);
    gauge("windows_in_flight", "Windows that a verdict is still to come for", line.windows_in_flight.into());
    gauge(
        "windows_in_flight_mean",
        "Mean of them per generation, while one waits",
        line.windows.in_flight_mean,
    );
    gauge("stale_share", "Share of windows that were stale", line.stale_share.into());
    gauge("loop_seconds", "Mean time of a window around the line", f64::from(line.loop_ms) / 1e3);
    gauge("ideal_loop_seconds", "The same had no window waited for another", f64::from(line.ideal_ms) / 1e3);
    register_work(&mut registry, line);
    register_sources(&mut registry, line);
    let (busy, up, rtt) = (Family::default(), Family::default(), Family::default());
    let set = |family: &Family<StageLabels, FloatGauge>, labels: &StageLabels, value: f64| {
        family.get_or_create(labels).set(value);
    };
    for (labels, status) in labelled(line) {
        set(&busy, &labels, status.busy.into());
        set(&up, &labels, f64::from(u8::from(status.state == "ready")));
        if let Some(rtt_ms) = status.rtt_ms {
            set(&rtt, &labels, f64::from(rtt_ms) / 1e3);
        }
    }
    registry.register("stage_busy", "Share of recent time spent computing", busy);
    registry.register("stage_ready", "1 if the stage is ready", up);
    registry.register("stage_rtt_seconds", "Round trip of a heartbeat from the front", rtt);
    registry
}

/// What the stages computed, and what for nothing.
fn register_work(registry: &mut Registry, line: &LineStatus) {
    type Count = fn(&WorkStatus) -> u64;
    let counts: [(&str, &str, Count); 7] = [
        ("stage_calls", "Engine calls", |work| work.calls),
        ("stage_rows", "Rows computed", |work| work.rows),
        ("stage_wasted_rows", "Of those, for nothing", |work| work.wasted_rows),
        ("stage_windows", "Windows computed", |work| work.windows),
        ("stage_dropped_windows", "Windows dropped before they were computed", |work| work.dropped_windows),
        ("stage_chunks", "Prompt chunks computed", |work| work.chunks),
        ("stage_dropped_chunks", "Prompt chunks dropped before they were computed", |work| {
            work.dropped_chunks
        }),
    ];
    for (name, help, count) in counts {
        let family = Family::<StageLabels, Counter>::default();
        for (labels, stage) in labelled(line) {
            family.get_or_create(&labels).inc_by(count(&stage.work));
        }
        registry.register(name, help, family);
    }
    let batch_rows = Family::<StageLabels, FloatGauge>::default();
    for (labels, stage) in labelled(line).filter(|(_, stage)| stage.work.calls > 0) {
        batch_rows.get_or_create(&labels).set(stage.work.rows as f64 / stage.work.calls as f64);
    }
    registry.register("stage_batch_rows", "Mean rows of an engine call", batch_rows);
}

fn labelled(line: &LineStatus) -> impl Iterator<Item = (StageLabels, &StageStatus)> {
    let labels =
        |at: usize, stage: &StageStatus| StageLabels { stage: at as u32, address: stage.address.clone() };
    line.stages.iter().enumerate().map(move |(at, stage)| (labels(at, stage), stage))
}

/// How the sources of guesses do.
fn register_sources(registry: &mut Registry, line: &LineStatus) {
    let labels = |source: &String| SourceLabels { source: source.clone() };
    let agreement = Family::<SourceLabels, FloatGauge>::default();
    for (source, share) in &line.agreement {
        agreement.get_or_create(&labels(source)).set((*share).into());
    }
    registry.register("agreement", "Share of a source's guesses that came true", agreement);
    let (proposed, accepted) = (Family::<_, Counter>::default(), Family::<_, Counter>::default());
    for (source, status) in &line.sources {
        proposed.get_or_create(&labels(source)).inc_by(status.proposed);
        accepted.get_or_create(&labels(source)).inc_by(status.accepted);
    }
    registry.register("source_guesses", "Guesses of a source that were sent", proposed);
    registry.register("source_accepted_guesses", "Of those, right", accepted);
    register_drafts(registry, line);
}

/// What became of drafts that the tail made.
fn register_drafts(registry: &mut Registry, line: &LineStatus) {
    let (made, used) =
        (Family::<SourceLabels, Counter>::default(), Family::<SourceLabels, Counter>::default());
    let judged = Family::<DraftedLabels, Counter>::default();
    let right = Family::<DraftedLabels, Counter>::default();
    for (source, drafts) in
        line.sources.iter().filter_map(|(source, status)| Some((source, status.drafts.as_ref()?)))
    {
        let labels = SourceLabels { source: source.clone() };
        made.get_or_create(&labels).inc_by(drafts.made);
        used.get_or_create(&labels).inc_by(drafts.used);
        for (position, one) in (1..).zip(&drafts.by_position) {
            let labels = DraftedLabels { source: source.clone(), position };
            judged.get_or_create(&labels).inc_by(one.judged);
            right.get_or_create(&labels).inc_by(one.right);
        }
    }
    registry.register("drafts", "Drafts of the tail's own", made);
    registry.register("used_drafts", "Of those, sent, at least in part", used);
    registry.register(
        "draft_tokens",
        "Tokens of drafts that were judged, by their place in the draft",
        judged,
    );
    registry.register("right_draft_tokens", "Of those, right", right);
}
