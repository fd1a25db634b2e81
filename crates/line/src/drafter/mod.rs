//! A second model that drafts: one thread that owns its engine.
//!
//! The front tells it what becomes of every text and waits for nothing; the thread takes in whatever was told before it
//! chooses the next call, and hands drafts out as they come. What is told is merged into the lanes at once, so nothing
//! queues. What to compute is decided in [`core`].

mod core;
#[cfg(test)]
mod tests;

use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use scheduler::{Drafting, RequestId};
use spec::Draft;
use stage::{Engine, EngineError, Input, Sampler, Want};

use self::core::{Call, Core, Picked};

/// The source that drafts are for.
pub(crate) const SOURCE: &str = "draft";

/// Where drafts go. Called on the drafter's thread, which holds no lock then.
pub(crate) type Sink = Box<dyn Fn(RequestId, Draft) + Send>;

/// The thread. It ends after the call under way when this is dropped.
pub(crate) struct Drafter {
    handle: Handle,
    thread: Option<JoinHandle<()>>,
}

/// A way to the thread. Never waits for the engine.
#[derive(Clone)]
pub(crate) struct Handle {
    shared: Arc<Shared>,
}

struct Shared {
    state: Mutex<State>,
    told: Condvar,
}

struct State {
    core: Core,
    is_stopped: bool,
}

impl Drafter {
    /// Starts the thread with a whole model that can be cut back anywhere.
    ///
    /// # Errors
    /// If the operating system refuses another thread.
    pub(crate) fn spawn(engine: Box<dyn Engine>, sink: Sink) -> io::Result<Self> {
        let state = State { core: Core::new(engine.shape()), is_stopped: false };
        let shared = Arc::new(Shared { state: Mutex::new(state), told: Condvar::new() });
        let handle = Handle { shared: Arc::clone(&shared) };
        let samplers = (0..engine.shape().n_slots).map(|_| None).collect();
        let worker = Worker { shared, engine, sink, samplers, rows: Vec::new() };
        let thread = std::thread::Builder::new().name("drafter".to_owned()).spawn(move || worker.serve())?;
        Ok(Self { handle, thread: Some(thread) })
    }

    pub(crate) fn handle(&self) -> Handle {
        self.handle.clone()
    }
}

impl Drop for Drafter {
    fn drop(&mut self) {
        self.handle.shared.lock().is_stopped = true;
        self.handle.shared.told.notify_one();
        if let Some(thread) = self.thread.take() {
            // A panic was reported by the thread itself; without drafts the line goes on.
            let _ = thread.join();
        }
    }
}

impl Handle {
    /// Tells it what has become of a request.
    pub(crate) fn tell(&self, id: RequestId, drafting: Drafting) {
        self.shared.lock().core.handle(id, drafting);
        self.shared.told.notify_one();
    }
}

impl Shared {
    /// The state. A panic while it was held is a bug that ends the drafting of some requests, not the requests.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What the thread does next.
enum Task {
    Stop,
    Give(RequestId, Draft),
    Compute(Call),
}

struct Worker {
    shared: Arc<Shared>,
    engine: Box<dyn Engine>,
    sink: Sink,
    /// By slot.
    samplers: Vec<Option<Box<dyn Sampler>>>,
    /// Scratch: a whole model gives no rows.
    rows: Vec<f32>,
}

impl Worker {
    fn serve(mut self) {
        loop {
            match self.next() {
                Task::Stop => return,
                Task::Give(id, draft) => (self.sink)(id, draft),
                Task::Compute(call) => {
                    let picked = self.compute(&call).map_err(|error| {
                        tracing::warn!("drafts end for a request, which goes on without: {error}");
                    });
                    self.shared.lock().core.handle_done(&call, picked.as_deref().ok());
                }
            }
        }
    }

    /// Waits for something to do.
    fn next(&self) -> Task {
        let mut state = self.shared.lock();
        loop {
            if state.is_stopped {
                return Task::Stop;
            }
            if let Some((id, draft)) = state.core.poll_draft() {
                return Task::Give(id, draft);
            }
            if let Some(call) = state.core.next_call() {
                return Task::Compute(call);
            }
            state = self.shared.told.wait(state).unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn compute(&mut self, call: &Call) -> Result<Vec<Picked>, EngineError> {
        for &(slot, len) in &call.cuts {
            self.engine.truncate(slot, len)?;
        }
        self.engine.run(&call.spans, Input::Tokens(&call.tokens), &mut self.rows)?;
        let mut picks = call.picks.iter();
        let mut picked = Vec::with_capacity(call.picks.len());
        let mut end = 0;
        for span in &call.spans {
            end += span.n_rows;
            if span.want != Want::Logits {
                continue;
            }
            let pick = picks.next().expect("every span with logits has something to pick");
            let sampler = &mut self.samplers[usize::from(pick.slot.0)];
            if let Some(open) = &pick.fresh {
                *sampler = Some(self.engine.sampler(open)?);
            }
            let sampler = sampler.as_mut().expect("the first pick of a request makes its sampler");
            pick.record.iter().for_each(|&token| sampler.prompt(token));
            let sampled = sampler.sample(pick.position, self.engine.logits(end - 1))?;
            // An engine that gives no probabilities is sure of its tokens.
            let probability = sampled.logprobs.map_or(1.0, |own| own.logprob.exp());
            picked.push(Picked { token: sampled.token, probability });
        }
        Ok(picked)
    }
}
