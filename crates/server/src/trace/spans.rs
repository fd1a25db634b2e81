//! The spans of one request, from what was noted while it ran.
//!
//! Owns: which spans there are, how they nest, and what adds up:
//!
//! ```text
//! POST /v1/chat/completions          all of it, on the front
//! ├ prepare                          until the line had the request: read, templates, tokens
//! ├ generate                         one per choice
//! │ ├ queue                          until a slot was free; once more after an interruption
//! │ ├ prefill                        until the first token
//! │ │ └ chunk, window                as sent in that time
//! │ │   └ link to …, stage N         the way round; `stage N` has its `compute` inside
//! │ └ decode                         from the first token to the last
//! │   └ window …
//! └ deliver                          after the last token
//! ```
//!
//! `prepare`, the longest `generate` and `deliver` are the whole; so are `queue`, `prefill` and `decode` of a `generate`, and
//! the links and stages of a chunk or a window that came round. Chunks and windows overlap: that is what running ahead is.
//! Pure: no clock, no ids of its own drawing. Never what was said.

use std::time::Duration;

use scheduler::{Event, Failure, Fate, Journal, Piece, PieceName, StageSeen, Stay};

use super::round::{self, Leg};

/// Spans of one trace, beside those of its frame: some hundred windows on a line of three stages, and about a MiB on the
/// wire. Chunks and windows that there is no room for are counted on the root.
pub const MAX_SPANS: usize = 4096;

/// One span.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    /// Its number in the trace; not 0.
    pub id: u64,
    /// The span that it is inside of; absent for the root.
    pub parent: Option<u64>,
    /// What it is.
    pub name: String,
    /// Where it was measured.
    pub place: Place,
    /// Since the root's start.
    pub start: Duration,
    /// Since the root's start.
    pub end: Duration,
    /// Figures and names.
    pub attributes: Vec<(&'static str, Value)>,
    /// Whether what it stands for failed.
    pub failed: bool,
}

/// Where a span was measured.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// In the front.
    Front,
    /// In this stage.
    Stage(u16),
}

/// What an attribute says.
#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// A word or a text.
    Text(String),
    /// A number.
    Number(u64),
    /// Yes or no.
    Flag(bool),
    /// Several words.
    Words(Vec<String>),
}

impl From<&str> for Value {
    fn from(text: &str) -> Self {
        Self::Text(text.into())
    }
}

impl From<u32> for Value {
    fn from(number: u32) -> Self {
        Self::Number(u64::from(number))
    }
}

/// One choice of a request that is over.
#[derive(Debug, Default)]
pub(super) struct Choice {
    pub journal: Journal,
    /// OpenAI's word for how it ended.
    pub finish: &'static str,
}

/// A request that is over.
pub(super) struct Whole<'a> {
    /// Method and route.
    pub name: String,
    pub took: Duration,
    pub attributes: Vec<(&'static str, Value)>,
    pub failed: bool,
    pub choices: &'a [Choice],
    /// The moment of a journal as time since the root's start.
    pub at: &'a dyn Fn(&Journal, Duration) -> Duration,
    /// The root's number, from 1 to half of what there is; the others follow.
    pub first_id: u64,
}

/// All spans, the root first.
pub(super) fn of(whole: Whole<'_>) -> Vec<Span> {
    let mut tree = Tree { first_id: whole.first_id, spans: Vec::new(), left_out: 0 };
    let root = tree.add(None, whole.name, (Duration::ZERO, whole.took), whole.attributes);
    let submitted = |choice: &Choice| choice.journal.submitted.map(|at| (whole.at)(&choice.journal, at));
    let prepared = whole.choices.iter().filter_map(submitted).min();
    tree.add(Some(root), "prepare", (Duration::ZERO, prepared.unwrap_or(whole.took)), Vec::new());
    let mut last = Duration::ZERO;
    for choice in whole.choices {
        let at = |moment| (whole.at)(&choice.journal, moment).min(whole.took);
        last = last.max(generate(&mut tree, root, choice, &at, whole.took));
    }
    if prepared.is_some() {
        tree.add(Some(root), "deliver", (last, whole.took), Vec::new());
    }
    let left_out = tree.left_out + whole.choices.iter().map(|choice| choice.journal.left_out).sum::<u32>();
    if let Some(root) = tree.spans.first_mut() {
        let has_failed = |choice: &Choice| matches!(choice.journal.ended, Some((_, Event::Failed(_))));
        root.failed = whole.failed || whole.choices.iter().any(has_failed);
        if left_out > 0 {
            root.attributes.push(("paceline.left_out", left_out.into()));
        }
    }
    tree.spans
}

/// The spans of a choice; gives its end.
fn generate(
    tree: &mut Tree,
    root: u64,
    choice: &Choice,
    at: &dyn Fn(Duration) -> Duration,
    took: Duration,
) -> Duration {
    let journal = &choice.journal;
    let Some(start) = journal.submitted.map(at) else { return Duration::ZERO };
    let end = journal.ended.as_ref().map_or(took, |(moment, _)| at(*moment));
    let id = tree.add(Some(root), "generate", (start, end), figures(choice));
    if let Some((_, Event::Failed(_))) = &journal.ended {
        tree.span(id).failed = true;
    }
    let mut since = start;
    for (n, stay) in journal.stays.iter().enumerate() {
        let opened = at(stay.opened);
        tree.add(Some(id), "queue", (since, opened), interrupted(n > 0));
        since = stay.over.map_or(end, at);
        on_the_line(tree, Some(id), Shown { stay, stages: &journal.stages, at }, (opened, since));
    }
    if since < end || journal.stays.is_empty() {
        tree.add(Some(id), "queue", (since, end), interrupted(!journal.stays.is_empty()));
    }
    end
}

/// A time on the line, and how to show it.
struct Shown<'a> {
    stay: &'a Stay,
    stages: &'a [StageSeen],
    at: &'a dyn Fn(Duration) -> Duration,
}

fn on_the_line(tree: &mut Tree, parent: Option<u64>, shown: Shown<'_>, (opened, over): (Duration, Duration)) {
    let Shown { stay, at, .. } = shown;
    let first = stay.pieces.iter().find_map(|piece| match (&piece.name, &piece.fate) {
        (PieceName::Window { .. }, Fate::Back { at, .. }) => Some(*at),
        _ => None,
    });
    let decoding = first.map_or(over, at);
    let chunks = stay.pieces.iter().filter(|piece| matches!(piece.name, PieceName::Chunk { .. }));
    let chunked = chunks.map(|piece| piece.rows).sum::<u32>();
    let tokens = |piece: &Piece| if let Fate::Back { tokens, .. } = piece.fate { tokens } else { 0 };
    let brought = stay.pieces.iter().map(tokens).sum::<u32>();
    let prompt = vec![("paceline.cached_tokens", stay.cached.into()), ("paceline.rows", chunked.into())];
    let prefill = tree.add(parent, "prefill", (opened, decoding), prompt);
    let decode = first
        .map(|_| tree.add(parent, "decode", (decoding, over), vec![("paceline.tokens", brought.into())]));
    for piece in &stay.pieces {
        // Whoever runs ahead of the first token was sent in that time, too, and may outlast it.
        if tree.spans.len() >= MAX_SPANS {
            tree.left_out += 1;
            continue;
        }
        let inside = if first.is_none_or(|first| piece.sent < first) { Some(prefill) } else { decode };
        one_piece(tree, inside, piece, &shown, over);
    }
}

fn one_piece(tree: &mut Tree, parent: Option<u64>, piece: &Piece, shown: &Shown<'_>, over: Duration) {
    let start = (shown.at)(piece.sent);
    let (name, mut attributes) = match piece.name {
        PieceName::Chunk { end } => ("chunk", vec![("paceline.end", end.into())]),
        PieceName::Window { window, epoch } => {
            ("window", vec![("paceline.window", window.into()), ("paceline.epoch", epoch.into())])
        }
    };
    attributes.push(("paceline.rows", piece.rows.into()));
    let (end, outcome) = match &piece.fate {
        Fate::Back { at: back, tokens, .. } => {
            if *tokens > 0 {
                attributes.push(("paceline.tokens", (*tokens).into()));
            }
            ((shown.at)(*back), "answered")
        }
        Fate::Gone { at: gone } => ((shown.at)(*gone), "stale"),
        Fate::UnderWay => (over, "under way"),
    };
    attributes.push(("paceline.outcome", outcome.into()));
    let id = tree.add(parent, name, (start, end), attributes);
    if let Fate::Back { timings, .. } = &piece.fate {
        let mut since = start;
        for (leg, time) in round::legs(end.saturating_sub(start), timings, shown.stages) {
            let until = (since + time).min(end);
            one_leg(tree, Some(id), leg, timings.len(), (since, until));
            since = until;
        }
    }
}

fn one_leg(
    tree: &mut Tree,
    parent: Option<u64>,
    leg: Leg,
    n_stages: usize,
    (start, end): (Duration, Duration),
) {
    match leg {
        Leg::Link(to) => {
            let name = if to < n_stages { format!("link to stage {to}") } else { "link to front".into() };
            let estimated = vec![("paceline.estimated", Value::Flag(true))];
            tree.add(parent, name, (start, end), estimated);
        }
        Leg::Stage(at, timing) => {
            let (place, attributes) = (
                Place::Stage(at as u16),
                vec![
                    ("paceline.queue_us", timing.queue_us.into()),
                    ("paceline.compute_us", timing.compute_us.into()),
                    ("paceline.batch_rows", timing.batch_rows.into()),
                ],
            );
            let stage = tree.add(parent, format!("stage {at}"), (start, end), attributes);
            let waited = Duration::from_micros(u64::from(timing.queue_us));
            let compute = tree.add(Some(stage), "compute", ((start + waited).min(end), end), Vec::new());
            [stage, compute].into_iter().for_each(|id| tree.span(id).place = place);
        }
    }
}

fn interrupted(is: bool) -> Vec<(&'static str, Value)> {
    if is { vec![("paceline.interrupted", Value::Flag(true))] } else { Vec::new() }
}

/// What a choice came to.
fn figures(choice: &Choice) -> Vec<(&'static str, Value)> {
    let mut figures = vec![("gen_ai.response.finish_reasons", Value::Words(vec![choice.finish.to_owned()]))];
    match &choice.journal.ended {
        Some((_, Event::Done { timings, .. })) => {
            figures.extend([
                ("gen_ai.usage.input_tokens", timings.prompt_tokens.into()),
                ("gen_ai.usage.cache_read.input_tokens", timings.cached_tokens.into()),
                ("gen_ai.usage.output_tokens", timings.generated_tokens.into()),
                ("paceline.drafted_tokens", timings.drafted.into()),
                ("paceline.accepted_tokens", timings.accepted.into()),
                ("paceline.windows", timings.windows.into()),
                ("paceline.stale_windows", timings.stale_windows.into()),
            ]);
        }
        Some((_, Event::Failed(failure))) => figures.push(("error.type", kind_of(failure).into())),
        _ => {}
    }
    figures
}

/// A failure's kind. Its words may quote what was asked.
const fn kind_of(failure: &Failure) -> &'static str {
    match failure {
        Failure::QueueTimeout { .. } => "queue_timeout",
        Failure::QueueFull { .. } => "queue_full",
        Failure::LineLost { .. } => "line_lost",
        Failure::Parameters { .. } => "parameters",
        Failure::Fault { .. } => "fault",
    }
}

/// Spans in the making.
struct Tree {
    first_id: u64,
    spans: Vec<Span>,
    left_out: u32,
}

impl Tree {
    /// One more span inside of `parent`; gives its number.
    fn add(
        &mut self,
        parent: Option<u64>,
        name: impl Into<String>,
        (start, end): (Duration, Duration),
        attributes: Vec<(&'static str, Value)>,
    ) -> u64 {
        let id = self.first_id + self.spans.len() as u64;
        let (name, end) = (name.into(), end.max(start));
        self.spans.push(Span {
            id,
            parent,
            name,
            place: Place::Front,
            start,
            end,
            attributes,
            failed: false,
        });
        id
    }

    fn span(&mut self, id: u64) -> &mut Span {
        &mut self.spans[(id - self.first_id) as usize]
    }
}

#[cfg(test)]
mod tests;
