//! The node's task: one loop over one closed set of events.

use std::sync::Arc;
use std::time::Duration;

use net::{Link, LinkReceiver, LinkSender};
use protocol::{
    Assign, Command, Downstream, Fault, FaultKind, Generation, LinkRole, NodeId, Position, RefuseReason,
    Report, RowsHello, StageIndex, StageState, ToFront, ToStage, Wire,
};
use stage::{Engine, EngineThread, Slot};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::seat::{EngineKey, EngineSeat, misfit, stage_config};
use super::sink::LinkSink;
use super::{Event, Greeted, NodeConfig, Place};
use crate::greeting::{self, GreetError, accept, greet, refuse};
use crate::source::LoadError;
use crate::task::Task;
use crate::work_link;

/// First pause before a neighbour is dialled again.
const REDIAL_MIN: Duration = Duration::from_millis(50);
/// Longest such pause.
const REDIAL_MAX: Duration = Duration::from_secs(2);

/// The control link in use.
struct Control {
    number: u64,
    /// This stage's place, as the dialling side said.
    stage: StageIndex,
    sender: LinkSender,
    peer: NodeId,
    _reader: Task,
}

pub(super) struct Actor {
    config: Arc<NodeConfig>,
    events: mpsc::Sender<Event>,
    links: u64,
    control: Option<Control>,
    place: Option<Place>,
    engine: EngineSeat,
    /// A link for rows that came before this stage was ready for it.
    parked: Option<(Greeted, RowsHello)>,
    /// When the engine is freed, if no front comes.
    lease: Option<Instant>,
}

impl Actor {
    pub(super) fn new(config: NodeConfig, events: mpsc::Sender<Event>) -> Self {
        Self {
            config: Arc::new(config),
            events,
            links: 0,
            control: None,
            place: None,
            engine: EngineSeat::Empty,
            parked: None,
            lease: None,
        }
    }

    pub(super) async fn run(mut self, mut inbox: mpsc::Receiver<Event>) {
        loop {
            let lease = self.lease;
            let event = tokio::select! {
                event = inbox.recv() => event,
                () = async { tokio::time::sleep_until(lease.unwrap_or_else(Instant::now)).await }, if lease.is_some() => {
                    self.lease = None;
                    self.end_lease();
                    continue;
                }
            };
            let Some(event) = event else { return };
            self.handle(event);
            self.advance();
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Attached(link) => self.attached(link),
            Event::Greeted(greeted) => self.greeted(*greeted),
            Event::Command { link, message } => self.command(link, *message),
            Event::ControlLost { link, reason } => self.control_lost(link, &reason),
            Event::Loaded(result) => self.loaded(result),
            Event::Loading { permille, what } => self.tell(StageState::Loading { permille, what }),
            Event::Stopped(engine) => self.stopped(engine),
            Event::Downstream(generation, sender) => {
                if let Some(place) = self.place_in(generation) {
                    place.downstream = Some(sender);
                }
            }
            Event::DownstreamLost(generation, reason) => {
                self.link_lost(generation, "to the next stage", &reason)
            }
            Event::UpstreamLost(generation, reason) => {
                self.link_lost(generation, "from the stage before", &reason)
            }
            Event::RelayUp(generation, sender) => {
                if let Some(place) = self.place_in(generation) {
                    place.relay = Some(sender);
                }
            }
            Event::RelayReport(generation, message) => {
                if self.place_in(generation).is_some() {
                    self.send(&message);
                }
            }
            Event::RelayLost(generation, reason) => {
                if let Some(place) = self.place_in(generation) {
                    place.relay = None;
                }
                self.link_lost(generation, "of the relayed neighbour", &reason);
            }
        }
    }

    /// Someone connected: hear what for, without holding up the node.
    fn attached(&self, link: Link) {
        let events = self.events.clone();
        tokio::spawn(async move {
            let (sender, mut receiver) = link.split();
            match greeting::hear(&mut receiver).await {
                Ok(hello) => {
                    let _ = events.send(Event::Greeted(Box::new(Greeted { hello, sender, receiver }))).await;
                }
                Err(GreetError::Refused(reason)) => refuse(&sender, reason),
                Err(error) => sender.close(&error.to_string()),
            }
        });
    }

    fn greeted(&mut self, greeted: Greeted) {
        match &greeted.hello.role {
            LinkRole::Control { stage } => self.take_control(*stage, greeted),
            LinkRole::Rows(rows) => {
                let rows = rows.clone();
                self.take_rows(greeted, rows);
            }
        }
    }

    /// A front, or a neighbour that relays, wants this stage. The same node may come again after a break.
    fn take_control(&mut self, stage: StageIndex, greeted: Greeted) {
        let Greeted { sender, mut receiver, .. } = greeted;
        let peer = sender.peer().node;
        if self.control.as_ref().is_some_and(|control| control.peer != peer) {
            return refuse(&sender, RefuseReason::Busy);
        }
        self.leave("the front connected again");
        if accept(&sender, &self.config.build).is_err() {
            return;
        }
        self.links += 1;
        let (number, events) = (self.links, self.events.clone());
        let reader = Task::spawn(async move {
            loop {
                let event = match read_control::<ToStage>(&mut receiver).await {
                    Ok(message) => Event::Command { link: number, message: Box::new(message) },
                    Err(reason) => Event::ControlLost { link: number, reason },
                };
                let over = matches!(event, Event::ControlLost { .. });
                if events.send(event).await.is_err() || over {
                    return;
                }
            }
        });
        self.lease = None;
        self.control = Some(Control { number, stage, sender, peer, _reader: reader });
        self.tell(StageState::Idle { node: self.config.identity.node(), pid: std::process::id() });
    }

    fn command(&mut self, link: u64, message: ToStage) {
        let Some(control) = self.control.as_ref().filter(|control| control.number == link) else {
            return;
        };
        if message.to != control.stage {
            return self.pass_on(&message);
        }
        match message.command {
            Command::Assign(assign) => self.assigned(message.generation, *assign),
            Command::Release => self.leave("the front released the stage"),
            Command::Hint(hint) => {
                if self.place_in(message.generation).is_some()
                    && let Some(engine) = self.engine.handle()
                {
                    engine.hint(hint);
                }
            }
        }
    }

    /// A control message for a stage further down.
    fn pass_on(&mut self, message: &ToStage) {
        let relay = self.place.as_ref().and_then(|place| place.relay.as_ref());
        if relay.is_none_or(|relay| greeting::send(relay, message).is_err()) {
            tracing::debug!(to = %message.to, "no relay for a control message");
        }
    }

    fn control_lost(&mut self, link: u64, reason: &str) {
        if self.control.as_ref().is_some_and(|control| control.number == link) {
            tracing::info!("the front is gone: {reason}");
            self.leave("the front is gone");
            self.control = None;
            self.lease = Some(Instant::now() + self.config.lease);
        }
    }

    fn end_lease(&mut self) {
        if self.place.is_none() && matches!(self.engine, EngineSeat::Resting(..)) {
            tracing::info!("no front came back; the model's memory is freed");
            self.engine = EngineSeat::Empty;
        }
    }

    fn assigned(&mut self, generation: Generation, assign: Assign) {
        self.leave("assigned anew");
        tracing::info!(%generation, layers = %assign.layers, "assigned");
        let relay_task = assign
            .downstream
            .clone()
            .filter(|downstream| downstream.relay)
            .map(|downstream| self.dial_relay(generation, assign.index, downstream));
        self.place = Some(Place {
            generation,
            assign,
            downstream: None,
            downstream_task: None,
            relay: None,
            _relay_task: relay_task,
            upstream_task: None,
        });
    }

    /// Gives up the place in the line; the engine goes on resting.
    fn leave(&mut self, reason: &str) {
        if let Some(place) = self.place.take() {
            for link in place.downstream.iter().chain(&place.relay) {
                link.close(reason);
            }
        }
        if matches!(self.engine, EngineSeat::Running(..))
            && let EngineSeat::Running(key, thread) = std::mem::replace(&mut self.engine, EngineSeat::Empty)
        {
            self.engine = EngineSeat::Stopping(key);
            let events = self.events.clone();
            tokio::task::spawn_blocking(move || {
                let _ = events.blocking_send(Event::Stopped(thread.join()));
            });
        }
    }

    fn stopped(&mut self, engine: Option<Box<dyn Engine>>) {
        let EngineSeat::Stopping(key) = std::mem::replace(&mut self.engine, EngineSeat::Empty) else {
            return;
        };
        let Some(mut engine) = engine else {
            return; // It panicked; its memory is not to be trusted.
        };
        let n_slots = engine.shape().n_slots;
        if (0..n_slots).all(|slot| engine.truncate(Slot(slot), Position(0)).is_ok()) {
            self.engine = EngineSeat::Resting(key, engine);
        }
    }

    fn loaded(&mut self, result: Result<Box<dyn Engine>, LoadError>) {
        let EngineSeat::Loading(key) = std::mem::replace(&mut self.engine, EngineSeat::Empty) else {
            return;
        };
        let wanted =
            self.place.as_ref().map(|place| &place.assign).filter(|assign| EngineKey::of(assign) == key);
        let failed = match (&result, wanted) {
            (Ok(engine), Some(assign)) => misfit(engine.as_ref(), assign),
            (Err(error), Some(_)) => Some(error.reason.clone()),
            (Ok(_) | Err(_), None) => None,
        };
        match (failed, result) {
            (Some(reason), _) => {
                self.tell(StageState::Failed { reason });
                self.leave("the stage could not load its layers");
            }
            (None, Ok(engine)) => {
                self.lease = self.place.is_none().then(|| Instant::now() + self.config.lease);
                self.engine = EngineSeat::Resting(key, engine);
            }
            (None, Err(_)) => {}
        }
    }

    fn link_lost(&mut self, generation: Generation, which: &str, reason: &str) {
        if self.place_in(generation).is_some() {
            let kind = FaultKind::Link { reason: format!("link {which}: {reason}") };
            self.report(Report::Fault(Fault { seq: None, kind }));
        }
    }

    /// Moves towards readiness as far as what is there allows.
    fn advance(&mut self) {
        let Some(place) = &mut self.place else {
            return;
        };
        let key = EngineKey::of(&place.assign);
        let resting = match &self.engine {
            EngineSeat::Resting(held, engine) if *held == key => Some(engine.shape().row_width),
            EngineSeat::Resting(..) | EngineSeat::Empty => {
                self.engine = EngineSeat::Empty;
                return self.load(key);
            }
            EngineSeat::Loading(_) | EngineSeat::Stopping(_) | EngineSeat::Running(..) => None,
        };
        let Some(row_width) = resting else {
            return self.unpark();
        };
        match (place.assign.downstream.clone(), &place.downstream) {
            (Some(next), None) => {
                if place.downstream_task.is_none() {
                    let task = self.dial_downstream(next, row_width as u32);
                    if let Some(place) = &mut self.place {
                        place.downstream_task = Some(task);
                    }
                    self.tell(StageState::Linking);
                }
            }
            (Some(_), Some(_)) | (None, _) => {
                self.run_engine();
                self.unpark();
            }
        }
    }

    fn load(&mut self, key: EngineKey) {
        let Some(place) = &self.place else {
            return;
        };
        let (source, assign) = (Arc::clone(&self.config.source), place.assign.clone());
        let (events, progress) = (self.events.clone(), self.events.clone());
        self.engine = EngineSeat::Loading(key);
        tokio::task::spawn_blocking(move || {
            let result = source.load(&assign, &mut |permille, what| {
                // Progress is for people: what does not fit is not missed.
                let _ = progress.try_send(Event::Loading { permille, what: what.to_owned() });
            });
            let _ = events.blocking_send(Event::Loaded(result));
        });
    }

    /// The engine starts to work in the current generation, and the front hears that the stage is ready.
    fn run_engine(&mut self) {
        let (Some(place), Some(control)) = (&mut self.place, &self.control) else {
            return;
        };
        let EngineSeat::Resting(key, engine) = std::mem::replace(&mut self.engine, EngineSeat::Empty) else {
            return;
        };
        let sink = LinkSink {
            stage: place.assign.index,
            generation: place.generation,
            control: control.sender.clone(),
            downstream: place.downstream.clone(),
        };
        let name = format!("stage-{}", place.assign.index);
        let config = stage_config(place.assign.row_dtype);
        match EngineThread::spawn(&name, engine, config, Box::new(sink)) {
            Ok(thread) => {
                let shape = thread.handle().shape().clone();
                self.engine = EngineSeat::Running(key, thread);
                self.tell(StageState::Ready {
                    row_width: shape.row_width as u32,
                    weight_bytes: shape.weight_bytes,
                    kv_bytes: shape.kv_bytes,
                });
            }
            Err(error) => {
                self.tell(StageState::Failed { reason: format!("no thread for the engine: {error}") })
            }
        }
    }

    /// Rows may come from the one node that the front named, in the current generation, once the engine runs. A link
    /// that comes early is answered later; a newer one takes its place.
    fn take_rows(&mut self, greeted: Greeted, hello: RowsHello) {
        let current = self.place.as_ref().map(|place| place.generation);
        if current.is_some_and(|current| hello.generation < current) {
            return refuse(&greeted.sender, RefuseReason::NotAssigned { generation: hello.generation });
        }
        if let Some((old, _)) = self.parked.replace((greeted, hello)) {
            old.sender.close("a newer link took its place");
        }
    }

    /// Answers a link for rows that waits, if the stage is ready for it.
    fn unpark(&mut self) {
        let (Some(place), Some(engine)) = (&mut self.place, self.engine.handle()) else {
            return;
        };
        let Some((greeted, hello)) = self.parked.take_if(|(_, hello)| hello.generation <= place.generation)
        else {
            return;
        };
        if let Err(reason) = check_rows(place, engine.shape(), greeted.sender.peer().node, &hello) {
            return refuse(&greeted.sender, reason);
        }
        if accept(&greeted.sender, &self.config.build).is_err() {
            return;
        }
        let (generation, events) = (place.generation, self.events.clone());
        let Greeted { sender, mut receiver, .. } = greeted;
        place.upstream_task = Some(Task::spawn(async move {
            let reason = loop {
                match work_link::recv(&mut receiver).await {
                    Ok(frame) => {
                        if let Err(refused) = engine.frame(frame) {
                            break refused.to_string();
                        }
                    }
                    Err(error) => break error.to_string(),
                }
            };
            sender.close(&reason);
            let _ = events.send(Event::UpstreamLost(generation, reason)).await;
        }));
    }

    /// Dials the next stage until it accepts or refuses for good, then watches the link.
    fn dial_downstream(&self, next: Downstream, row_width: u32) -> Task {
        let Some(place) = &self.place else {
            return Task::spawn(async {});
        };
        let (generation, assign) = (place.generation, &place.assign);
        let hello = RowsHello {
            generation,
            to: StageIndex(assign.index.0 + 1),
            model: assign.model,
            layer: assign.layers.end,
            row_width,
            row_dtype: assign.row_dtype,
            context: assign.context,
        };
        let (config, events) = (Arc::clone(&self.config), self.events.clone());
        Task::spawn(async move {
            let role = LinkRole::Rows(hello);
            let reason = match dial_until(&config, &next, role, None).await {
                Ok((sender, mut receiver)) => {
                    let _ = events.send(Event::Downstream(generation, sender)).await;
                    match receiver.recv().await {
                        Ok(_) => "unexpected bytes".to_owned(),
                        Err(error) => error.to_string(),
                    }
                }
                Err(refused) => refused.to_string(),
            };
            let _ = events.send(Event::DownstreamLost(generation, reason)).await;
        })
    }

    /// Dials the neighbour that the front cannot reach, then passes its reports on.
    fn dial_relay(&self, generation: Generation, index: StageIndex, next: Downstream) -> Task {
        let (config, events) = (Arc::clone(&self.config), self.events.clone());
        Task::spawn(async move {
            let role = LinkRole::Control { stage: StageIndex(index.0 + 1) };
            let reason = match dial_until(&config, &next, role, Some(config.heartbeat)).await {
                Ok((sender, mut receiver)) => {
                    let _ = events.send(Event::RelayUp(generation, sender)).await;
                    loop {
                        match read_control::<ToFront>(&mut receiver).await {
                            Ok(report) => {
                                let _ = events.send(Event::RelayReport(generation, Box::new(report))).await;
                            }
                            Err(reason) => break reason,
                        }
                    }
                }
                Err(refused) => refused.to_string(),
            };
            let _ = events.send(Event::RelayLost(generation, reason)).await;
        })
    }

    fn place_in(&mut self, generation: Generation) -> Option<&mut Place> {
        self.place.as_mut().filter(|place| place.generation == generation)
    }

    fn tell(&self, state: StageState) {
        self.report(Report::State(state));
    }

    fn report(&self, report: Report) {
        if let Some(control) = &self.control {
            let generation = self.place.as_ref().map_or_else(Generation::default, |place| place.generation);
            self.send(&ToFront { from: control.stage, generation, report });
        }
    }

    fn send(&self, message: &ToFront) {
        if let Some(control) = &self.control
            && let Err(error) = greeting::send(&control.sender, message)
        {
            tracing::debug!("a report could not be sent: {error}");
        }
    }
}

/// The next message on a control link.
pub(crate) async fn read_control<M: Wire>(receiver: &mut LinkReceiver) -> Result<M, String> {
    let received = receiver.recv().await.map_err(|error| error.to_string())?;
    M::decode(&received.bytes).map_err(|error| format!("not a control message: {error}"))
}

/// Dials until the other side accepts. A refusal that time may heal is tried again, with growing pauses.
async fn dial_until(
    config: &NodeConfig,
    next: &Downstream,
    role: LinkRole,
    heartbeat: Option<net::Heartbeat>,
) -> Result<(LinkSender, LinkReceiver), RefuseReason> {
    let mut options = config.dial.clone();
    options.link.heartbeat = heartbeat;
    let mut pause = REDIAL_MIN;
    loop {
        match net::dial(&next.address, &config.identity, next.node, &options).await {
            Ok(link) => match greet(link, role.clone(), &config.build).await {
                Ok(ends) => return Ok(ends),
                Err(GreetError::Refused(reason)) if is_final(&reason) => return Err(reason),
                Err(error) => tracing::debug!(address = next.address, "no link yet: {error}"),
            },
            Err(error) => tracing::debug!(address = next.address, "no link yet: {error}"),
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(REDIAL_MAX);
    }
}

/// Whether dialling again in this generation is pointless.
const fn is_final(reason: &RefuseReason) -> bool {
    match reason {
        RefuseReason::Version { .. } | RefuseReason::WrongPeer | RefuseReason::Mismatch { .. } => true,
        RefuseReason::Busy | RefuseReason::NotAssigned { .. } => false,
    }
}

/// Compares what the sender of rows believes with what this stage was told.
fn check_rows(
    place: &Place,
    shape: &stage::EngineShape,
    peer: NodeId,
    hello: &RowsHello,
) -> Result<(), RefuseReason> {
    let assign = &place.assign;
    if hello.generation != place.generation {
        return Err(RefuseReason::NotAssigned { generation: hello.generation });
    }
    if peer != assign.upstream {
        return Err(RefuseReason::WrongPeer);
    }
    let width = if shape.is_first { 0 } else { shape.row_width as u32 };
    let fields = [
        ("stage", assign.index.to_string(), hello.to.to_string()),
        ("model", assign.model.to_string(), hello.model.to_string()),
        ("first layer", assign.layers.start.to_string(), hello.layer.to_string()),
        ("row width", width.to_string(), hello.row_width.to_string()),
        ("row dtype", format!("{:?}", assign.row_dtype), format!("{:?}", hello.row_dtype)),
        ("context", assign.context.to_string(), hello.context.to_string()),
    ];
    match fields.into_iter().find(|(_, ours, theirs)| ours != theirs) {
        None => Ok(()),
        Some((field, ours, theirs)) => Err(RefuseReason::Mismatch { field: field.to_owned(), ours, theirs }),
    }
}
