//! What fuzzing begins with: a message of each kind, and more where a kind has parts that may be missing.

use bytes::Bytes;

use super::Wire;
use super::files::Seeds;
use crate::{
    After, Assign, Chunk, Close, Command, Company, Downstream, End, Epoch, Fault, FaultKind, Found, Frame,
    Generation, Grammar, GrammarKind, Held, Hello, HelloReply, HiddenRows, Hint, Holding, KvType, LayerRange,
    LinkRole, Mirostat, ModelId, NodeId, OfPrompt, Open, PROTOCOL_VERSION, Park, PeerIndex, Pooling,
    Position, PrefixKey, Progress, PromptPart, RefuseReason, Report, Reuse, RowDtype, Rows, RowsHello,
    SamplerParams, SeqId, Sight, StageCounters, StageIndex, StageState, StageTiming, Stored, TailDraft,
    Tenant, ToFront, ToStage, Token, TokenLogprobs, Verdict, WantDraft, Window, WindowId, Work, XtcParams,
};

/// A message whose kinds have names: those of its seeds, but for what is added to tell several of one kind apart.
pub(super) trait Kinds: Wire {
    fn kind(&self) -> &'static str;
}

/// The bytes of each under its kind and what is added.
pub(super) fn bytes<T: Kinds>(values: Vec<(&str, T)>) -> Seeds {
    let n = values.len();
    let named = values.into_iter().map(|(added, value)| {
        let mut bytes = Vec::new();
        value.encode(&mut bytes);
        (format!("{}{added}", value.kind()), bytes)
    });
    let seeds: Seeds = named.collect();
    assert_eq!(seeds.len(), n, "two seeds have the same name");
    seeds
}

const SEQ: SeqId = SeqId(7);

fn tokens() -> Vec<Token> {
    [1, 15043, 3186].map(Token).to_vec()
}

fn timings() -> Vec<StageTiming> {
    let first = StageTiming { queue_us: 120, compute_us: 4500, batch_rows: 3 };
    vec![first, StageTiming { queue_us: 15, ..first }]
}

impl Kinds for Frame {
    fn kind(&self) -> &'static str {
        match self.work {
            Work::Open(_) => "open",
            Work::Chunk(_) => "chunk",
            Work::Window(_) => "window",
            Work::Park(_) => "park",
            Work::Close(_) => "close",
        }
    }
}

fn open() -> Open {
    Open {
        seq: SEQ,
        start: Position(0),
        reuse: None,
        held: None,
        seed: 42,
        choice: 0,
        sampler: SamplerParams::default(),
        limit: Position(128),
        ignore_eos: false,
        top_logprobs: None,
        of_prompt: None,
        history: Vec::new(),
    }
}

/// With everything that an `Open` may have.
fn open_whole() -> Open {
    let mut sampler = SamplerParams {
        temperature: 0.7,
        top_k: 40,
        top_p: 0.9,
        min_p: 0.05,
        logit_bias: vec![(Token(13), -2.5), (Token(2), f32::NEG_INFINITY)],
        xtc: XtcParams { probability: 0.5, ..XtcParams::default() },
        mirostat: Some(Mirostat { version: 2, tau: 5.0, eta: 0.1, mu: 10.0 }),
        grammar: Some(Grammar {
            after: Some(After::may("</think>")),
            said: tokens(),
            ..Grammar::new(GrammarKind::JsonSchema, r#"{"type":"object"}"#)
        }),
        ..SamplerParams::default()
    };
    sampler.dry.multiplier = 0.8;
    Open {
        start: Position(3),
        reuse: Some(Reuse { prefix: SeqId(3), keep: true, stored: Some(PrefixKey([5; 32])) }),
        choice: 1,
        sampler,
        ignore_eos: true,
        top_logprobs: Some(5),
        history: tokens(),
        ..open()
    }
}

fn window() -> Window {
    Window {
        seq: SEQ,
        epoch: Epoch(2),
        window: WindowId(9),
        base: Position(64),
        tokens: tokens(),
        run_ahead: true,
        want_draft: Some(WantDraft { tokens: 4, unless: Some(Token(29991)) }),
    }
}

pub(super) fn frames() -> Vec<(&'static str, Frame)> {
    let held = Some(Held { prefix: SeqId(3), len: Position(64), lost_by: 1 });
    let open_of = |of_prompt| Open { of_prompt: Some(of_prompt), ..open() };
    let opens = [
        ("", open()),
        ("_whole", open_whole()),
        ("_held", Open { held, ..open() }),
        ("_logprobs", open_of(OfPrompt::Logprobs { top: 2 })),
        ("_embedding", open_of(OfPrompt::Embedding(Pooling::Mean))),
    ];
    let opens = opens.map(|(added, open)| (added, Frame::new(Work::Open(Box::new(open)))));

    let chunk = Chunk { seq: SEQ, base: Position(0), tokens: tokens(), follows: None };
    let follows = Chunk { follows: Some(Token(29991)), ..chunk.clone() };
    let values: Vec<f32> = (0..12_u8).map(|i| f32::from(i) * 0.37 - 2.0).collect();
    let rows = |dtype| Rows::pack(dtype, 4, &values).unwrap();
    let on_its_way = |dtype, company| Frame {
        work: Work::Window(window()),
        rows: Some(rows(dtype)),
        timings: timings(),
        company,
    };
    let computed = [
        ("", Frame::new(Work::Chunk(chunk.clone()))),
        ("_follows", Frame::new(Work::Chunk(follows))),
        ("_rows", Frame { rows: Some(rows(RowDtype::F32)), ..Frame::new(Work::Chunk(chunk)) }),
        ("", Frame::new(Work::Window(window()))),
        ("_f32", on_its_way(RowDtype::F32, Company::Alone)),
        ("_f16", on_its_way(RowDtype::F16, Company::Leads(1))),
        ("_bf16", on_its_way(RowDtype::Bf16, Company::Follows)),
        ("_q8", on_its_way(RowDtype::Q8, Company::Alone)),
    ];
    let park = |store| Frame::new(Work::Park(Park { seq: SEQ, len: Position(66), store }));
    let ends = [
        ("", park(None)),
        ("_store", park(Some(PrefixKey([5; 32])))),
        ("", Frame::new(Work::Close(Close { seq: SEQ, inputs: Position(66) }))),
    ];
    opens.into_iter().chain(computed).chain(ends).collect()
}

impl Kinds for ToStage {
    fn kind(&self) -> &'static str {
        match self.command {
            Command::Assign(_) => "stage_assign",
            Command::Prepare(_) => "stage_prepare",
            Command::Notice(_) => "stage_notice",
            Command::Release => "stage_release",
            Command::Hint(Hint::Advance { .. }) => "stage_hint_advance",
            Command::Hint(Hint::Drop { .. }) => "stage_hint_drop",
            Command::Hint(Hint::Together { .. }) => "stage_hint_together",
        }
    }
}

const fn holding() -> Holding {
    Holding {
        model: ModelId([1; 32]),
        layers: LayerRange { start: 0, end: 16 },
        n_layers: 32,
        context: 4096,
        n_slots: 8,
        max_rows: 512,
        kv: KvType::Q8_0,
        exact: true,
        swa_full: false,
        undo_rows: 9,
        drafts: true,
    }
}

pub(super) fn to_stage() -> Vec<(&'static str, ToStage)> {
    let downstream = Downstream {
        address: "10.0.0.2:7411".into(),
        node: Some(NodeId([3; 32])),
        relay: Some(PeerIndex(1)),
    };
    let assign = Assign {
        index: StageIndex(0),
        n_stages: 2,
        holding: holding(),
        row_dtype: RowDtype::F16,
        prefix_bytes: 64 << 20,
        keep: Some(Generation(1_764_700_000_000)),
        upstream: NodeId([2; 32]),
        downstream: Some(downstream),
    };
    let layers = LayerRange { start: 16, end: 32 };
    let tail = Assign {
        index: StageIndex(1),
        holding: Holding { layers, ..holding() },
        downstream: None,
        ..assign.clone()
    };
    let commands = [
        ("", Command::Assign(Box::new(assign))),
        ("_tail", Command::Assign(Box::new(tail))),
        ("", Command::Prepare(holding())),
        ("", Command::Notice(Bytes::from_static(b"what the root says"))),
        ("", Command::Release),
        ("", Command::Hint(Hint::Advance { seq: SEQ, epoch: Epoch(2) })),
        ("", Command::Hint(Hint::Drop { seq: SEQ })),
        ("", Command::Hint(Hint::Together { sequences: 4 })),
    ];
    let message = |command| ToStage { to: PeerIndex(1), generation: Generation(6), command };
    commands.into_iter().map(|(added, command)| (added, message(command))).collect()
}

impl Kinds for ToFront {
    fn kind(&self) -> &'static str {
        match &self.report {
            Report::State(state) => match state {
                StageState::Idle { .. } => "front_idle",
                StageState::Loading { .. } => "front_loading",
                StageState::Linking => "front_linking",
                StageState::Ready { .. } => "front_ready",
                StageState::Standby { .. } => "front_standby",
                StageState::Failed { .. } => "front_failed",
            },
            Report::Verdict(_) => "front_verdict",
            Report::Draft(_) => "front_draft",
            Report::Prompt(part) => match part.found {
                Found::Logprobs(_) => "front_prompt_logprobs",
                Found::Rows(_) => "front_prompt_rows",
            },
            Report::Progress(_) => "front_progress",
            Report::Closed(_) => "front_closed",
            Report::Fault(fault) => match fault.kind {
                FaultKind::Diverged { .. } => "front_fault_diverged",
                FaultKind::Gap { .. } => "front_fault_gap",
                FaultKind::Rewind { .. } => "front_fault_rewind",
                FaultKind::UnknownSequence => "front_fault_unknown",
                FaultKind::AlreadyOpen => "front_fault_open_already",
                FaultKind::ContextFull { .. } => "front_fault_context",
                FaultKind::TooManySequences { .. } => "front_fault_sequences",
                FaultKind::BadRows { .. } => "front_fault_rows",
                FaultKind::Engine { .. } => "front_fault_engine",
                FaultKind::Sampler { .. } => "front_fault_sampler",
                FaultKind::Link { .. } => "front_fault_link",
                FaultKind::PrefixLost { .. } => "front_fault_prefix",
                FaultKind::Unsupported { .. } => "front_fault_unsupported",
            },
            Report::Stored(_) => "front_stored",
            Report::Notice(_) => "front_notice",
            Report::Leaving => "front_leaving",
            Report::Counters(_) => "front_counters",
        }
    }
}

fn states() -> [StageState; 6] {
    let (weight_bytes, kv_bytes) = (4 << 30, 1 << 28);
    [
        StageState::Idle { node: NodeId([3; 32]), pid: 4711 },
        StageState::Loading { permille: 250, what: "reading layers 0..16".into() },
        StageState::Linking,
        StageState::Ready { keeps: true, row_width: 4096, weight_bytes, kv_bytes },
        StageState::Standby { layers: holding().layers, weight_bytes, kv_bytes },
        StageState::Failed { reason: "there is no such model here".into() },
    ]
}

fn faults() -> [FaultKind; 13] {
    let (base, reason) = (Position(64), || "what it said".to_owned());
    [
        FaultKind::Diverged { base, token: Token(1), expected: Position(65), expected_token: Token(2) },
        FaultKind::Gap { base, next: Position(60) },
        FaultKind::Rewind { base, oldest: Position(70) },
        FaultKind::UnknownSequence,
        FaultKind::AlreadyOpen,
        FaultKind::ContextFull { end: Position(4097), context: 4096 },
        FaultKind::TooManySequences { limit: 8 },
        FaultKind::BadRows { reason: reason() },
        FaultKind::Engine { reason: reason() },
        FaultKind::Sampler { reason: reason() },
        FaultKind::Link { reason: reason() },
        FaultKind::PrefixLost { prefix: SeqId(3) },
        FaultKind::Unsupported { what: "drafting".into() },
    ]
}

fn verdict() -> Verdict {
    Verdict {
        seq: SEQ,
        epoch: Epoch(2),
        window: WindowId(9),
        base: Position(64),
        tokens: tokens(),
        ended: None,
        logprobs: Vec::new(),
        mu: None,
        timings: Vec::new(),
        company: Company::Alone,
        drafts: false,
    }
}

pub(super) fn to_front() -> Vec<(&'static str, ToFront)> {
    let logprobs =
        vec![
            TokenLogprobs { logprob: -0.25, top: vec![(Token(1), -0.25), (Token(2), f32::NEG_INFINITY)] };
            tokens().len()
        ];
    let part = |found| Report::Prompt(Box::new(PromptPart { seq: SEQ, base: Position(0), found }));
    let whole = Verdict {
        ended: Some(End::Grammar),
        logprobs: logprobs.clone(),
        mu: Some(9.5),
        timings: timings(),
        company: Company::Leads(2),
        drafts: true,
        ..verdict()
    };
    let draft = TailDraft {
        seq: SEQ,
        base: Position(69),
        tokens: tokens(),
        probabilities: tokens().iter().map(|_| 0.75).collect(),
        timing: StageTiming { queue_us: 0, compute_us: 900, batch_rows: 7 },
        company: Company::Alone,
    };
    let counters =
        StageCounters { calls: 900, rows: 2700, windows: 800, chunks: 4, ..StageCounters::default() };
    let fault = |seq, kind| Report::Fault(Fault { seq, kind });
    let reports = [
        ("", Report::Verdict(Box::new(verdict()))),
        ("_whole", Report::Verdict(Box::new(whole))),
        ("", Report::Draft(Box::new(draft))),
        ("", part(Found::Logprobs(logprobs))),
        ("", part(Found::Rows(HiddenRows { width: 2, values: vec![0.5, -1.0, 0.0, 2.5] }))),
        ("", Report::Progress(Progress { seq: SEQ, next: Position(3), timings: timings() })),
        ("", Report::Closed(SEQ)),
        ("_of_all", fault(None, FaultKind::Engine { reason: "out of memory".into() })),
        ("", Report::Stored(Stored { prefix: SEQ, kept: true })),
        ("", Report::Notice(Bytes::from_static(b"what the root says"))),
        ("", Report::Leaving),
        ("", Report::Counters(counters)),
    ];
    let states = states().map(|state| ("", Report::State(state)));
    let faults = faults().map(|kind| ("", fault(Some(SEQ), kind)));
    let message = |report| ToFront { from: PeerIndex(1), generation: Generation(6), report };
    let all = reports.into_iter().chain(states).chain(faults);
    all.map(|(added, report)| (added, message(report))).collect()
}

impl Kinds for Hello {
    fn kind(&self) -> &'static str {
        match self.role {
            LinkRole::Control { .. } => "hello_control",
            LinkRole::Rows(_) => "hello_rows",
            LinkRole::Observe { .. } => "hello_observe",
        }
    }
}

const BUILD: &str = "paceline 0.1.0 (x86-64-v3)";

pub(super) fn hellos() -> Vec<(&'static str, Hello)> {
    let rows = RowsHello {
        generation: Generation(6),
        to: StageIndex(1),
        model: ModelId([1; 32]),
        layer: 16,
        row_width: 4096,
        row_dtype: RowDtype::F16,
        context: 4096,
    };
    let roles = [
        LinkRole::Control { peer: PeerIndex(1), front: NodeId([2; 32]) },
        LinkRole::Rows(rows),
        LinkRole::Observe { notice: Bytes::from_static(b"what the root says") },
    ];
    roles.map(|role| ("", Hello { version: PROTOCOL_VERSION, build: BUILD.into(), role })).into()
}

impl Kinds for HelloReply {
    fn kind(&self) -> &'static str {
        match self {
            Self::Accept { .. } => "reply_accept",
            Self::Seen(_) => "reply_seen",
            Self::Refuse(reason) => match reason {
                RefuseReason::Version { .. } => "reply_version",
                RefuseReason::Kept { .. } => "reply_kept",
                RefuseReason::Ending => "reply_ending",
                RefuseReason::LetGo => "reply_let_go",
                RefuseReason::LeftOut => "reply_left_out",
                RefuseReason::NotHeeded => "reply_not_heeded",
                RefuseReason::OtherPurpose => "reply_other_purpose",
                RefuseReason::NotAssigned { .. } => "reply_not_assigned",
                RefuseReason::WrongPeer => "reply_wrong_peer",
                RefuseReason::Mismatch { .. } => "reply_mismatch",
            },
        }
    }
}

pub(super) fn replies() -> Vec<(&'static str, HelloReply)> {
    let tenant = Tenant { front: NodeId([2; 32]), left_ms: Some(9000) };
    let free = Sight { build: BUILD.into(), tenant: None, layers: None, works: false, notice: 0 };
    let works = Sight {
        tenant: Some(Tenant { left_ms: None, ..tenant }),
        layers: Some(holding().layers),
        works: true,
        notice: 3,
        ..free.clone()
    };
    let reasons = [
        RefuseReason::Version { ours: PROTOCOL_VERSION, theirs: 1 },
        RefuseReason::Kept { tenant },
        RefuseReason::Ending,
        RefuseReason::LetGo,
        RefuseReason::LeftOut,
        RefuseReason::NotHeeded,
        RefuseReason::OtherPurpose,
        RefuseReason::NotAssigned { generation: Generation(6) },
        RefuseReason::WrongPeer,
        RefuseReason::Mismatch { field: "context".into(), ours: "4096".into(), theirs: "8192".into() },
    ];
    let others = [
        ("", HelloReply::Accept { build: BUILD.into() }),
        ("", HelloReply::Seen(works)),
        ("_free", HelloReply::Seen(free)),
    ];
    others.into_iter().chain(reasons.map(|reason| ("", HelloReply::Refuse(reason)))).collect()
}
