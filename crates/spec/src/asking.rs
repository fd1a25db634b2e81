//! Whether the tail's own drafts are worth their time for one sequence.
//!
//! A draft costs the tail a call, and its window waits for that. So each draft that comes is weighed: what the best use of
//! it should bring, its time included, against what the other sources, or nobody, would bring from the same place. Owns:
//! the sums of both over the last drafts, and when the tail is asked again after drafts have not been worth it. Does not know
//! how either is found (`plan` has the model), or what a draft is made of.

use crate::plan::Yield;

/// So many drafts are weighed before they are judged: a single one may have met an odd place.
const TRIES: u32 = 2;
/// Drafts must bring this much more: less is within the model's error.
const ADVANTAGE: f64 = 1.02;
/// Older drafts count less, by this factor for each newer one: about the last ten matter.
const OLD: f64 = 0.9;
/// Windows without a draft, after drafts were not worth it, before the next one is tried; each further time twice as many,
/// up to the last. A try costs about a token, so that the first pause is one of 1 % already.
const REST: (u32, u32) = (96, 1536);

/// See the module.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Asking {
    with: Sum,
    without: Sum,
    /// Drafts weighed since the last rest.
    n_weighed: u32,
    /// Windows left to send without asking; none if drafts are worth asking for.
    rests: Option<u32>,
    next_rest: u32,
}

/// Expected tokens, and the seconds that they take.
#[derive(Clone, Copy, Debug, Default)]
struct Sum {
    tokens: f64,
    seconds: f64,
}

impl Sum {
    fn add(&mut self, found: Yield) {
        self.tokens = OLD * self.tokens + found.tokens;
        self.seconds = OLD * self.seconds + found.tokens / found.rate;
    }

    fn rate(self) -> f64 {
        self.tokens / self.seconds.max(f64::MIN_POSITIVE)
    }
}

impl Asking {
    pub(crate) const fn new() -> Self {
        let none = Sum { tokens: 0.0, seconds: 0.0 };
        Self { with: none, without: none, n_weighed: 0, rests: None, next_rest: REST.0 }
    }

    /// A draft has come: what it should bring, its own time included, and what would have been without it.
    pub(crate) fn weigh(&mut self, with: Yield, without: Yield) {
        if self.rests.is_some() {
            // One that was tried while they rested: it alone decides whether they are judged anew.
            if with.rate < ADVANTAGE * without.rate {
                self.next_rest = (2 * self.next_rest).min(REST.1);
                self.rests = Some(self.next_rest);
                return;
            }
            *self = Self { next_rest: self.next_rest, ..Self::new() };
        }
        self.with.add(with);
        self.without.add(without);
        self.n_weighed += 1;
        if self.n_weighed < TRIES {
            return;
        }
        if self.with.rate() < ADVANTAGE * self.without.rate() {
            self.rests = Some(self.next_rest);
        } else {
            self.next_rest = REST.0;
        }
    }

    /// Whether drafts are worth asking for.
    pub(crate) const fn pays(&self) -> bool {
        self.rests.is_none()
    }

    /// Whether the window that leaves now shall ask. `is_fresh` if nothing else is under way.
    pub(crate) const fn asks(&mut self, is_fresh: bool) -> bool {
        match &mut self.rests {
            None => true,
            Some(0) => true,
            Some(left) => {
                *left -= is_fresh as u32;
                false
            }
        }
    }

    /// Expected tokens per second, as far as drafts were weighed: with them while they pay.
    pub(crate) fn rate(&self) -> Option<f64> {
        let of = if self.pays() { self.with } else { self.without };
        (of.seconds > 0.0).then(|| of.rate())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bringing(rate: f64) -> Yield {
        Yield { rate, waste: 0.0, tokens: 2.0 }
    }

    /// Windows that ask among the next `n`, each of whose drafts brings `with` where nobody would bring 10.
    fn asked(asking: &mut Asking, n: u32, with: f64) -> u32 {
        let mut n_asked = 0;
        for _ in 0..n {
            if asking.asks(true) {
                n_asked += 1;
                asking.weigh(bringing(with), bringing(10.0));
            }
        }
        n_asked
    }

    #[test]
    fn what_pays_goes_on_and_what_does_not_is_tried_ever_more_rarely() {
        let mut asking = Asking::new();
        assert_eq!(asked(&mut asking, 500, 15.0), 500);
        let n_asked = asked(&mut asking, 100, 9.0);
        assert!((2..20).contains(&n_asked), "{n_asked}");
        // After 96 windows, after 192, 384, 768, and after each 1,536.
        let n_asked = asked(&mut asking, 10_000, 9.0);
        assert!((6..=10).contains(&n_asked), "{n_asked}");
        // And when one of them pays again, they all do.
        assert!(asked(&mut asking, 3000, 15.0) > 1400);
        assert!(asking.pays());
    }

    #[test]
    fn what_only_pays_now_and_then_is_judged_by_all_of_it() {
        let mut asking = Asking::new();
        for turn in 0..400 {
            if asking.asks(true) {
                asking.weigh(bringing(if turn % 2 == 0 { 30.0 } else { 9.0 }), bringing(10.0));
            }
        }
        assert!(asking.pays(), "30 and 9 make 13.8");
    }
}
