//! Stages that die, move and are replaced at random, seen only through what the front hears: whatever happened, once
//! they stay the line comes up.

use super::tests::{ms, node, ready, roster};
use super::*;

/// A stage as it really is.
struct Stage {
    node: NodeId,
    address: u64,
    /// The front's control link to it stands.
    linked: bool,
    assigned: Option<(Generation, Assign)>,
}

struct World {
    line: Roster,
    stages: Vec<Stage>,
    now: Duration,
    random: u64,
    dialled: Option<Generation>,
}

impl World {
    fn new(seed: u64) -> Self {
        let n = 2 + (seed % 4) as u16;
        let stage = |at| Stage { node: node(at), address: u64::from(at), linked: false, assigned: None };
        Self {
            line: roster(n, false),
            stages: (0..n).map(stage).collect(),
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
        let stage = StageIndex(at as u16);
        match self.random(6) {
            0 | 1 => self.link(at),
            2 => {
                // It dies; its address and its key may be others afterwards, heard of in any order.
                let moves = self.random(2) == 0;
                self.stages[at].address += if moves { 100 } else { 0 };
                if self.random(4) == 0 {
                    self.stages[at].node.0[1] += 1;
                }
                self.stages[at].assigned = None;
                if moves && self.random(2) == 0 {
                    let host = self.host(at);
                    self.line.handle_address(stage, Some(host), self.now);
                }
                if std::mem::take(&mut self.stages[at].linked) {
                    self.line.handle_lost(stage, "killed".into(), self.now);
                }
            }
            3 => self.line.handle_unreachable(stage, "refused".into(), self.now),
            4 => {
                let generation = self.line.generation();
                self.line.handle_fault(stage, generation, "a fault", self.now);
            }
            _ => self.work(),
        }
        let pause = self.random(8000);
        self.now += ms(pause);
        self.hear();
    }

    fn link(&mut self, at: usize) {
        if !std::mem::replace(&mut self.stages[at].linked, true) {
            self.stages[at].assigned = None;
            self.line.handle_linked(StageIndex(at as u16), self.stages[at].node, 1, false, self.now);
        }
    }

    /// What the roster says reaches the stages that are linked.
    fn hear(&mut self) {
        while let Some(action) = self.line.poll_action() {
            match action {
                Action::Send(ToStage { to, generation, command: Command::Assign(assign) }) => {
                    let stage = &mut self.stages[usize::from(to.0)];
                    if stage.linked {
                        stage.assigned = Some((generation, *assign));
                    }
                }
                Action::DialWork(generation) => self.dialled = Some(generation),
                _ => {}
            }
        }
    }

    /// Every stage does what it was told as far as its neighbours are where it was told.
    fn work(&mut self) {
        for at in (0..self.stages.len()).rev() {
            let Some((generation, assign)) = self.stages[at].assigned.clone() else { continue };
            let accepts = assign.downstream.is_none_or(|told| {
                let next = &self.stages[at + 1];
                told.address == self.host(at + 1)
                    && told.node.is_none_or(|told| told == next.node)
                    && next.assigned.as_ref().is_some_and(|(theirs, assign)| {
                        *theirs == generation && assign.upstream == self.stages[at].node
                    })
            });
            if accepts {
                self.line.handle_state(StageIndex(at as u16), generation, ready(), self.now);
                self.hear();
            }
        }
        if let Some(generation) = self.dialled.take() {
            self.line.handle_work_link(generation, self.now);
        }
        if let Some(deadline) = self.line.next_deadline() {
            self.now = self.now.max(deadline);
            self.line.handle_timeout(self.now);
        }
        self.hear();
    }

    /// Nothing dies any more, and everything is heard of in the end.
    fn settles(&mut self) -> bool {
        for _ in 0..10 {
            for at in 0..self.stages.len() {
                let host = self.host(at);
                self.line.handle_address(StageIndex(at as u16), Some(host), self.now);
                self.link(at);
                self.hear();
            }
            self.work();
            if self.line.is_up() {
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
