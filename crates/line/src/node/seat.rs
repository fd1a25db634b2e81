//! The engine of a node, through its life: absent, loading, resting between generations, running, ending.
//!
//! Whatever may take long (loading, the last call of a generation, freeing gigabytes) runs on threads of its own and
//! ends with an [`Event`].

use std::sync::Arc;

use protocol::{Assign, Holding, Position};
use stage::{Engine, EngineThread, Handle, Sink, Slot, Store};
use tokio::sync::mpsc;

use super::Event;
use crate::source::{EngineSource, LoadError};

/// A node's one engine, and what it was loaded for: whoever asks for the same takes it over as it is.
pub(super) enum EngineSeat {
    /// None.
    Empty,
    /// Being loaded; it cannot be interrupted. [`Event::Loaded`] follows.
    Loading(Holding),
    /// Loaded and idle.
    Resting(Holding, Box<dyn Engine>),
    /// Working in the current generation.
    Running(Holding, EngineThread),
    /// Ending its last call of a generation that is over, or being freed. [`Event::Stopped`] follows.
    Stopping(Holding),
}

impl EngineSeat {
    /// The running thread's inbox.
    pub(super) fn handle(&self) -> Option<Handle> {
        match self {
            Self::Running(_, thread) => Some(thread.handle()),
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

    /// Lets a resting engine work. The seat must hold one.
    ///
    /// # Errors
    /// If the operating system refuses another thread; the engine is gone then.
    pub(super) fn run(
        &mut self,
        name: &str,
        config: stage::Config,
        sink: Box<dyn Sink>,
        store: Option<Box<dyn Store>>,
    ) -> std::io::Result<()> {
        if let Self::Resting(key, engine) = self.take() {
            *self = Self::Running(key, EngineThread::spawn(name, engine, config, sink, store)?);
        }
        Ok(())
    }

    /// Ends a running engine's work, stopping the call under way if it can; it comes back empty, ready for the next generation.
    pub(super) fn stop(&mut self, events: &mpsc::Sender<Event>) {
        match self.take() {
            Self::Running(key, thread) => {
                *self = Self::Stopping(key);
                stopping(events.clone(), move || {
                    let mut engine = thread.join()?;
                    let n_slots = engine.shape().n_slots;
                    let is_empty = (0..n_slots).all(|slot| engine.truncate(Slot(slot), Position(0)).is_ok());
                    // One that cannot forget is of no use to the next generation.
                    is_empty.then_some(engine)
                });
            }
            other => *self = other,
        }
    }

    /// Gives the memory of a resting engine back.
    pub(super) fn free(&mut self, events: &mpsc::Sender<Event>) {
        match self.take() {
            Self::Resting(key, engine) => {
                *self = Self::Stopping(key);
                stopping(events.clone(), move || {
                    drop(engine);
                    None
                });
            }
            other => *self = other,
        }
    }

    /// An engine has stopped; it is given unless it panicked or was freed.
    pub(super) fn stopped(&mut self, engine: Option<Box<dyn Engine>>) {
        match (self.take(), engine) {
            (Self::Stopping(key), Some(engine)) => *self = Self::Resting(key, engine),
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
fn stopping(events: mpsc::Sender<Event>, work: impl FnOnce() -> Option<Box<dyn Engine>> + Send + 'static) {
    tokio::spawn(async move {
        // After a panic there is no engine either.
        let engine = tokio::task::spawn_blocking(work).await.ok().flatten();
        let _ = events.send(Event::Stopped(engine)).await;
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
