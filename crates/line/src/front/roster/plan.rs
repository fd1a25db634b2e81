//! What a line shall be: its layers' ranges, and the machines that there are for them.

use std::time::Duration;

use protocol::{Holding, KvType, LayerRange, ModelId, RowDtype, StageIndex};

/// What every stage of a line is told.
#[derive(Clone, Debug, PartialEq)]
pub struct LinePlan {
    /// Which model.
    pub model: ModelId,
    /// Its layers.
    pub n_layers: u32,
    /// Consecutive ranges, one per stage, together `0..n_layers`.
    pub ranges: Vec<LayerRange>,
    /// How fewer stages would share the layers: other such ranges, one for each number of stages that is possible, for lines
    /// that go on where machines are missing.
    pub narrower: Vec<Vec<LayerRange>>,
    /// Positions per sequence.
    pub context: u32,
    /// Sequences at once.
    pub n_slots: u16,
    /// Rows in one engine call at most.
    pub max_rows: u32,
    /// How hidden rows travel.
    pub row_dtype: RowDtype,
    /// How keys and values are stored.
    pub kv: KvType,
    /// Whether results must not depend on batch shape.
    pub exact: bool,
    /// Whether layers with a sliding window keep every position. If not, the scheduler must know that stages cannot cut
    /// prefixes.
    pub swa_full: bool,
    /// Rows of a call that stages with recurrent layers can take back. The scheduler's windows must not be wider than that and
    /// one more, and one at a time.
    pub undo_rows: u32,
    /// Whether the tail drafts with the model's own blocks for that.
    pub drafts: bool,
    /// Bytes that each stage has for parked prefixes beside its engine.
    pub prefix_bytes: u64,
}

impl LinePlan {
    /// The layers of a stage.
    pub(in crate::front) fn range(&self, stage: StageIndex) -> LayerRange {
        self.ranges[usize::from(stage.0)]
    }

    /// What whoever is that stage has in memory.
    pub(super) fn holding(&self, stage: StageIndex) -> Holding {
        Holding {
            model: self.model,
            layers: self.range(stage),
            n_layers: self.n_layers,
            context: self.context,
            n_slots: self.n_slots,
            max_rows: self.max_rows,
            kv: self.kv,
            exact: self.exact,
            swa_full: self.swa_full,
            undo_rows: self.undo_rows,
            drafts: self.drafts,
        }
    }
}

/// Which stages are reached through their neighbours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::front) struct RelayPolicy {
    /// All but the first, whether the front could reach them or not.
    pub(in crate::front) always: bool,
    /// The first so many stages live in the front's own process: what they can reach, the front can.
    pub(in crate::front) n_own: usize,
}

/// The machines that a roster is about.
#[derive(Clone, Debug)]
pub(in crate::front) struct Muster {
    /// Addresses of those that compute, in line order.
    pub(in crate::front) stages: Vec<Option<String>>,
    /// Addresses of those that stand by, and whose place each may take; any if none is said.
    pub(in crate::front) spares: Vec<(Option<String>, Option<StageIndex>)>,
    /// Which of them are reached through their neighbours.
    pub(in crate::front) relay: RelayPolicy,
    /// Who is away for longer than this is gone: nothing that it held is counted on.
    pub(in crate::front) lease: Duration,
    /// How long a stage that holds its layers may take to get ready before it is given up.
    pub(in crate::front) ready_within: Duration,
    /// How long a seat that nobody can take stays empty before the others share the layers; for ever if none.
    pub(in crate::front) replan_after: Option<Duration>,
}
