//! What was said of those who were refused, so that one who comes again and again does not fill the log.
//!
//! Owns: the memory of that, which is bounded. Does not know what makes two refusals the same one.

use std::collections::VecDeque;
use std::fmt::Display;
use std::sync::{Mutex, PoisonError};

/// Refusals that are remembered. One that was forgotten is logged again.
const MAX_SAID: usize = 64;

/// The latest refusals that were logged: `W` is who was refused and why, without what differs from one time to the next.
#[derive(Debug)]
pub struct Said<W>(Mutex<VecDeque<W>>);

impl<W> Default for Said<W> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<W: PartialEq> Said<W> {
    /// Says in the log that somebody at this address was refused and why: as a warning the first time, since a person
    /// will look for the reason on this side, too, and afterwards only for who looks closely.
    pub fn log(&self, what: W, address: &dyn Display, sentence: &dyn Display) {
        if self.is_new(what) {
            tracing::warn!(%address, "{sentence}");
        } else {
            tracing::debug!(%address, "{sentence}");
        }
    }

    /// Whether this was not said before; from now on it was.
    fn is_new(&self, what: W) -> bool {
        let mut said = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if said.contains(&what) {
            return false;
        }
        said.truncate(MAX_SAID - 1);
        said.push_front(what);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_said_of_a_machine_is_not_said_again_until_it_is_forgotten() {
        let said = Said::default();
        assert!(said.is_new((0, "old")) && said.is_new((0, "other")));
        assert!(!said.is_new((0, "old")) && said.is_new((1, "old")));
        for machine in 2..2 + MAX_SAID {
            assert!(said.is_new((machine, "old")));
        }
        assert_eq!(said.0.lock().unwrap().len(), MAX_SAID);
        assert!(said.is_new((0, "old")));
    }
}
