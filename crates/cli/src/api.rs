//! The seams of `server` filled with the real thing: the front's line and the model's vocabulary.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use grammar::{Constraint, Forced, GrammarError, LazyGrammars};
use line::{Cover, Front, Leaving, LineReadiness, LineSnapshot, Onlookers, Peer, PeerState};
use llama::Vocab;
use protocol::{Grammar, StageState, Token};
use scheduler::{Movement, Request, RequestId, SequenceState, SharedJournal, Tally};
use server::{
    Line, LineStatus, LineWatch, PrefixStatus, Readiness, SequenceStatus, SourceStatus, SpareStatus,
    StageStatus, Submission, Submitting, TokenStatus, Tokenizer, WindowStatus,
};
use spec::Proposer;
use tokio::sync::{broadcast, watch};

/// Movements that wait for whoever watches: some seconds of a busy line.
const MOVEMENTS: usize = 1024;

/// The line as the API sees it, from before the model is even opened.
pub(crate) struct ApiLine {
    front: OnceLock<Front>,
    /// Whether whoever runs the front also starts its stages again.
    restarts: bool,
    changed: watch::Sender<()>,
    movements: broadcast::Sender<Movement>,
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
    /// A line that has yet to start; whether its lost stages are started again without anybody's help.
    pub(crate) fn new(restarts: bool) -> Self {
        Self {
            front: OnceLock::new(),
            restarts,
            changed: watch::Sender::new(()),
            movements: broadcast::Sender::new(MOVEMENTS),
            grammars: OnceLock::new(),
            starting: Mutex::default(),
        }
    }

    /// Says what the start is busy with.
    pub(crate) fn starting(&self, what: impl Into<String>, progress: Option<f32>) {
        *self.starting.lock().unwrap_or_else(PoisonError::into_inner) =
            Starting { what: what.into(), progress };
        self.changed.send_replace(());
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
        front.show_to(Onlookers { changed: self.changed.clone(), movements: self.movements.clone() });
        // A line is started once; a second front would be a bug of the one caller.
        let first = self.front.set(front).is_ok();
        assert!(first, "a line is started once");
        self.changed.send_replace(());
    }
}

impl Line for ApiLine {
    fn submit(&self, request: Request, journal: Option<SharedJournal>) -> Submitting<'_> {
        Box::pin(async move {
            let Some(front) = self.front.get() else { return Err(scheduler::Refusal::NotReady) };
            let own = self.own_sources(&request).await;
            front.submit_traced(request, own, journal).map(|(id, events)| {
                let front = front.clone();
                Submission::new(id, events, move |id| front.cancel(id))
            })
        })
    }

    fn readiness(&self) -> Readiness {
        match self.front.get().map(Front::readiness) {
            Some(LineReadiness::Ready) => Readiness::Ready,
            Some(LineReadiness::NotReady { reason, progress, takes_requests }) => {
                Readiness::NotReady { reason, progress: Some(progress), takes_requests }
            }
            None => {
                let Starting { what, progress } =
                    self.starting.lock().unwrap_or_else(PoisonError::into_inner).clone();
                Readiness::NotReady { reason: what, progress, takes_requests: false }
            }
        }
    }

    fn status(&self) -> LineStatus {
        self.front.get().map(|front| status(&front.snapshot(), self.restarts)).unwrap_or_default()
    }

    fn cancel(&self, id: RequestId) {
        if let Some(front) = self.front.get() {
            front.cancel(id);
        }
    }

    fn watch(&self) -> LineWatch {
        LineWatch { changed: self.changed.subscribe(), movements: self.movements.subscribe() }
    }
}

fn status(line: &LineSnapshot, restarts: bool) -> LineStatus {
    let live = || line.sequences.iter().filter(|seq| seq.state != SequenceState::Closing);
    let stats = &line.stats;
    LineStatus {
        stages: line.stages.iter().map(|stage| stage_status(stage, restarts)).collect(),
        given_stages: line.n_given,
        spares: line.spares.iter().map(|spare| spare_status(spare, restarts)).collect(),
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
                drafted_tokens: seq.drafted,
                accepted_tokens: seq.accepted,
                windows_in_flight: seq.windows_in_flight,
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
        tokens: TokenStatus { prompt: stats.prefilled_tokens, generated: stats.generated_tokens },
        prefixes: PrefixStatus {
            held: stats.parked_prefixes,
            tokens: stats.parked_tokens,
            reused_tokens: stats.reused_tokens,
            shared_tokens: stats.shared_tokens,
            lost: stats.lost_prefixes,
            partly_reused_tokens: stats.partly_reused_tokens,
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

fn stage_status(stage: &line::StageSnapshot, restarts: bool) -> StageStatus {
    let peer = &stage.peer;
    let (state, reason) = state_of(peer);
    let address = if stage.is_local { "local".to_owned() } else { peer.address.clone().unwrap_or_default() };
    let (weight_bytes, kv_bytes) = memory_of(peer);
    StageStatus {
        advice: advice(state, &address, restarts),
        address,
        pid: peer.pid,
        layers: [stage.layers.start, stage.layers.end],
        state: state.to_owned(),
        reason,
        standby: match stage.cover {
            Cover::Warm => "warm",
            Cover::Cold => "cold",
            Cover::Nobody => "none",
        }
        .to_owned(),
        weight_bytes,
        kv_bytes,
        row_bytes: stage.row_bytes,
        busy: stage.busy,
        rtt_ms: stage.rtt.map(|rtt| rtt.as_secs_f32() * 1e3),
        work: stage.counters.into(),
    }
}

fn spare_status(spare: &line::SpareSnapshot, restarts: bool) -> SpareStatus {
    let (state, reason) = state_of(&spare.peer);
    let address = spare.peer.address.clone().unwrap_or_default();
    let (weight_bytes, kv_bytes) = memory_of(&spare.peer);
    SpareStatus {
        advice: advice(state, &address, restarts),
        address,
        pid: spare.peer.pid,
        layers: spare.layers.map(|layers| [layers.start, layers.end]),
        state: state.to_owned(),
        reason,
        weight_bytes,
        kv_bytes,
        rtt_ms: spare.rtt.map(|rtt| rtt.as_secs_f32() * 1e3),
    }
}

/// How far a machine has come, and what is to be said of that.
fn state_of(peer: &Peer) -> (&'static str, Option<String>) {
    let said = match &peer.state {
        PeerState::Away { reason } if peer.gone => return ("gone", Some(reason.clone())),
        PeerState::Away { reason } => return ("down", Some(reason.clone())),
        PeerState::Linked if peer.failed.is_some() => return ("failed", peer.failed.clone()),
        PeerState::Linked => return ("waiting", None),
        PeerState::Assigned(said) | PeerState::Spare { state: said, .. } => said,
    };
    match said {
        StageState::Idle { .. } => ("waiting", None),
        StageState::Loading { what, .. } => ("loading", Some(what.clone())),
        StageState::Linking => ("linking", None),
        StageState::Ready { .. } if peer.leaving != Leaving::No => {
            ("ready", Some("its process was told to end, and goes when it is not needed any more".to_owned()))
        }
        StageState::Ready { .. } => ("ready", None),
        StageState::Standby { .. } => ("spare", None),
        StageState::Failed { reason } => ("failed", Some(reason.clone())),
    }
}

/// Bytes of weights, and of keys and values.
const fn memory_of(peer: &Peer) -> (Option<u64>, Option<u64>) {
    match peer.state {
        PeerState::Assigned(StageState::Ready { weight_bytes, kv_bytes, .. })
        | PeerState::Spare { state: StageState::Standby { weight_bytes, kv_bytes, .. }, .. } => {
            (Some(weight_bytes), Some(kv_bytes))
        }
        _ => (None, None),
    }
}

/// What a person can do about a stage in this state.
fn advice(state: &str, address: &str, restarts: bool) -> Option<String> {
    match state {
        "down" | "gone" if restarts => Some("Nothing to do: it is being started again.".to_owned()),
        "down" | "gone" => Some(format!(
            "Look whether the machine at {address} is on and reachable, and run `paceline stage` there; the line goes on \
             by itself once it is back."
        )),
        "failed" => {
            Some("Remove the cause where the stage runs; it is tried again every few seconds.".to_owned())
        }
        _ => None,
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
