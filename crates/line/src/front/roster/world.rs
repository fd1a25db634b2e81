//! Machines that die, move and are replaced at random, seen only through what the front hears: whatever happened, once
//! they stay the line comes up, and every spare stands by.

use protocol::{Assign, Command, LayerRange};

use super::tests::{ms, node, ready, roster_of};
use super::*;

/// A stage as it really is.
struct Stage {
    node: NodeId,
    address: u64,
    /// The front's control link to it stands.
    linked: bool,
    assigned: Option<(Generation, Assign)>,
    prepared: Option<LayerRange>,
}

struct World {
    line: Roster,
    stages: Vec<Stage>,
    now: Duration,
    random: u64,
    dialled: Option<(Generation, PeerIndex)>,
}

impl World {
    fn new(seed: u64) -> Self {
        let n = 2 + (seed % 4) as u16;
        let spares = [None, None, Some(seed as u16 / 7 % n)];
        let spares = &spares[..seed as usize / 3 % 4];
        let stage = |at| Stage {
            node: node(at),
            address: u64::from(at),
            linked: false,
            assigned: None,
            prepared: None,
        };
        Self {
            line: roster_of(n, false, spares, (seed % 5 < 3).then(|| ms(seed % 3 * 9000))),
            stages: (0..n + spares.len() as u16).map(stage).collect(),
            now: ms(1),
            random: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1,
            dialled: None,
        }
    }

    fn random(&mut self, below: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % below
    }

    fn host(&self, at: usize) -> String {
        format!("host:{}", self.stages[at].address)
    }

    /// One thing happens.
    fn happens(&mut self) {
        let at = self.random(self.stages.len() as u64) as usize;
        let peer = PeerIndex(at as u16);
        match self.random(8) {
            0 | 1 => self.link(at),
            2 => {
                // It dies; its address and its key may be others afterwards, heard of in any order.
                let moves = self.random(2) == 0;
                self.stages[at].address += if moves { 100 } else { 0 };
                if self.random(4) == 0 {
                    self.stages[at].node.0[1] += 1;
                }
                (self.stages[at].assigned, self.stages[at].prepared) = (None, None);
                if moves && self.random(2) == 0 {
                    let host = self.host(at);
                    self.line.handle_address(peer, Some(host), self.now);
                }
                if std::mem::take(&mut self.stages[at].linked) {
                    self.line.handle_lost(peer, "killed".into(), self.now);
                }
            }
            3 => self.line.handle_unreachable(peer, "refused".into(), self.now),
            4 => {
                let generation = self.line.generation();
                if let Some(stage) = self.line.seat_of(peer) {
                    self.line.handle_fault(stage, generation, "a fault", self.now);
                }
            }
            5 => self.fails(at),
            6 if self.stages[at].linked => self.line.handle_leaving(peer, self.now),
            _ => self.work(),
        }
        let pause = self.random(8000);
        self.now += ms(pause);
        self.hear();
    }

    fn link(&mut self, at: usize) {
        if !std::mem::replace(&mut self.stages[at].linked, true) {
            (self.stages[at].assigned, self.stages[at].prepared) = (None, None);
            self.line.handle_linked(PeerIndex(at as u16), self.stages[at].node, 1, false, self.now);
        }
    }

    /// It cannot load what it was told to.
    fn fails(&mut self, at: usize) {
        let peer = PeerIndex(at as u16);
        let failed = StageState::Failed { reason: "no memory".into() };
        if self.stages[at].prepared.take().is_some() {
            self.line.handle_spare_state(peer, failed, self.now);
        } else if let (Some((generation, _)), Some(stage)) =
            (self.stages[at].assigned.take(), self.line.seat_of(peer))
        {
            self.line.handle_state(stage, generation, failed, self.now);
        }
    }

    /// What the roster says reaches the machines that are linked.
    fn hear(&mut self) {
        while let Some(action) = self.line.poll_action() {
            match action {
                Action::Send(ToStage { to, generation, command }) => {
                    let stage = &mut self.stages[usize::from(to.0)];
                    if !stage.linked {
                        continue;
                    }
                    if command == Command::Release {
                        (stage.linked, stage.assigned, stage.prepared) = (false, None, None);
                        self.line.handle_lost(to, "released".into(), self.now);
                        continue;
                    }
                    (stage.assigned, stage.prepared) = match command {
                        Command::Assign(assign) => (Some((generation, *assign)), None),
                        Command::Prepare(holding) => (None, Some(holding.layers)),
                        other => panic!("{other:?}"),
                    };
                }
                Action::DialWork(generation, first) => self.dialled = Some((generation, first)),
                _ => {}
            }
        }
        self.waits_for_something();
    }

    /// The driver waits for the next deadline: one that has passed already would keep it from ever sleeping.
    fn waits_for_something(&mut self) {
        for _ in 0..3 {
            if self.line.next_deadline().is_none_or(|deadline| deadline > self.now) {
                return;
            }
            self.line.handle_timeout(self.now);
        }
        panic!("a deadline that stays in the past: {:?}", self.line);
    }

    /// Every machine does what it was told as far as its neighbours are where it was told.
    fn work(&mut self) {
        for at in (0..self.stages.len()).rev() {
            self.stands_by(at);
            let Some((generation, assign)) = self.stages[at].assigned.clone() else { continue };
            let accepts = assign.downstream.is_none_or(|told| {
                let is_there = |next: &usize| told.address == self.host(*next);
                let Some(next) = (0..self.stages.len()).find(is_there).map(|next| &self.stages[next]) else {
                    return false;
                };
                told.node.is_none_or(|told| told == next.node)
                    && next.assigned.as_ref().is_some_and(|(theirs, assign)| {
                        *theirs == generation && assign.upstream == self.stages[at].node
                    })
            });
            if let (true, Some(stage)) = (accepts, self.line.seat_of(PeerIndex(at as u16))) {
                self.line.handle_state(stage, generation, ready(), self.now);
                self.hear();
            }
        }
        // One of a generation that was given up meanwhile is none.
        if let Some((generation, first)) =
            self.dialled.take().filter(|dialled| dialled.0 == self.line.generation())
        {
            assert_eq!(first, self.line.seated(StageIndex(0)));
            self.line.handle_work_link(generation, self.now);
        }
        if self.line.is_draining() {
            self.line.handle_drained();
            self.hear();
        }
        if let Some(deadline) = self.line.next_deadline() {
            self.now = self.now.max(deadline);
            self.line.handle_timeout(self.now);
        }
        self.hear();
    }

    fn stands_by(&mut self, at: usize) {
        if let Some(layers) = self.stages[at].prepared {
            let state = StageState::Standby { layers, weight_bytes: 1, kv_bytes: 1 };
            self.line.handle_spare_state(PeerIndex(at as u16), state, self.now);
            self.hear();
        }
    }

    /// Nothing dies any more, and everything is heard of in the end.
    fn settles(&mut self) -> bool {
        for _ in 0..20 {
            for at in 0..self.stages.len() {
                let host = self.host(at);
                self.line.handle_address(PeerIndex(at as u16), Some(host), self.now);
                self.link(at);
                self.hear();
            }
            self.work();
            let stands_by = |spare| {
                let peer = self.line.peer(spare);
                matches!(peer.state, PeerState::Spare { seat, .. } if peer.is_warm_for(seat))
            };
            if self.line.is_up() && self.line.is_as_given() && self.line.spares().all(stands_by) {
                return true;
            }
        }
        false
    }
}

#[test]
fn whatever_happened_the_line_comes_up_once_its_stages_stay() {
    for seed in 1..=3000 {
        let mut world = World::new(seed);
        for _ in 0..40 {
            world.happens();
        }
        let up = world.settles();
        assert!(up, "seed {seed}: {:?}", world.line);
    }
}
