//! Control messages: between the front and one stage, directly or passed on by the stages between.

use bytes::Bytes;

use crate::{
    Epoch, Generation, LayerRange, ModelId, NodeId, PeerIndex, Position, PromptPart, RowDtype, SeqId,
    StageIndex, StageTiming, TailDraft, Token, Verdict,
};

/// A message on its way to a stage. A stage that is not `to` passes it on.
#[derive(Clone, Debug, PartialEq)]
pub struct ToStage {
    /// Whom it is for.
    pub to: PeerIndex,
    /// The line it belongs to; a stage drops a hint of another generation.
    pub generation: Generation,
    /// The message.
    pub command: Command,
}

/// A message on its way to the front.
#[derive(Clone, Debug, PartialEq)]
pub struct ToFront {
    /// Who speaks.
    pub from: PeerIndex,
    /// The line it belongs to, 0 from a stage without a place in one; the front drops a report of another generation.
    pub generation: Generation,
    /// The message.
    pub report: Report,
}

/// What the front asks of a stage.
#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// Take this place in a line: load the layers and link to the next stage.
    Assign(Box<Assign>),
    /// Stand by without a place in a line: load these layers, and wait.
    Prepare(Holding),
    /// What the cluster's root says of its members.
    Notice(Bytes),
    /// Leave the line, and be free for any front. What is loaded stays a while, in case that the next one needs it.
    Release,
    /// Something that saves work, and changes nothing else.
    Hint(Hint),
}

/// A stage's place in a line. It names a model by identity; no path ever comes from a frame.
#[derive(Clone, Debug, PartialEq)]
pub struct Assign {
    /// The stage's own place.
    pub index: StageIndex,
    /// Stages in the line; the last one samples.
    pub n_stages: u16,
    /// What it computes with.
    pub holding: Holding,
    /// How hidden rows travel.
    pub row_dtype: RowDtype,
    /// Bytes for parked prefixes beside the engine.
    pub prefix_bytes: u64,
    /// The last generation of this front's life in which its line worked. A stage that had a place in it, and has lost
    /// nothing since, keeps what it holds of its sequences; any other begins with nothing, and so does each if none is named.
    pub keep: Option<Generation>,
    /// The only node whose rows the stage accepts (the front itself for the first stage).
    pub upstream: NodeId,
    /// Where the rows go; none for the tail.
    pub downstream: Option<Downstream>,
}

/// What a stage holds in memory: layers of a model, and room for sequences. A stage that holds the right thing already
/// loads nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holding {
    /// Which model.
    pub model: ModelId,
    /// Which of its layers.
    pub layers: LayerRange,
    /// Layers of the whole model.
    pub n_layers: u32,
    /// Positions per sequence.
    pub context: u32,
    /// Sequences at once.
    pub n_slots: u16,
    /// Rows in one engine call at most.
    pub max_rows: u32,
    /// How keys and values are stored.
    pub kv: KvType,
    /// Whether results must not depend on batch shape.
    pub exact: bool,
    /// Whether layers that look back over a window only keep every position all the same. If not they take less memory,
    /// but sequences can be cut a little only, and prefixes taken over whole only.
    pub swa_full: bool,
    /// Rows of a call that must be possible to take back where layers are recurrent: the guesses of the widest window.
    pub undo_rows: u32,
    /// Whether the tail drafts with the model's own blocks for that.
    pub drafts: bool,
}

/// The next stage of the line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Downstream {
    /// `host:port`.
    pub address: String,
    /// The node expected there, if the front knows it; any member of the cluster otherwise.
    pub node: Option<NodeId>,
    /// Its number, if the front cannot reach it: control messages to it and reports from it pass through this stage.
    pub relay: Option<PeerIndex>,
}

/// Storage of keys and values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KvType {
    /// Half precision.
    #[default]
    F16,
    /// 8-bit blocks.
    Q8_0,
    /// 4-bit blocks.
    Q4_0,
}

/// Out of band, monotone and idempotent: it never creates or frees state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hint {
    /// Windows of the sequence older than `epoch` need not be computed.
    Advance {
        /// Whose windows.
        seq: SeqId,
        /// The oldest epoch worth computing.
        epoch: Epoch,
    },
    /// Nothing of the sequence need be computed any more; its `Close` is on the way.
    Drop {
        /// Which one.
        seq: SeqId,
    },
    /// The first stage shall take windows of so many sequences at most into one call, so that the other stages have
    /// something to do meanwhile.
    Together {
        /// At least 1.
        sequences: u16,
    },
}

/// What a stage tells the front.
#[derive(Clone, Debug, PartialEq)]
pub enum Report {
    /// How far an assignment has come.
    State(StageState),
    /// From the tail: a window was checked.
    Verdict(Box<Verdict>),
    /// From the tail: what it expects to follow a verdict that announced this.
    Draft(Box<TailDraft>),
    /// From the tail: something that was wanted of a prompt, before the report on the chunk that it is of.
    Prompt(Box<PromptPart>),
    /// From the tail: a chunk passed through the whole line.
    Progress(Progress),
    /// From the tail: the sequence's `Close` passed through the whole line, its memory is free everywhere.
    Closed(SeqId),
    /// Something contradicted what the stage holds, or the engine refused.
    Fault(Fault),
    /// What came of a [`Park`](crate::Park) with a key.
    Stored(Stored),
    /// What the cluster's root says of its members.
    Notice(Bytes),
    /// The stage's process was told to end: it goes on until it is released, or as long as its own grace lasts.
    Leaving,
    /// What the stage has counted in this generation. For people and programs that watch; nothing depends on it.
    Counters(StageCounters),
}

impl Report {
    /// Whose work on the line it answers: what only the tail says, and owes to every sequence. None for what any stage may
    /// say, whatever it is about.
    #[must_use]
    pub fn answers(&self) -> Option<SeqId> {
        match self {
            Self::Verdict(verdict) => Some(verdict.seq),
            Self::Draft(draft) => Some(draft.seq),
            Self::Prompt(part) => Some(part.seq),
            Self::Progress(progress) => Some(progress.seq),
            Self::Closed(seq) => Some(*seq),
            Self::State(_)
            | Self::Counters(_)
            | Self::Leaving
            | Self::Notice(_)
            | Self::Stored(_)
            | Self::Fault(_) => None,
        }
    }
}

/// A parked prefix was to be stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stored {
    /// Which one.
    pub prefix: SeqId,
    /// Whether the stage's store has it now. If not, the stage stores nothing any more in this generation. A prefix that
    /// was taken over or dropped before it could be stored is answered by nothing.
    pub kept: bool,
}

/// What a stage counts from the start of a generation on; the numbers only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StageCounters {
    /// Engine calls with rows.
    pub calls: u64,
    /// Rows in them.
    pub rows: u64,
    /// Windows computed.
    pub windows: u64,
    /// Prompt chunks computed.
    pub chunks: u64,
    /// Windows that were stale before they were computed, and were not.
    pub stale_windows: u64,
    /// Their rows.
    pub stale_rows: u64,
    /// Windows passed over because their sequence had been given up, had ended or was poisoned.
    pub passed_windows: u64,
    /// Prompt chunks passed over for the same reasons.
    pub passed_chunks: u64,
    /// Rows computed for nothing.
    pub wasted_rows: u64,
    /// Prefixes that its store has taken.
    pub stored_prefixes: u64,
    /// Prefixes that its store has given back.
    pub restored_prefixes: u64,
    /// Prefixes that its store did not have, or not as they had been stored.
    pub missed_prefixes: u64,
}

/// Where a stage stands.
#[derive(Clone, Debug, PartialEq)]
pub enum StageState {
    /// Waits for an assignment; the first report on every control link.
    Idle {
        /// The stage's own key, for the peers that the front will name.
        node: NodeId,
        /// The operating system's process id, for people.
        pid: u32,
    },
    /// Finds, cuts or loads its layers.
    Loading {
        /// Share done, 0 to 1000.
        permille: u16,
        /// What it is doing, for people.
        what: String,
    },
    /// Loaded; waits for the next stage to answer.
    Linking,
    /// Loaded and linked.
    Ready {
        /// Whether it still holds what it held in the generation that [`Assign::keep`] names.
        keeps: bool,
        /// Floats in a hidden row.
        row_width: u32,
        /// Bytes of weights in memory.
        weight_bytes: u64,
        /// Bytes of keys and values in memory.
        kv_bytes: u64,
    },
    /// Holds what it was asked to prepare: it stands by.
    Standby {
        /// Its layers.
        layers: LayerRange,
        /// Bytes of weights in memory.
        weight_bytes: u64,
        /// Bytes of keys and values in memory.
        kv_bytes: u64,
    },
    /// Cannot do what it was asked, and why.
    Failed {
        /// For people: one sentence.
        reason: String,
    },
}

/// A chunk of a prompt passed through the whole line.
#[derive(Clone, Debug, PartialEq)]
pub struct Progress {
    /// Whose prompt.
    pub seq: SeqId,
    /// The first position not computed yet.
    pub next: Position,
    /// What each stage measured on the chunk, stage 0 first.
    pub timings: Vec<StageTiming>,
}

/// A sequence that cannot go on; it is poisoned and only its `Close` is heard.
#[derive(Clone, Debug, PartialEq)]
pub struct Fault {
    /// Which sequence; none if the whole stage is concerned.
    pub seq: Option<SeqId>,
    /// What happened.
    pub kind: FaultKind,
}

/// What may go wrong on a stage.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum FaultKind {
    /// A window of the current epoch that is not live: a bug in one of the two, never a race.
    #[error("window at {base} starts with token {token}, expected token {expected_token} at {expected}")]
    Diverged {
        /// The window's base.
        base: Position,
        /// Its first token.
        token: Token,
        /// The position that the tail expects next.
        expected: Position,
        /// The token that it holds for it.
        expected_token: Token,
    },
    /// A frame starts beyond what was computed.
    #[error("frame starts at {base} but only positions below {next} are computed")]
    Gap {
        /// Where the frame starts.
        base: Position,
        /// The first position not computed.
        next: Position,
    },
    /// A rewind further back than the model's memory allows.
    #[error("cannot rewind to {base}: positions below {oldest} are final")]
    Rewind {
        /// Where the frame starts.
        base: Position,
        /// The oldest position that can still be computed again.
        oldest: Position,
    },
    /// A frame for a sequence that is not open here.
    #[error("sequence is not open")]
    UnknownSequence,
    /// `Open` for a sequence that is open already.
    #[error("sequence is open already")]
    AlreadyOpen,
    /// More positions than the sequence's context holds.
    #[error("position {end} exceeds the context of {context}")]
    ContextFull {
        /// One past the last position asked for.
        end: Position,
        /// Positions per sequence.
        context: u32,
    },
    /// More sequences waiting than the front may have open.
    #[error("more than {limit} sequences")]
    TooManySequences {
        /// The limit.
        limit: u32,
    },
    /// Rows and tokens disagree, or the rows have the wrong width or dtype.
    #[error("hidden rows do not fit the frame: {reason}")]
    BadRows {
        /// What is wrong with them.
        reason: String,
    },
    /// The engine refused or failed.
    #[error("engine: {reason}")]
    Engine {
        /// Its reason.
        reason: String,
    },
    /// The sampler's parameters are not usable with this model.
    #[error("sampler: {reason}")]
    Sampler {
        /// Its reason.
        reason: String,
    },
    /// The next stage was lost.
    #[error("link to the next stage: {reason}")]
    Link {
        /// What the link said.
        reason: String,
    },
    /// The prefix that a sequence was to begin with is not (or no longer) here. Nothing is wrong: the front begins
    /// again without it.
    #[error("the prefix of sequence {prefix} is not here any more")]
    PrefixLost {
        /// The sequence that was parked.
        prefix: SeqId,
    },
    /// A kind of work that this build does not do.
    #[error("{what} is not supported")]
    Unsupported {
        /// The kind of work.
        what: String,
    },
}

impl FaultKind {
    /// Whether it shows that frames were lost, came twice or in another order than the front sent them in. Links promise
    /// never to do that, so nothing that a line with such a link holds can be relied on.
    #[must_use]
    pub const fn is_disorder(&self) -> bool {
        match self {
            Self::Diverged { .. }
            | Self::Gap { .. }
            | Self::Rewind { .. }
            | Self::UnknownSequence
            | Self::AlreadyOpen => true,
            Self::ContextFull { .. }
            | Self::TooManySequences { .. }
            | Self::BadRows { .. }
            | Self::Engine { .. }
            | Self::Sampler { .. }
            | Self::Link { .. }
            | Self::PrefixLost { .. }
            | Self::Unsupported { .. } => false,
        }
    }
}
