//! What goes wrong beside outages: stages that die or freeze at any instruction, links that break, stall, and deliver late
//! and twice what belongs to lines that are over, clocks that jump, disks that are slow or full.
//!
//! All of it happens in the first phase of a run, in which nothing wrong may be said (safety). Then everything works
//! again, and whoever asks now must be answered (liveness). Decided by the seed alone, so that what was drawn before
//! stays as it was.

use std::time::Duration;

use crate::random::{Random, mix};
use crate::{Driver, Plan};

/// From now on nothing goes wrong any more: far behind the last fault, and the patience that any of them is met with.
pub(crate) const CALM: Duration = Duration::from_secs(2000);

/// Whoever does not answer for so long is given up; as of a real line.
pub(crate) const HEARTBEAT: Duration = Duration::from_secs(1);

/// A process that ends between two instructions, and comes back knowing nothing.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Death {
    /// Of whoever sits there then.
    pub(crate) seat: usize,
    /// Assignments, frames, hints and results that it still takes in; none if it dies while it waits for its store.
    pub(crate) after: Option<u32>,
    /// Of what it says to the next one, so much leaves it.
    pub(crate) says: u32,
    /// Until the front hears of it.
    pub(crate) noticed: Duration,
    /// From then on until it is back.
    pub(crate) lasts: Duration,
    /// Whether what it had stored is gone, too.
    pub(crate) forgets: bool,
}

/// A process that does nothing for a while, and then goes on with all that has come meanwhile.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Freeze {
    /// Of whoever sits there then.
    pub(crate) seat: usize,
    /// Assignments, frames, hints and results that it still takes in.
    pub(crate) after: u32,
    /// Up to [`HEARTBEAT`] it is slow, and must not be given up; above, it is given up and finds out late.
    pub(crate) lasts: Duration,
}

/// A link that takes messages and delivers none of them any more.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cut {
    pub(crate) at: Duration,
    pub(crate) wire: Wire,
    /// Until the front hears of it; if never, it learns of it from the silence that follows.
    pub(crate) noticed: Option<Duration>,
    /// From then on until it can be made anew.
    pub(crate) lasts: Duration,
}

/// A link that delivers nothing for a while, and then all of it: less than anybody is given up for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stall {
    pub(crate) at: Duration,
    pub(crate) wire: Wire,
    pub(crate) lasts: Duration,
}

/// Both directions of a connection, of whoever sits there then.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Wire {
    /// Work on its way to this seat.
    Rows(usize),
    /// Between the front and this seat.
    Control(usize),
}

/// Clocks that show at once that it is later.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Jump {
    pub(crate) at: Duration,
    pub(crate) by: Duration,
    /// Whose clock; all machines' if none, as if all had slept.
    pub(crate) seat: Option<usize>,
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub(crate) struct Faults {
    pub(crate) deaths: Vec<Death>,
    pub(crate) freezes: Vec<Freeze>,
    pub(crate) cuts: Vec<Cut>,
    pub(crate) stalls: Vec<Stall>,
    pub(crate) jumps: Vec<Jump>,
    /// How many times as long as usual the stores take.
    pub(crate) disk: u32,
    /// Percent of prefixes for which a store has no room, so that it takes no others either.
    pub(crate) fulls: u32,
    /// Percent of messages of which a copy comes when their line is over.
    pub(crate) echoes: u32,
    /// Whether a link, or a stage, does once what it promises never to do: the next one hears a frame twice.
    pub(crate) repeats: bool,
    /// Whether somebody else holds the layers of each seat, too.
    pub(crate) has_spares: bool,
}

impl Faults {
    pub(crate) fn draw(plan: &Plan, driver: Driver, n_stages: usize) -> Self {
        let mut random = Random::new(mix(plan.seed ^ 0xfa17));
        if plan.calm {
            return Self { disk: 1, ..Self::default() };
        }
        let n_deaths = random.pick(&[0, 0, 1, 1, 2, 5]);
        let n_jumps = random.pick(&[0, 0, 0, 1, 2]);
        let mut faults = Self {
            deaths: (0..n_deaths).map(|_| Death::draw(n_stages, &mut random)).collect(),
            // Up to what a machine sleeps while nobody gives up on it: less than the longest wait for a line.
            jumps: (0..n_jumps)
                .map(|_| {
                    let at = random.micros(0, 100_000);
                    Jump { at, by: random.micros(1, 200_000) * random.pick(&[1, 100, 1000]), seat: None }
                })
                .collect(),
            disk: random.pick(&[1, 1, 1, 100]),
            ..Self::default()
        };
        faults.draw_more(driver, n_stages, &mut Random::new(mix(plan.seed ^ 0xf4ee2e)));
        faults
    }

    fn draw_more(&mut self, driver: Driver, n_stages: usize, random: &mut Random) {
        let n_freezes = random.pick(&[0, 0, 0, 1, 2, 4]);
        self.freezes = (0..n_freezes).map(|_| Freeze::draw(n_stages, random)).collect();
        let n_cuts = random.pick(&[0, 0, 0, 0, 1, 2]);
        self.cuts = (0..n_cuts).map(|_| Cut::draw(driver, n_stages, random)).collect();
        let n_stalls = random.pick(&[0, 0, 0, 0, 1, 3]);
        self.stalls = (0..n_stalls).map(|_| Stall::draw(n_stages, random)).collect();
        if random.percent(20) {
            let seat = Some(random.between(0, n_stages as u32 - 1) as usize);
            let by = random.micros(1, 200_000) * random.pick(&[1, 100, 10_000]);
            self.jumps.push(Jump { at: random.micros(0, 60_000), by, seat });
        }
        self.fulls = random.pick(&[0, 0, 0, 20]);
        self.echoes = random.pick(&[0, 0, 5, 50]);
        self.has_spares = random.percent(40);
        // The other front does not recover from it.
        self.repeats = driver == Driver::Scheduler && random.percent(10);
    }

    /// Somebody may die while it waits for its store.
    pub(crate) fn die_restoring(&mut self, random: &mut Random, n_stages: usize) {
        if random.percent(70) {
            self.deaths.insert(0, Death { after: None, ..Death::draw(n_stages, random) });
        }
    }

    /// Nothing more of it happens.
    pub(crate) fn end(&mut self) {
        *self = Self { disk: 1, has_spares: self.has_spares, ..Self::default() };
    }
}

impl Death {
    fn draw(n_stages: usize, random: &mut Random) -> Self {
        Self {
            seat: random.between(0, n_stages as u32 - 1) as usize,
            after: Some(random.between(0, random.clone().pick(&[3, 40, 400]))),
            says: random.between(0, 3),
            noticed: random.micros(0, 3000),
            lasts: random.micros(1, 20_000),
            forgets: random.percent(30),
        }
    }
}

impl Freeze {
    fn draw(n_stages: usize, random: &mut Random) -> Self {
        let longest = HEARTBEAT.as_micros() as u32;
        let is_slow = random.percent(50);
        Self {
            seat: random.between(0, n_stages as u32 - 1) as usize,
            after: random.between(0, random.clone().pick(&[3, 40, 400])),
            lasts: if is_slow {
                random.micros(1, longest) / random.pick(&[1, 10, 100])
            } else {
                HEARTBEAT * 2 + random.micros(1, 2 * longest)
            },
        }
    }
}

impl Cut {
    fn draw(driver: Driver, n_stages: usize, random: &mut Random) -> Self {
        let wire = Wire::draw(n_stages, random);
        // Control links have a heartbeat. The other front has no timer for what a line owes.
        let is_heard = matches!(wire, Wire::Control(_)) || driver == Driver::Guesses || random.percent(70);
        Self {
            at: random.micros(0, 60_000),
            wire,
            noticed: is_heard.then(|| random.micros(0, 3000)),
            lasts: random.micros(1, 20_000),
        }
    }
}

impl Stall {
    fn draw(n_stages: usize, random: &mut Random) -> Self {
        let wire = Wire::draw(n_stages, random);
        Self { at: random.micros(0, 60_000), wire, lasts: random.micros(1, 500_000) }
    }
}

impl Wire {
    fn draw(n_stages: usize, random: &mut Random) -> Self {
        let seat = random.between(0, n_stages as u32 - 1) as usize;
        if random.percent(50) { Self::Rows(seat) } else { Self::Control(seat) }
    }
}
