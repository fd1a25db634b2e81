//! The node's task: one loop over one closed set of events.

use std::sync::Arc;

use net::{LinkSender, NoticeError, Purpose};
use protocol::{
    Assign, Command, Fault, FaultKind, Generation, Holding, LinkRole, NodeId, PeerIndex, RefuseReason,
    Report, RowsHello, Sight, StageState, Tenant, ToFront, ToStage,
};
use stage::Engine;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;

use super::dial::{Links, read_commands};
use super::filed::Filed;
use super::lease::Lease;
use super::leaving::Leaving;
use super::place::{Place, Standby};
use super::reception::receive;
use super::refusals::Refusals;
use super::seat::{EngineSeat, Rested, Tenure, misfit, stage_config};
use super::sink::LinkSink;
use super::{Event, Greeted, NodeConfig};
use crate::greeting::{self, accept, show};
use crate::source::LoadError;
use crate::task::Task;

/// The control link in use.
struct Control {
    number: u64,
    /// What the front calls this stage, as the dialling side said.
    peer: PeerIndex,
    sender: LinkSender,
    _reader: Task,
}

pub(super) struct Actor {
    config: Arc<NodeConfig>,
    events: mpsc::Sender<Event>,
    links: u64,
    control: Option<Control>,
    place: Option<Place>,
    /// What to hold without a place.
    standby: Option<Standby>,
    engine: EngineSeat,
    /// A link for rows that came before this stage was ready for it.
    parked: Option<(Greeted, RowsHello)>,
    leaving: Leaving,
    /// For whom the node is kept. A resting engine is freed when it is kept for nobody.
    lease: Lease,
    refusals: Arc<Refusals>,
}

impl Actor {
    pub(super) fn new(config: NodeConfig, events: mpsc::Sender<Event>) -> Self {
        Self {
            lease: Lease::new(config.lease),
            config: Arc::new(config),
            events,
            links: 0,
            control: None,
            place: None,
            standby: None,
            engine: EngineSeat::Empty,
            parked: None,
            leaving: Leaving::default(),
            refusals: Arc::default(),
        }
    }

    pub(super) async fn run(mut self, mut inbox: mpsc::Receiver<Event>) {
        let mut standings = self.config.identity.standings();
        loop {
            let ends = self.lease.ends();
            let event = tokio::select! {
                // The front hears why a link ends before it hears that it has.
                biased;
                // The identity, which sends them, lives as long as the node.
                Ok(()) = standings.changed() => {
                    self.noticed();
                    self.rest();
                    continue;
                }
                event = inbox.recv() => event,
                () = async { tokio::time::sleep_until(ends.unwrap_or_else(Instant::now)).await }, if ends.is_some() => {
                    self.lease.expire(Instant::now());
                    self.rest();
                    continue;
                }
            };
            let Some(event) = event else { return };
            self.handle(event);
            self.advance();
            self.rest();
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Leave(waits) => self.ask_to_leave(waits),
            Event::Attached(link) => {
                drop(tokio::spawn(receive(link, self.events.clone(), Arc::clone(&self.refusals))));
            }
            Event::Greeted(greeted) => self.greeted(*greeted),
            Event::Command { link, message } => self.command(link, *message),
            Event::ControlLost { link, reason } => self.control_lost(link, &reason),
            Event::Loaded(result) => self.loaded(result),
            Event::Loading { permille, what } => self.tell(StageState::Loading { permille, what }),
            Event::Stopped(rested) => self.engine.stopped(rested),
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

    /// The cluster's root has spoken: the node is not kept for somebody whom it has let go.
    fn noticed(&mut self) {
        self.tell_documents();
        let tenant = self.lease.tenant(Instant::now());
        if tenant.is_some_and(|tenant| self.config.identity.has_let_go(tenant.front)) {
            const REASON: &str = "the cluster's root has let the front go";
            if let Some(control) = self.control.take() {
                control.sender.close(REASON);
            }
            self.leave(REASON);
            self.lease.release(Instant::now());
        }
    }

    /// The process was told to end. A front that is there decides when; without one it may at once.
    fn ask_to_leave(&mut self, waits: oneshot::Sender<()>) {
        self.leaving.ask(waits);
        self.report(Report::Leaving);
        if self.control.is_none() {
            self.leaving.may_go();
        }
    }

    /// Tells the front what the cluster's root has said, if it has said anything.
    fn tell_documents(&self) {
        for document in self.config.identity.standing().documents() {
            self.report(Report::Notice(document.clone()));
        }
    }

    /// Frees an engine that is kept for nobody; one that is still loading or finishing, when it rests.
    fn rest(&mut self) {
        if !self.lease.keeps() && self.engine.is_resting() {
            tracing::info!("no front needs the model; its memory is freed");
            self.engine.free(&self.events);
        }
    }

    fn greeted(&mut self, greeted: Greeted) {
        match &greeted.hello.role {
            LinkRole::Control { peer, front } => self.take_control(*peer, *front, greeted),
            LinkRole::Rows(rows) => {
                let rows = rows.clone();
                self.take_rows(greeted, rows);
            }
            LinkRole::Observe { notice } if notice.is_empty() => show(&greeted.sender, self.sight()),
            LinkRole::Observe { notice } => match self.config.identity.heed(notice) {
                Ok(_) => show(&greeted.sender, self.sight()),
                Err(NoticeError::LeftOut) => self.refusals.refuse(&greeted.sender, RefuseReason::LeftOut),
                Err(_) => self.refusals.refuse(&greeted.sender, RefuseReason::NotHeeded),
            },
        }
    }

    /// A front, or a neighbour that relays, wants this stage.
    fn take_control(&mut self, peer: PeerIndex, front: NodeId, greeted: Greeted) {
        let Greeted { sender, receiver, .. } = greeted;
        if self.config.identity.has_let_go(front) {
            return self.refusals.refuse(&sender, RefuseReason::LetGo);
        }
        if self.leaving.is_asked() {
            return self.refusals.refuse(&sender, RefuseReason::Ending);
        }
        let itself = sender.peer().purpose == Purpose::Control;
        if let Err(tenant) = self.lease.take(front, itself, Instant::now()) {
            return self.refusals.refuse(&sender, RefuseReason::Kept { tenant });
        }
        if let Some(control) = self.control.take() {
            control.sender.close("the front reaches the stage itself now");
            self.leave("the front reaches the stage itself now");
        }
        if accept(&sender, &self.config.build).is_err() {
            return self.lease.unlinked(Instant::now());
        }
        self.links += 1;
        let number = self.links;
        let reader = read_commands(number, receiver, self.events.clone());
        self.control = Some(Control { number, peer, sender, _reader: reader });
        self.tell(StageState::Idle { node: self.config.identity.node(), pid: std::process::id() });
        self.tell_documents();
    }

    fn command(&mut self, link: u64, message: ToStage) {
        let Some(control) = self.control.as_ref().filter(|control| control.number == link) else {
            return;
        };
        if message.to != control.peer {
            return self.pass_on(&message);
        }
        match message.command {
            Command::Assign(assign) => self.assigned(message.generation, *assign),
            Command::Prepare(holding) => {
                self.leave("the front wants the stage to stand by");
                tracing::info!(layers = %holding.layers, "stands by");
                self.standby = Some(Standby { holding, told: false });
            }
            Command::Notice(notice) => {
                // A front that says something else is no reason to stop working for it.
                if let Err(error) = self.config.identity.heed(&notice) {
                    tracing::warn!("what the front says of the cluster's root is not believed: {error}");
                }
            }
            Command::Release => {
                self.leave("the front released the stage");
                self.lease.release(Instant::now());
                if let Some(control) = self.control.take() {
                    control.sender.close("released");
                }
                self.leaving.may_go();
            }
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
    fn pass_on(&self, message: &ToStage) {
        match self.place.as_ref().and_then(|place| place.relay.as_ref()) {
            Some(relay) => greeting::tell(relay, message),
            // The front hears of the lost relay, and asks again.
            None => tracing::debug!(to = %message.to, "no relay for a control message"),
        }
    }

    fn control_lost(&mut self, link: u64, reason: &str) {
        if let Some(control) = self.control.take_if(|control| control.number == link) {
            tracing::info!("the front is gone: {reason}");
            // If it is there and said something else than a command, it learns so.
            control.sender.close(reason);
            self.leave("the front is gone");
            self.lease.unlinked(Instant::now());
            self.leaving.may_go();
        }
    }

    fn assigned(&mut self, generation: Generation, assign: Assign) {
        self.leave("assigned anew");
        let Some(Tenant { front, .. }) = self.lease.tenant(Instant::now()) else { return };
        tracing::info!(%generation, layers = %assign.holding.layers, "assigned");
        let mut place = Place::new(generation, front, assign);
        if let Some(next) = place.assign.downstream.clone()
            && let Some(peer) = next.relay
        {
            place.relay_task = Some(self.links(generation).relay(next, LinkRole::Control { peer, front }));
        }
        self.place = Some(place);
    }

    /// Gives up the place in the line, or beside it; the engine goes on resting.
    fn leave(&mut self, reason: &str) {
        self.standby = None;
        if let Some(place) = self.place.take() {
            place.close(reason);
        }
        self.engine.stop(&self.events);
    }

    fn loaded(&mut self, result: Result<Box<dyn Engine>, LoadError>) {
        let Some(key) = self.engine.loaded() else { return };
        let is_wanted = self.wanted() == Some(key);
        let failed = match &result {
            Ok(engine) => misfit(engine.as_ref(), &key),
            Err(error) => Some(error.reason.clone()),
        };
        let failed = failed.filter(|_| is_wanted);
        match (failed, result) {
            (Some(reason), _) => {
                self.tell(StageState::Failed { reason });
                self.leave("the stage could not load its layers");
            }
            (None, Ok(engine)) => self.engine = EngineSeat::Resting(key, Rested::new(engine)),
            (None, Err(_)) => {}
        }
    }

    /// What this stage should have in memory.
    fn wanted(&self) -> Option<Holding> {
        let placed = self.place.as_ref().map(|place| place.assign.holding);
        placed.or_else(|| self.standby.as_ref().map(|standby| standby.holding))
    }

    fn link_lost(&mut self, generation: Generation, which: &str, reason: &str) {
        if self.place_in(generation).is_some() {
            let kind = FaultKind::Link { reason: format!("link {which}: {reason}") };
            self.report(Report::Fault(Fault { seq: None, kind }));
        }
    }

    /// Moves towards readiness as far as what is there allows.
    fn advance(&mut self) {
        let Some(wanted) = self.wanted() else {
            return;
        };
        let row_width = match &self.engine {
            EngineSeat::Resting(held, rested) if *held == wanted => {
                if let Some(place) = &self.place
                    && rested.is_spoilt(place.front, place.assign.keep)
                {
                    return self.engine.forget(&self.events);
                }
                rested.engine.shape().row_width
            }
            EngineSeat::Resting(..) => return self.engine.free(&self.events),
            EngineSeat::Empty => {
                let source = Arc::clone(&self.config.source);
                return self.engine.load(source, wanted, self.events.clone());
            }
            EngineSeat::Running(..) => return self.unpark(),
            EngineSeat::Loading(_) | EngineSeat::Stopping(_) => return,
        };
        let Some(place) = &self.place else {
            return self.stand_by();
        };
        match place.assign.downstream.clone() {
            Some(next) if place.downstream.is_none() => {
                if place.downstream_task.is_none() {
                    let (generation, hello) = (place.generation, place.hello(row_width as u32));
                    let task = self.links(generation).downstream(next, hello);
                    if let Some(place) = &mut self.place {
                        place.downstream_task = Some(task);
                    }
                    self.tell(StageState::Linking);
                }
            }
            Some(_) | None => {
                self.run_engine();
                self.unpark();
            }
        }
    }

    /// The layers are there, and there is no place to work in.
    fn stand_by(&mut self) {
        if let (Some(standby), EngineSeat::Resting(_, Rested { engine, .. })) =
            (&mut self.standby, &self.engine)
            && !std::mem::replace(&mut standby.told, true)
        {
            let (layers, shape) = (standby.holding.layers, engine.shape());
            let (weight_bytes, kv_bytes) = (shape.weight_bytes, shape.kv_bytes);
            self.tell(StageState::Standby { layers, weight_bytes, kv_bytes });
        }
    }

    /// The engine starts to work in the current generation, and the front hears that the stage is ready.
    fn run_engine(&mut self) {
        let (Some(place), Some(control)) = (&self.place, &self.control) else {
            return;
        };
        let sink = LinkSink {
            peer: control.peer,
            generation: place.generation,
            control: control.sender.clone(),
            downstream: place.downstream.clone(),
        };
        let name = format!("stage-{}", place.assign.index);
        let config = stage_config(&place.assign, self.config.most_prefix_bytes);
        let store = self
            .config
            .store
            .clone()
            .map(|store| -> Box<dyn stage::Store> { Box::new(Filed::new(store, &place.assign)) });
        let tenure = Tenure::new(place.front, place.generation);
        let keeps = match self.engine.run((&name, tenure), config, Box::new(sink), store) {
            Ok(keeps) => keeps,
            Err(error) => {
                let reason = format!("no thread for the engine: {error}");
                return self.tell(StageState::Failed { reason });
            }
        };
        if let Some(engine) = self.engine.handle() {
            let shape = engine.shape();
            self.tell(StageState::Ready {
                keeps,
                row_width: shape.row_width as u32,
                weight_bytes: shape.weight_bytes,
                kv_bytes: shape.kv_bytes,
            });
        }
    }

    /// Rows may come from the one node that the front named, in the current generation, once the engine runs. A link
    /// that comes early is answered later; a newer one takes its place.
    fn take_rows(&mut self, greeted: Greeted, hello: RowsHello) {
        if let Some(place) = &self.place
            && let Err(reason) = place.admit(peer(&greeted), &hello)
        {
            return self.refusals.refuse(&greeted.sender, reason);
        }
        match &mut self.parked {
            Some((_, waiting)) if waiting.generation > hello.generation => {
                self.refusals
                    .refuse(&greeted.sender, RefuseReason::NotAssigned { generation: hello.generation });
            }
            parked => {
                if let Some((old, _)) = parked.replace((greeted, hello)) {
                    old.sender.close("a newer link took its place");
                }
            }
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
        let admitted =
            place.admit(peer(&greeted), &hello).and_then(|()| Place::admit_width(engine.shape(), &hello));
        if let Err(reason) = admitted {
            return self.refusals.refuse(&greeted.sender, reason);
        }
        if accept(&greeted.sender, &self.config.build).is_err() {
            return;
        }
        let links = Links {
            config: Arc::clone(&self.config),
            events: self.events.clone(),
            generation: place.generation,
        };
        place.upstream = Some(greeted.sender.clone());
        place.upstream_task = Some(links.upstream(greeted.sender, greeted.receiver, engine));
    }

    /// What an observer sees.
    fn sight(&self) -> Sight {
        Sight {
            build: self.config.build.clone(),
            tenant: self.lease.tenant(Instant::now()),
            layers: self.wanted().map(|holding| holding.layers),
            works: self.engine.handle().is_some(),
            notice: self.config.identity.standing().notice().map_or(0, net::Notice::number),
        }
    }

    fn links(&self, generation: Generation) -> Links {
        Links { config: Arc::clone(&self.config), events: self.events.clone(), generation }
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
            self.send(&ToFront { from: control.peer, generation, report });
        }
    }

    fn send(&self, message: &ToFront) {
        if let Some(control) = &self.control {
            greeting::tell(&control.sender, message);
        }
    }
}

fn peer(greeted: &Greeted) -> NodeId {
    greeted.sender.peer().node
}
