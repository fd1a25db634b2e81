//! The seams of `server` filled with the real thing: the front's line and the model's vocabulary.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use grammar::{Constraint, Forced, GrammarError, LazyGrammars};
use line::{Front, LineReadiness, LineSnapshot, SeatState};
use llama::Vocab;
use protocol::{Grammar, StageState, Token};
use scheduler::{Request, SequenceState, Tally};
use server::{
    Line, LineStatus, PrefixStatus, Readiness, SequenceStatus, SourceStatus, StageStatus, Submission,
    Submitting, Tokenizer, WindowStatus,
};
use spec::Proposer;

/// The line as the API sees it, from before the model is even opened.
#[derive(Default)]
pub(crate) struct ApiLine {
    front: OnceLock<Front>,
    /// Where guesses are made from what grammars force; unset if nobody guesses.
    grammars: OnceLock<Arc<ApiGrammars>>,
    starting: Mutex<Starting>,
}

/// What happens before there is a front.
#[derive(Clone, Default)]
struct Starting {
    what: String,
    progress: Option<f32>,
}

impl ApiLine {
    /// Says what the start is busy with.
    pub(crate) fn starting(&self, what: impl Into<String>, progress: Option<f32>) {
        *self.starting.lock().unwrap_or_else(PoisonError::into_inner) =
            Starting { what: what.into(), progress };
    }

    /// From now on what grammars force is guessed.
    pub(crate) fn guess_by(&self, grammars: Arc<ApiGrammars>) {
        // Set once, by the one caller; a second one would say the same.
        let _ = self.grammars.set(grammars);
    }

    /// The sources of guesses that a request's own grammar makes.
    async fn own_sources(&self, request: &Request) -> Vec<Box<dyn Proposer>> {
        let (Some(grammar), Some(grammars)) = (request.sampler.grammar.clone(), self.grammars.get()) else {
            return Vec::new();
        };
        let grammars = Arc::clone(grammars);
        // It was looked at before, so this is quick; without it the answer is the same, only later.
        let started = tokio::task::spawn_blocking(move || grammars.start(&grammar)).await;
        match started {
            Ok(Ok(constraint)) => vec![Box::new(Forced::new(constraint))],
            Ok(Err(_)) | Err(_) => Vec::new(),
        }
    }

    /// From now on the front speaks for itself.
    pub(crate) fn started(&self, front: Front) {
        // A line is started once; a second front would be a bug of the one caller.
        let first = self.front.set(front).is_ok();
        assert!(first, "a line is started once");
    }
}

impl Line for ApiLine {
    fn submit(&self, request: Request) -> Submitting<'_> {
        Box::pin(async move {
            let Some(front) = self.front.get() else { return Err(scheduler::Refusal::NotReady) };
            let own = self.own_sources(&request).await;
            front.submit_with(request, own).map(|(id, events)| {
                let front = front.clone();
                Submission::new(id, events, move |id| front.cancel(id))
            })
        })
    }

    fn readiness(&self) -> Readiness {
        match self.front.get().map(Front::readiness) {
            Some(LineReadiness::Ready) => Readiness::Ready,
            Some(LineReadiness::NotReady { reason, progress }) => {
                Readiness::NotReady { reason, progress: Some(progress) }
            }
            None => {
                let Starting { what, progress } =
                    self.starting.lock().unwrap_or_else(PoisonError::into_inner).clone();
                Readiness::NotReady { reason: what, progress }
            }
        }
    }

    fn status(&self) -> LineStatus {
        self.front.get().map(|front| status(&front.snapshot())).unwrap_or_default()
    }
}

fn status(line: &LineSnapshot) -> LineStatus {
    let live = || line.sequences.iter().filter(|seq| seq.state != SequenceState::Closing);
    let stats = &line.stats;
    LineStatus {
        stages: line.stages.iter().map(stage_status).collect(),
        sequences: live()
            .map(|seq| SequenceStatus {
                request: seq.request.0,
                phase: match seq.state {
                    SequenceState::Prefill => "prefill",
                    SequenceState::Decode => "decode",
                    SequenceState::Closing => "closing",
                }
                .to_owned(),
                prompt_tokens: seq.prompt,
                cached_tokens: seq.cached,
                generated_tokens: seq.positions.saturating_sub(seq.prompt),
            })
            .collect(),
        windows_in_flight: line.sequences.iter().map(|seq| seq.windows_in_flight).sum(),
        windows: WindowStatus {
            sent: stats.windows,
            live: stats.live_windows,
            stale: stats.stale_windows,
            in_flight_mean: (stats.in_flight.mean() * 1e3).round() / 1e3,
            in_flight_max: stats.in_flight.most,
            epochs: stats.epochs,
        },
        loop_ms: stats.loops.mean().as_secs_f32() * 1e3,
        ideal_ms: stats.loops.ideal().as_secs_f32() * 1e3,
        agreement: agreement(&stats.guesses),
        sources: SourceStatus::all(&stats.guesses),
        stale_share: if stats.windows == 0 { 0.0 } else { stats.stale_windows as f32 / stats.windows as f32 },
        queue: stats.queued,
        preempted: stats.preempted,
        resumed: stats.resumed,
        prefixes: PrefixStatus {
            held: stats.parked_prefixes,
            tokens: stats.parked_tokens,
            reused_tokens: stats.reused_tokens,
            shared_tokens: stats.shared_tokens,
            lost: stats.lost_prefixes,
            stored: stats.stored_prefixes,
            stored_tokens: stats.stored_tokens,
            restored_tokens: stats.restored_tokens,
        },
        mode: if line.relayed { "relay" } else { "direct" }.to_owned(),
    }
}

/// Of the sources that were asked about anything.
fn agreement(guesses: &Tally) -> BTreeMap<String, f32> {
    let scored = guesses.sources().filter(|source| source.scored > 0);
    scored.map(|source| (source.name.to_owned(), source.right as f32 / source.scored as f32)).collect()
}

fn stage_status(stage: &line::StageSnapshot) -> StageStatus {
    let (state, reason) = match &stage.seat.state {
        SeatState::Away { reason } => ("down", Some(reason.clone())),
        SeatState::Linked if stage.seat.failed.is_some() => ("failed", stage.seat.failed.clone()),
        SeatState::Linked => ("waiting", None),
        SeatState::Assigned(StageState::Idle { .. }) => ("waiting", None),
        SeatState::Assigned(StageState::Loading { what, .. }) => ("loading", Some(what.clone())),
        SeatState::Assigned(StageState::Linking) => ("linking", None),
        SeatState::Assigned(StageState::Ready { .. }) => ("ready", None),
        SeatState::Assigned(StageState::Failed { reason }) => ("failed", Some(reason.clone())),
    };
    StageStatus {
        address: match &stage.address {
            _ if stage.is_local => "local".to_owned(),
            address => address.clone().unwrap_or_default(),
        },
        pid: stage.seat.pid,
        layers: [stage.layers.start, stage.layers.end],
        state: state.to_owned(),
        reason,
        busy: stage.busy,
        rtt_ms: stage.rtt.map(|rtt| rtt.as_secs_f32() * 1e3),
        work: stage.counters.into(),
    }
}

/// Grammars over the model's vocabulary, which is prepared when the first one comes.
pub(crate) struct ApiGrammars {
    vocab: Arc<Vocab>,
    grammars: LazyGrammars,
}

impl ApiGrammars {
    pub(crate) fn new(vocab: Arc<Vocab>) -> Self {
        Self { vocab, grammars: LazyGrammars::default() }
    }

    /// A place at the beginning of the grammar. Takes from less than a millisecond to a second.
    ///
    /// # Errors
    /// If it cannot be followed.
    fn start(&self, grammar: &Grammar) -> Result<Constraint, GrammarError> {
        self.grammars.start(|| self.vocab.clone(), grammar)
    }
}

/// The model's vocabulary.
pub(crate) struct ApiTokenizer {
    vocab: Arc<Vocab>,
    grammars: Arc<ApiGrammars>,
    /// Ascending.
    ends: Vec<Token>,
}

impl ApiTokenizer {
    pub(crate) fn new(vocab: Arc<Vocab>, grammars: Arc<ApiGrammars>) -> Self {
        let mut ends = vocab.end_tokens();
        ends.sort_unstable();
        Self { vocab, grammars, ends }
    }
}

impl Tokenizer for ApiTokenizer {
    fn tokenize(&self, text: &str, add_special: bool, parse_special: bool) -> Vec<Token> {
        // Fails only for texts of more than 2^31 bytes, which no request can carry.
        self.vocab.tokenize(text, add_special, parse_special).unwrap_or_default()
    }

    fn piece(&self, token: Token, special: bool, out: &mut Vec<u8>) {
        self.vocab.append_bytes(token, special, out);
    }

    fn is_end(&self, token: Token) -> bool {
        self.ends.binary_search(&token).is_ok()
    }

    fn n_vocab(&self) -> u32 {
        self.vocab.n_tokens() as u32
    }

    fn check_grammar(&self, grammar: &Grammar) -> Result<(), String> {
        self.grammars.start(grammar).map(|_| ()).map_err(|error| error.to_string())
    }
}
