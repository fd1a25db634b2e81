//! Who makes room at an invitation's port where too many come at once.
//!
//! Owns: that choice. Does not hear anybody, nor end anything by itself.

use std::collections::BTreeMap;
use std::net::IpAddr;

use tokio::sync::oneshot;

/// Exchanges that are heard at once; one machine is expected.
pub(super) const MAX_HEARD: usize = 16;

/// Nothing is ever sent: it ends when the place is taken away.
pub(super) type Place = oneshot::Receiver<()>;

/// Those that are being heard, in the order in which they came.
#[derive(Debug, Default)]
pub(super) struct Crowd {
    heard: BTreeMap<u64, (IpAddr, oneshot::Sender<()>)>,
    next: u64,
}

impl Crowd {
    /// Gives a newcomer a number and a place. If there is none left, the oldest of the address that has the most makes
    /// room: one that says nothing keeps nobody out, and one that comes often keeps itself out before others.
    pub(super) fn enter(&mut self, from: IpAddr) -> (u64, Place) {
        if self.heard.len() >= MAX_HEARD
            && let Some(number) = self.least_welcome()
        {
            self.heard.remove(&number);
        }
        self.next += 1;
        let (keep, place) = oneshot::channel();
        self.heard.insert(self.next, (from, keep));
        (self.next, place)
    }

    /// Nobody need be heard under this number any more.
    pub(super) fn leave(&mut self, number: u64) {
        self.heard.remove(&number);
    }

    fn least_welcome(&self) -> Option<u64> {
        let of = |address: &IpAddr| self.heard.values().filter(|(other, _)| other == address).count();
        // Of equals the first one that was found.
        let oldest_first = self.heard.iter().rev();
        oldest_first.max_by_key(|(_, (address, _))| of(address)).map(|(&number, _)| number)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(last: u8) -> IpAddr {
        [10, 0, 0, last].into()
    }

    fn has_place(place: &mut Place) -> bool {
        matches!(place.try_recv(), Err(oneshot::error::TryRecvError::Empty))
    }

    #[test]
    fn the_oldest_of_those_who_came_most_often_makes_room() {
        let mut crowd = Crowd::default();
        let (_, mut honest) = crowd.enter(address(1));
        let (_, mut twice) = crowd.enter(address(2));
        let mut places: Vec<Place> = (0..100).map(|_| crowd.enter(address(3)).1).collect();
        crowd.enter(address(2));
        assert!(has_place(&mut honest) && has_place(&mut twice));
        let kept: Vec<bool> = places.iter_mut().map(has_place).collect();
        assert_eq!(kept, [vec![false; 87], vec![true; 13]].concat());
        // One that was heard leaves room.
        let (number, mut place) = crowd.enter(address(4));
        crowd.leave(number);
        assert!(!has_place(&mut place));
        let before = places.iter_mut().filter_map(|place| has_place(place).then_some(())).count();
        crowd.enter(address(5));
        assert_eq!(places.iter_mut().filter_map(|place| has_place(place).then_some(())).count(), before);
    }

    #[test]
    fn where_everybody_came_once_the_first_one_makes_room() {
        let mut crowd = Crowd::default();
        let mut places: Vec<Place> = (0..=MAX_HEARD as u8).map(|at| crowd.enter(address(at)).1).collect();
        let kept: Vec<bool> = places.iter_mut().map(has_place).collect();
        assert_eq!(kept, [vec![false], vec![true; MAX_HEARD]].concat());
    }
}
