//! Stages that die: in the middle of whatever they take in, with some of what they had to say about it unsaid.

use super::{Happening, Line};
use crate::faults::Death;
use crate::front::Front;

impl Happening {
    /// The stage to which it happens.
    const fn at_stage(&self) -> Option<usize> {
        match self {
            Self::Frame(stage, ..)
            | Self::Hint(stage, _)
            | Self::Done(stage, _)
            | Self::Stored(stage, ..) => Some(*stage),
            Self::Report(_)
            | Self::Wake
            | Self::LineUp
            | Self::LineLost
            | Self::ClockJumps(_)
            | Self::Calm => None,
        }
    }
}

impl<F: Front> Line<F> {
    /// Something happens, and whoever it happens to may die of it.
    pub(super) fn befall(&mut self, happening: Happening) {
        let Some(index) = happening.at_stage() else { return self.happen(happening) };
        // It may be for one of more stages than there are now.
        let Some(stage) = self.stages.get(index) else { return };
        // What was under way in an earlier life is over.
        let is_past = matches!(happening, Happening::Done(_, life) if life != stage.life);
        if is_past || stage.is_dead() {
            return;
        }
        let death = self.due_death(index);
        if let Some(death) = death {
            self.stages[index].dies(death.says);
        }
        self.happen(happening);
        if let Some(death) = death {
            self.die(death);
        }
    }

    /// The stage takes something in: whether it dies of that.
    fn due_death(&mut self, index: usize) -> Option<Death> {
        let at = self.deaths.iter().position(|death| death.stage == index)?;
        let death = &mut self.deaths[at];
        if death.after > 0 {
            death.after -= 1;
            return None;
        }
        Some(self.deaths.remove(at))
    }

    fn die(&mut self, death: Death) {
        self.counts.deaths += 1;
        let stage = &mut self.stages[death.stage];
        stage.add_to(&mut self.counts);
        stage.begins_anew(death.forgets);
        let noticed = self.now + death.noticed;
        self.plan(noticed, Happening::LineLost);
        self.plan(noticed + death.lasts, Happening::LineUp);
    }
}
