//! The engine thread: one operating-system thread that owns an engine and its [`StageCore`].
//!
//! Arrivals come in through a bounded inbox and never wait; results go out through a [`Sink`] that must not block. So
//! the engine never waits for the network, nor the network for the engine. The thread takes in everything that has
//! arrived before it chooses the next call, and sleeps on a condition variable when there is nothing to do.
//!
//! Back-pressure is the front's: it may have only so many frames of a sequence in flight. The inbox's limits are above
//! what it ever needs; to exceed one is an error of the peer ([`Refused::Full`]), not something to wait out.

use std::any::Any;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use protocol::{Epoch, Fault, FaultKind, Frame, Hint, Report, SeqId, StageCounters, limits};

use crate::call::Call;
use crate::cancel::{Cancel, Interest};
use crate::core::{Config, Kept, Output, StageCore, StoreWork};
use crate::port::{Engine, EngineShape};
use crate::stats::{Load, Stats};
use crate::store::{Answer, Answered, Given, Store};

/// Frames that may wait: 32 for each of the sequences that the widest line in practice holds (128).
pub const INBOX_FRAMES: usize = 4096;
/// Bytes that may wait: twice the largest legal frame, so that one always fits beside another.
pub const INBOX_BYTES: usize = 2 * limits::MAX_FRAME_BYTES;
/// Sequences with a hint that the thread has not taken in yet; more hints are forgotten, which costs only time.
const INBOX_HINTS: usize = 2 * limits::MAX_SLOTS as usize;

/// While sequences run, the front hears of the counters this often at most: fit for a person who watches, and nothing
/// beside the verdicts. When the last sequence has ended it hears of them at once, so that they are right on an idle line.
const COUNT_EVERY: Duration = Duration::from_millis(500);

/// Where an engine thread's results go. Called on that thread: neither method may block.
pub trait Sink: Send {
    /// For the next stage.
    fn forward(&self, frame: Frame);
    /// For the front.
    fn report(&self, report: Report);
}

/// Why a frame was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// The peer sent more than its credit.
    #[error("the stage's inbox is full: {frames} frames and {bytes} bytes wait")]
    Full {
        /// Frames that wait.
        frames: usize,
        /// Bytes that wait.
        bytes: usize,
    },
    /// The thread was stopped, or its engine panicked.
    #[error("the stage's engine has stopped")]
    Stopped,
}

/// What a thread leaves behind: its engine, and what the engine has computed.
pub type Left = (Box<dyn Engine>, Kept);

/// An engine, its state machine and the thread that runs them. Stops and joins the thread when dropped.
pub struct EngineThread {
    handle: Handle,
    thread: Option<JoinHandle<Option<Left>>>,
}

/// A way to an engine thread; as many as wanted. No method waits for the engine.
#[derive(Clone)]
pub struct Handle {
    shared: Arc<Shared>,
}

struct Shared {
    inbox: Mutex<Inbox>,
    arrived: Condvar,
    /// The zero of every `now` that the core hears.
    epoch: Instant,
    shape: EngineShape,
    /// Raised when nobody wants the result of the call under way.
    cancel: Cancel,
}

#[derive(Default)]
struct Inbox {
    frames: VecDeque<(Frame, Duration)>,
    hints: BTreeMap<SeqId, Wish>,
    /// The latest [`Hint::Together`] not taken in yet.
    together: Option<u16>,
    /// From the store: one for each thing that it was asked and has not been heard on.
    answers: Vec<Answered>,
    stopped: bool,
    /// Of `frames`.
    waiting: Load,
    /// Of the frames that the core holds, as of the last time that the thread looked in.
    held: Load,
    /// In the call under way; the frames and hints that wait above are counted already.
    interest: Interest,
    stats: Stats,
}

/// All hints about one sequence, merged: they are monotone.
#[derive(Clone, Copy, Default)]
struct Wish {
    epoch: Option<Epoch>,
    drop: bool,
}

impl Wish {
    fn hints(self, seq: SeqId) -> impl Iterator<Item = Hint> {
        let advance = self.epoch.map(|epoch| Hint::Advance { seq, epoch });
        advance.into_iter().chain(self.drop.then_some(Hint::Drop { seq }))
    }
}

impl EngineThread {
    /// Starts the thread. It goes on with what the engine's last thread has kept, if that is given; if not, the engine must
    /// hold nothing. With a store, prefixes outlive the engine.
    ///
    /// # Errors
    /// If the operating system refuses another thread.
    pub fn spawn(
        name: &str,
        mut engine: Box<dyn Engine>,
        kept: Option<Kept>,
        config: Config,
        sink: Box<dyn Sink>,
        store: Option<Box<dyn Store>>,
    ) -> io::Result<Self> {
        #[expect(clippy::disallowed_methods, reason = "the driver's clock: the core is told the time")]
        let epoch = Instant::now();
        let shape = engine.shape().clone();
        let shared = Arc::new(Shared {
            inbox: Mutex::default(),
            arrived: Condvar::new(),
            epoch,
            shape: shape.clone(),
            cancel: Cancel::default(),
        });
        engine.heed(shared.cancel.clone());
        let handle = Handle { shared: Arc::clone(&shared) };
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            let config = Config { has_store: store.is_some(), ..config };
            let core = match kept {
                Some(kept) => StageCore::resume(shape, config, kept),
                None => StageCore::new(shape, config),
            };
            let told = (StageCounters::default(), Duration::ZERO);
            let worker = Worker { core, engine, sink, store, shared, told };
            worker.guarded()
        })?;
        Ok(Self { handle, thread: Some(thread) })
    }

    /// A way to the thread.
    #[must_use]
    pub fn handle(&self) -> Handle {
        self.handle.clone()
    }
}

impl EngineThread {
    /// Ends the thread, a call under way being stopped, and gives the engine back, and what it keeps. None if it panicked.
    #[must_use]
    pub fn join(mut self) -> Option<Left> {
        self.handle.stop();
        self.thread.take().and_then(|thread| thread.join().ok().flatten())
    }
}

impl Drop for EngineThread {
    fn drop(&mut self) {
        self.handle.stop();
        if let Some(thread) = self.thread.take() {
            // A panic was reported by the thread itself.
            let _ = thread.join();
        }
    }
}

impl Handle {
    /// Hands over a frame.
    ///
    /// # Errors
    /// If the inbox is full or the thread has stopped; the frame is gone, and with it its sequence's order: the caller
    /// must give up the link that it came from.
    pub fn frame(&self, frame: Frame) -> Result<(), Refused> {
        let bytes = Load::of(&frame).bytes;
        let now = self.shared.epoch.elapsed();
        let mut inbox = self.shared.lock();
        if inbox.stopped {
            return Err(Refused::Stopped);
        }
        let load = inbox.waiting + inbox.held;
        if load.frames >= INBOX_FRAMES || load.bytes + bytes > INBOX_BYTES {
            return Err(Refused::Full { frames: load.frames, bytes: load.bytes });
        }
        inbox.waiting = inbox.waiting + Load { frames: 1, bytes };
        inbox.interest.note_frame(&frame);
        inbox.frames.push_back((frame, now));
        self.shared.cancel_if_unwanted(&inbox);
        drop(inbox);
        self.shared.arrived.notify_one();
        Ok(())
    }

    /// Hands over a hint. It is taken in after the frames that came before it.
    pub fn hint(&self, hint: Hint) {
        let mut inbox = self.shared.lock();
        let is_kept = match hint {
            Hint::Advance { seq, epoch } => inbox.wish(seq, |wish| wish.epoch = wish.epoch.max(Some(epoch))),
            Hint::Drop { seq } => inbox.wish(seq, |wish| wish.drop = true),
            Hint::Together { sequences } => {
                inbox.together = Some(sequences);
                true
            }
        };
        // A call is stopped only for what the core will hear, too.
        if is_kept {
            inbox.interest.note_hint(&hint);
            self.shared.cancel_if_unwanted(&inbox);
        }
        drop(inbox);
        self.shared.arrived.notify_one();
    }

    /// Ends the thread; a call under way is stopped. Frames not yet computed are forgotten.
    pub fn stop(&self) {
        let mut inbox = self.shared.lock();
        inbox.stopped = true;
        inbox.interest.note_end();
        self.shared.cancel_if_unwanted(&inbox);
        drop(inbox);
        self.shared.arrived.notify_one();
    }

    pub(crate) fn answer(&self, answered: Answered) {
        self.shared.lock().answers.push(answered);
        self.shared.arrived.notify_one();
    }

    /// What the engine can do.
    #[must_use]
    pub fn shape(&self) -> &EngineShape {
        &self.shared.shape
    }

    /// What happened up to the last call.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.shared.lock().stats
    }

    /// What waits or is being computed.
    #[must_use]
    pub fn load(&self) -> Load {
        let inbox = self.shared.lock();
        inbox.waiting + inbox.held
    }
}

impl Shared {
    /// The inbox. A panic while it was held leaves it usable: every change to it is complete in itself.
    fn lock(&self) -> MutexGuard<'_, Inbox> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn cancel_if_unwanted(&self, inbox: &Inbox) {
        if inbox.interest.is_gone() {
            self.cancel.raise();
        }
    }

    /// A call begins: whatever arrives from now on may end the interest in it, and what has arrived since the core last
    /// heard may have.
    fn begin(&self, call: &Call) {
        let mut interest = Interest::in_call(call, self.shape.rewind);
        let mut inbox = self.lock();
        inbox.frames.iter().for_each(|(frame, _)| interest.note_frame(frame));
        inbox.hints().for_each(|hint| interest.note_hint(&hint));
        if inbox.stopped {
            interest.note_end();
        }
        inbox.interest = interest;
        self.cancel.clear();
        self.cancel_if_unwanted(&inbox);
    }
}

impl Inbox {
    /// Whether there is room for it.
    fn wish(&mut self, seq: SeqId, hint: impl FnOnce(&mut Wish)) -> bool {
        let has_room = self.hints.contains_key(&seq) || self.hints.len() < INBOX_HINTS;
        if has_room {
            hint(self.hints.entry(seq).or_default());
        }
        has_room
    }

    /// The hints about sequences that wait.
    fn hints(&self) -> impl Iterator<Item = Hint> {
        self.hints.iter().flat_map(|(&seq, &wish)| wish.hints(seq))
    }

    fn is_quiet(&self) -> bool {
        !self.stopped
            && self.frames.is_empty()
            && self.hints.is_empty()
            && self.answers.is_empty()
            && self.together.is_none()
    }
}

struct Worker {
    core: StageCore,
    engine: Box<dyn Engine>,
    sink: Box<dyn Sink>,
    store: Option<Box<dyn Store>>,
    shared: Arc<Shared>,
    /// The counters that the front was told last, and when.
    told: (StageCounters, Duration),
}

impl Worker {
    /// Runs until stopped, then gives the engine back; a panic becomes a report and ends the thread.
    fn guarded(mut self) -> Option<Left> {
        let result = catch_unwind(AssertUnwindSafe(|| self.serve()));
        self.shared.lock().stopped = true;
        if let Err(panic) = result {
            let reason = format!("the engine thread panicked: {}", message(panic.as_ref()));
            tracing::error!("{reason}");
            self.sink.report(Report::Fault(Fault { seq: None, kind: FaultKind::Engine { reason } }));
            return None;
        }
        Some((self.engine, self.core.retire()))
    }

    fn serve(&mut self) {
        let mut idle = true;
        while self.take_in(idle) {
            self.say();
            let call = self.core.next_call(self.shared.epoch.elapsed());
            idle = call.is_none();
            if let Some(call) = call {
                self.shared.begin(&call);
                let done = call.execute(self.engine.as_mut());
                // What stopped the call makes what waits behind it unwanted, too: the core has to hear of it first.
                let goes_on = !done.was_cancelled() || self.take_in(false);
                self.core.complete(done, self.engine.as_ref(), self.shared.epoch.elapsed());
                if !goes_on {
                    return;
                }
                self.say();
            }
            self.tell_counters();
        }
    }

    /// Tells the front what was counted, if that is due. There is no timer: an idle line says nothing.
    fn tell_counters(&mut self) {
        let counters = self.core.stats().counters();
        if counters == self.told.0 {
            return;
        }
        let now = self.shared.epoch.elapsed();
        if self.core.n_sequences() == 0 || now >= self.told.1 + COUNT_EVERY {
            self.told = (counters, now);
            self.sink.report(Report::Counters(counters));
        }
    }

    /// Gives the core everything that has arrived, waiting for something if `idle`. False once stopped.
    fn take_in(&mut self, idle: bool) -> bool {
        let mut inbox = self.shared.lock();
        inbox.stats = *self.core.stats();
        inbox.held = self.core.load();
        while idle && inbox.is_quiet() {
            inbox = self.shared.arrived.wait(inbox).unwrap_or_else(PoisonError::into_inner);
        }
        if inbox.stopped {
            return false;
        }
        inbox.held = inbox.held + std::mem::take(&mut inbox.waiting);
        let frames = std::mem::take(&mut inbox.frames);
        let hints = std::mem::take(&mut inbox.hints);
        let together = inbox.together.take();
        let answers = std::mem::take(&mut inbox.answers);
        drop(inbox);
        if let Some(sequences) = together {
            self.core.handle_hint(Hint::Together { sequences });
        }
        for (frame, arrived) in frames {
            self.core.handle_frame(frame, arrived);
        }
        for hint in hints.into_iter().flat_map(|(seq, wish)| wish.hints(seq)) {
            self.core.handle_hint(hint);
        }
        for Answered { prefix, key, given } in answers {
            match given {
                Given::Kept(keeping) => self.core.handle_kept(prefix, keeping),
                Given::Fetched(blob) => self.core.handle_fetched(prefix, key, blob),
            }
        }
        true
    }

    fn say(&mut self) {
        while let Some(output) = self.core.poll_output() {
            match output {
                Output::Forward(frame) => self.sink.forward(frame),
                Output::Report(report) => self.sink.report(report),
                Output::Store(work) => self.ask_store(work),
            }
        }
    }

    fn ask_store(&self, work: StoreWork) {
        let handle = || Handle { shared: Arc::clone(&self.shared) };
        match (&self.store, work) {
            (Some(store), StoreWork::Write { prefix, key, blob }) => {
                store.write(key, blob, Answer::to_write(handle(), prefix, key));
            }
            (Some(store), StoreWork::Read { prefix, key }) => {
                store.read(key, Answer::to_read(handle(), prefix, key));
            }
            // The core asks for nothing then.
            (None, _) => {}
        }
    }
}

fn message(panic: &(dyn Any + Send)) -> &str {
    match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(text), _) => text,
        (None, Some(text)) => text,
        (None, None) => "no message",
    }
}
