//! The engine of a node, through its life: absent, loading, resting between generations, running.

use protocol::{Assign, KvType, LayerRange, ModelId, RowDtype};
use stage::{Engine, EngineThread, Handle};

/// What an engine was loaded for. A later assignment that asks for the same takes it over as it is.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct EngineKey {
    model: ModelId,
    layers: LayerRange,
    n_layers: u32,
    context: u32,
    n_slots: u16,
    max_rows: u32,
    kv: KvType,
    exact: bool,
}

impl EngineKey {
    pub(super) fn of(assign: &Assign) -> Self {
        Self {
            model: assign.model,
            layers: assign.layers,
            n_layers: assign.n_layers,
            context: assign.context,
            n_slots: assign.n_slots,
            max_rows: assign.max_rows,
            kv: assign.kv,
            exact: assign.exact,
        }
    }
}

/// A node's one engine.
pub(super) enum EngineSeat {
    /// None.
    Empty,
    /// Being loaded, on a thread of its own; it cannot be interrupted.
    Loading(EngineKey),
    /// Loaded and idle.
    Resting(EngineKey, Box<dyn Engine>),
    /// Working in the current generation.
    Running(EngineKey, EngineThread),
    /// Finishing its last call of a generation that is over.
    Stopping(EngineKey),
}

impl EngineSeat {
    /// The running thread's inbox.
    pub(super) fn handle(&self) -> Option<Handle> {
        match self {
            Self::Running(_, thread) => Some(thread.handle()),
            Self::Empty | Self::Loading(_) | Self::Resting(..) | Self::Stopping(_) => None,
        }
    }
}

/// Whether an engine computes what the assignment asks for; the field that differs otherwise.
pub(super) fn misfit(engine: &dyn Engine, assign: &Assign) -> Option<String> {
    let shape = engine.shape();
    let first = assign.layers.start == 0;
    let tail = assign.layers.end == assign.n_layers;
    if shape.layers != assign.layers {
        return Some(format!("layers {} were asked for, the slice holds {}", assign.layers, shape.layers));
    }
    if (shape.is_first, shape.is_tail) != (first, tail) {
        return Some(format!(
            "layers {} of {} do not match the slice's place",
            assign.layers, assign.n_layers
        ));
    }
    if shape.context < assign.context || shape.n_slots != assign.n_slots {
        return Some(format!(
            "{} sequences of {} positions were asked for, the engine holds {} of {}",
            assign.n_slots, assign.context, shape.n_slots, shape.context
        ));
    }
    None
}

/// The frame format that a stage speaks.
pub(super) const fn stage_config(row_dtype: RowDtype) -> stage::Config {
    stage::Config { row_dtype }
}
