//! The engine of a node, through its life: absent, loading, resting between generations, running, ending.
//!
//! Whatever may take long (loading, the last call of a generation, freeing gigabytes) runs on threads of its own and
//! ends with an [`Event`].

use std::sync::Arc;

use protocol::{Assign, Generation, Holding, NodeId};
use stage::{Engine, EngineThread, Handle, Kept, Sink, Store};
use tokio::sync::mpsc;

use super::Event;
use crate::source::{EngineSource, LoadError};

/// Of whose sequences an engine may hold something: of one front's, since it began with nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Tenure {
    pub(super) front: NodeId,
    /// The generation in which it began.
    since: Generation,
    /// The last one in which it worked.
    last: Generation,
}

impl Tenure {
    /// What begins with nothing.
    pub(super) const fn new(front: NodeId, generation: Generation) -> Self {
        Self { front, since: generation, last: generation }
    }

    /// Goes on in another generation.
    const fn until(self, generation: Generation) -> Self {
        Self { last: generation, ..self }
    }

    /// Whether it has what a line of this front held in a generation, all of it.
    pub(super) fn covers(&self, front: NodeId, generation: Generation) -> bool {
        self.front == front && self.since <= generation && generation <= self.last
    }
}

/// An engine between two generations.
pub(super) struct Rested {
    pub(super) engine: Box<dyn Engine>,
    /// What it still holds, and of whom; nothing if it is empty.
    pub(super) kept: Option<(Tenure, Kept)>,
}

impl Rested {
    pub(super) const fn new(engine: Box<dyn Engine>) -> Self {
        Self { engine, kept: None }
    }

    /// What it holds is of no use to this front in a line that goes on from that generation's.
    pub(super) fn is_spoilt(&self, front: NodeId, keep: Option<Generation>) -> bool {
        let is_of_use = |tenure: &Tenure| keep.is_some_and(|generation| tenure.covers(front, generation));
        self.kept.as_ref().is_some_and(|(tenure, _)| !is_of_use(tenure))
    }
}

/// A node's one engine, and what it was loaded for: whoever asks for the same takes it over as it is.
pub(super) enum EngineSeat {
    /// None.
    Empty,
    /// Being loaded; it cannot be interrupted. [`Event::Loaded`] follows.
    Loading(Holding),
    /// Loaded and idle.
    Resting(Holding, Rested),
    /// Working in the current generation.
    Running(Holding, EngineThread, Tenure),
    /// Ending its last call of a generation that is over, being emptied, or being freed. [`Event::Stopped`] follows.
    Stopping(Holding),
}

impl EngineSeat {
    /// The running thread's inbox.
    pub(super) fn handle(&self) -> Option<Handle> {
        match self {
            Self::Running(_, thread, _) => Some(thread.handle()),
            Self::Empty | Self::Loading(_) | Self::Resting(..) | Self::Stopping(_) => None,
        }
    }

    pub(super) const fn is_resting(&self) -> bool {
        matches!(self, Self::Resting(..))
    }

    fn take(&mut self) -> Self {
        std::mem::replace(self, Self::Empty)
    }

    /// Starts to load an engine. The seat must be empty.
    pub(super) fn load(
        &mut self,
        source: Arc<dyn EngineSource>,
        holding: Holding,
        events: mpsc::Sender<Event>,
    ) {
        *self = Self::Loading(holding);
        tokio::spawn(async move {
            let progress = events.clone();
            let loading = tokio::task::spawn_blocking(move || {
                source.load(&holding, &mut |permille, what| {
                    // Progress is for people: what does not fit is not missed.
                    let _ = progress.try_send(Event::Loading { permille, what: what.to_owned() });
                })
            });
            let loaded = loading.await.unwrap_or_else(|panic| {
                Err(LoadError { reason: format!("loading ended in a bug, see the stage's log ({panic})") })
            });
            let _ = events.send(Event::Loaded(loaded)).await;
        });
    }

    /// Lets a resting engine work, with what it has kept. The seat must hold one. Whether it had kept anything.
    ///
    /// # Errors
    /// If the operating system refuses another thread; the engine is gone then.
    pub(super) fn run(
        &mut self,
        (name, tenure): (&str, Tenure),
        config: stage::Config,
        sink: Box<dyn Sink>,
        store: Option<Box<dyn Store>>,
    ) -> std::io::Result<bool> {
        let Self::Resting(key, Rested { engine, kept }) = self.take() else { return Ok(false) };
        let (before, kept) = kept.unzip();
        let keeps = kept.is_some();
        let thread = EngineThread::spawn(name, engine, kept, config, sink, store)?;
        let tenure = before.map_or(tenure, |before| before.until(tenure.last));
        *self = Self::Running(key, thread, tenure);
        Ok(keeps)
    }

    /// Ends a running engine's work, stopping the call under way if it can; it comes back with what its sequences have
    /// computed, ready for the next generation.
    pub(super) fn stop(&mut self, events: &mpsc::Sender<Event>) {
        match self.take() {
            Self::Running(key, thread, tenure) => {
                *self = Self::Stopping(key);
                stopping(events.clone(), move || {
                    let (mut engine, mut kept) = thread.join()?;
                    // One that cannot forget is of no use to the next generation.
                    kept.tidy(engine.as_mut()).ok()?;
                    Some(Rested { engine, kept: Some((tenure, kept)) })
                });
            }
            other => *self = other,
        }
    }

    /// Empties a resting engine.
    pub(super) fn forget(&mut self, events: &mpsc::Sender<Event>) {
        match self.take() {
            Self::Resting(key, Rested { mut engine, kept: Some((_, kept)) }) => {
                *self = Self::Stopping(key);
                stopping(events.clone(), move || {
                    kept.forget(engine.as_mut()).ok()?;
                    Some(Rested::new(engine))
                });
            }
            other => *self = other,
        }
    }

    /// Gives the memory of a resting engine back.
    pub(super) fn free(&mut self, events: &mpsc::Sender<Event>) {
        match self.take() {
            Self::Resting(key, rested) => {
                *self = Self::Stopping(key);
                stopping(events.clone(), move || {
                    drop(rested);
                    None
                });
            }
            other => *self = other,
        }
    }

    /// An engine has stopped; it is given unless it panicked or was freed.
    pub(super) fn stopped(&mut self, rested: Option<Rested>) {
        match (self.take(), rested) {
            (Self::Stopping(key), Some(rested)) => *self = Self::Resting(key, rested),
            (Self::Stopping(_), None) => {}
            (other, _) => *self = other,
        }
    }

    /// What was being loaded is there, or not. Gives the key, unless nothing was being loaded.
    pub(super) fn loaded(&mut self) -> Option<Holding> {
        match self.take() {
            Self::Loading(key) => Some(key),
            other => {
                *self = other;
                None
            }
        }
    }
}

/// Runs what ends an engine's work on a thread that may wait, then tells the node.
fn stopping(events: mpsc::Sender<Event>, work: impl FnOnce() -> Option<Rested> + Send + 'static) {
    tokio::spawn(async move {
        // After a panic there is no engine either.
        let rested = tokio::task::spawn_blocking(work).await.ok().flatten();
        let _ = events.send(Event::Stopped(rested)).await;
    });
}

/// Whether an engine computes what it was loaded for; the field that differs otherwise.
pub(super) fn misfit(engine: &dyn Engine, holding: &Holding) -> Option<String> {
    let Holding { layers, n_layers, context, n_slots, .. } = *holding;
    let shape = engine.shape();
    let (first, tail) = (layers.start == 0, layers.end == n_layers);
    if shape.layers != layers {
        return Some(format!("layers {layers} were asked for, the slice holds {}", shape.layers));
    }
    if (shape.is_first, shape.is_tail) != (first, tail) {
        return Some(format!("layers {layers} of {n_layers} do not match the slice's place"));
    }
    if shape.context < context || shape.n_slots != n_slots {
        return Some(format!(
            "{n_slots} sequences of {context} positions were asked for, the engine holds {} of {}",
            shape.n_slots, shape.context
        ));
    }
    None
}

/// What a place in a line says of the stage apart from its engine, within what its owner allows.
pub(super) fn stage_config(assign: &Assign, most_prefix_bytes: Option<u64>) -> stage::Config {
    let prefix_bytes = most_prefix_bytes.map_or(assign.prefix_bytes, |most| assign.prefix_bytes.min(most));
    stage::Config { row_dtype: assign.row_dtype, prefix_bytes, has_store: false }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_is_of_use_to_its_front_and_to_lines_that_it_has_missed_nothing_of() {
        let (front, other) = (NodeId([1; 32]), NodeId([2; 32]));
        let tenure = Tenure::new(front, Generation(10)).until(Generation(12));
        let covered = |front, generation| tenure.covers(front, Generation(generation));
        assert_eq!([9, 10, 12, 13].map(|generation| covered(front, generation)), [false, true, true, false]);
        assert!(!covered(other, 11), "another front calls its sequences alike");
    }
}
