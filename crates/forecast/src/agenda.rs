//! What will happen when, in virtual time; what is planned for the same time happens in the order in which it was
//! planned.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::time::Duration;

/// See the module. The heap moves small keys only: what happens may be large.
#[derive(Debug)]
pub(crate) struct Agenda<T> {
    /// Time, number in the order of planning, place in `planned`.
    keys: BinaryHeap<Reverse<(Duration, u64, usize)>>,
    planned: Vec<Option<T>>,
    free: Vec<usize>,
    n_planned: u64,
}

impl<T> Agenda<T> {
    pub(crate) const fn new() -> Self {
        Self { keys: BinaryHeap::new(), planned: Vec::new(), free: Vec::new(), n_planned: 0 }
    }

    pub(crate) fn plan(&mut self, at: Duration, happening: T) {
        let place = self.free.pop().unwrap_or_else(|| {
            self.planned.push(None);
            self.planned.len() - 1
        });
        self.planned[place] = Some(happening);
        self.n_planned += 1;
        self.keys.push(Reverse((at, self.n_planned, place)));
    }

    /// The next happening and its time.
    pub(crate) fn next(&mut self) -> Option<(Duration, T)> {
        let Reverse((at, _, place)) = self.keys.pop()?;
        self.free.push(place);
        self.planned[place].take().map(|happening| (at, happening))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_planned_for_one_time_happens_in_order() {
        let mut agenda = Agenda::new();
        let second = Duration::from_secs(1);
        agenda.plan(2 * second, 'c');
        agenda.plan(second, 'a');
        agenda.plan(second, 'b');
        assert_eq!(agenda.next(), Some((second, 'a')));
        agenda.plan(2 * second, 'd');
        let rest: Vec<_> = std::iter::from_fn(|| agenda.next()).map(|(_, what)| what).collect();
        assert_eq!(rest, ['b', 'c', 'd']);
    }
}
