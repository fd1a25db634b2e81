//! The place that a node has in a line, or beside it, and whose rows it lets in there.

use net::LinkSender;
use protocol::{Assign, Generation, Holding, NodeId, RefuseReason, RowsHello, StageIndex};

use crate::task::Task;

/// One assignment and the links that belong to it; dropped with all of its tasks when the generation is over.
pub(super) struct Place {
    pub(super) generation: Generation,
    /// Who has assigned it.
    pub(super) front: NodeId,
    pub(super) assign: Assign,
    /// To the next stage, once it has accepted.
    pub(super) downstream: Option<LinkSender>,
    /// Dials the next stage, then watches the link.
    pub(super) downstream_task: Option<Task>,
    /// To the relayed neighbour, while it is there.
    pub(super) relay: Option<LinkSender>,
    /// Dials the relayed neighbour, then reads from it.
    pub(super) relay_task: Option<Task>,
    /// To whoever sends work, once accepted.
    pub(super) upstream: Option<LinkSender>,
    /// Reads work.
    pub(super) upstream_task: Option<Task>,
}

/// A wish to stand by.
pub(super) struct Standby {
    pub(super) holding: Holding,
    /// Whether the front has heard that it is fulfilled.
    pub(super) told: bool,
}

impl Place {
    pub(super) const fn new(generation: Generation, front: NodeId, assign: Assign) -> Self {
        Self {
            generation,
            front,
            assign,
            downstream: None,
            downstream_task: None,
            relay: None,
            relay_task: None,
            upstream: None,
            upstream_task: None,
        }
    }

    /// Tells everyone linked to this place why it ends.
    pub(super) fn close(&self, reason: &str) {
        for link in self.downstream.iter().chain(&self.relay).chain(&self.upstream) {
            link.close(reason);
        }
    }

    /// What this stage tells the next one about its rows.
    pub(super) const fn hello(&self, row_width: u32) -> RowsHello {
        RowsHello {
            generation: self.generation,
            to: StageIndex(self.assign.index.0 + 1),
            model: self.assign.holding.model,
            layer: self.assign.holding.layers.end,
            row_width,
            row_dtype: self.assign.row_dtype,
            context: self.assign.holding.context,
        }
    }

    /// Judges a link for rows by what is known before the engine is there. One of a later generation is early: it may
    /// wait.
    pub(super) fn admit(&self, peer: NodeId, hello: &RowsHello) -> Result<(), RefuseReason> {
        let assign = &self.assign;
        if hello.generation < self.generation {
            return Err(RefuseReason::NotAssigned { generation: hello.generation });
        }
        if hello.generation > self.generation {
            return Ok(());
        }
        if peer != assign.upstream {
            return Err(RefuseReason::WrongPeer);
        }
        same("stage", assign.index, hello.to)?;
        same("model", assign.holding.model, hello.model)?;
        same("first layer", assign.holding.layers.start, hello.layer)?;
        same("row dtype", format!("{:?}", assign.row_dtype), format!("{:?}", hello.row_dtype))?;
        same("context", assign.holding.context, hello.context)
    }

    /// Judges the width of the rows, once the engine is there.
    pub(super) fn admit_width(shape: &stage::EngineShape, hello: &RowsHello) -> Result<(), RefuseReason> {
        let width = if shape.is_first { 0 } else { shape.row_width as u32 };
        same("row width", width, hello.row_width)
    }
}

fn same<T: PartialEq + ToString>(field: &str, ours: T, theirs: T) -> Result<(), RefuseReason> {
    if ours == theirs {
        return Ok(());
    }
    Err(RefuseReason::Mismatch {
        field: field.to_owned(),
        ours: ours.to_string(),
        theirs: theirs.to_string(),
    })
}
