//! For whom a node is kept: for one front while its link lives, and for the same front a while longer, in which it may
//! come back and nobody else is taken. What the node has loaded is kept as long, and also for a front that let it go. Pure: the time is an argument.
//!
//! Does not know what is kept, or how a front proves who it is.

use std::time::Duration;

use protocol::{NodeId, Tenant};
use tokio::time::Instant;

/// A node's lease.
#[derive(Debug)]
pub(super) struct Lease {
    /// How long the node is kept for a front that is gone.
    length: Duration,
    holder: Option<Holder>,
    /// Until when what was loaded is kept for whoever comes; none while somebody holds the lease.
    idle_until: Option<Instant>,
}

/// Whom the node is kept for.
#[derive(Clone, Copy, Debug)]
struct Holder {
    front: NodeId,
    /// Whether it came itself, and no neighbour passes its commands on.
    itself: bool,
    /// Until when; none while its link lives.
    until: Option<Instant>,
}

impl Lease {
    pub(super) const fn new(length: Duration) -> Self {
        Self { length, holder: None, idle_until: None }
    }

    /// A front wants to command the node, itself or through a neighbour. The link then holds the lease.
    ///
    /// A neighbour that passes commands on gives way to its front when that comes itself. No other link gives way while
    /// it lives, not even to the same front: two processes that share an identity would take the node from each other for
    /// ever.
    ///
    /// # Errors
    /// If the node is kept for somebody else.
    pub(super) fn take(&mut self, front: NodeId, itself: bool, now: Instant) -> Result<(), Tenant> {
        self.expire(now);
        if let Some(holder) = &self.holder {
            let is_free = holder.until.is_some() || (itself && !holder.itself);
            if holder.front != front || !is_free {
                return Err(holder.tenant(now));
            }
        }
        self.holder = Some(Holder { front, itself, until: None });
        self.idle_until = None;
        Ok(())
    }

    /// The holder's link is gone.
    pub(super) fn unlinked(&mut self, now: Instant) {
        if let Some(holder) = &mut self.holder {
            holder.until = Some(now + self.length);
        }
    }

    /// The holder does not need the node any more, or may not have it.
    pub(super) fn release(&mut self, now: Instant) {
        self.holder = None;
        self.idle_until = Some(now + self.length);
    }

    /// Whether what the node has loaded may be needed.
    pub(super) const fn keeps(&self) -> bool {
        self.holder.is_some() || self.idle_until.is_some()
    }

    /// When it ends by itself; none while nobody is away.
    pub(super) fn ends(&self) -> Option<Instant> {
        self.holder.map_or(self.idle_until, |holder| holder.until)
    }

    /// Lets go of a holder that has been away for too long.
    pub(super) fn expire(&mut self, now: Instant) {
        self.holder.take_if(|holder| holder.until.is_some_and(|until| until <= now));
        self.idle_until.take_if(|until| *until <= now);
    }

    /// Whom the node is kept for, to be told to others.
    pub(super) fn tenant(&self, now: Instant) -> Option<Tenant> {
        self.holder.map(|holder| holder.tenant(now))
    }
}

impl Holder {
    fn tenant(&self, now: Instant) -> Tenant {
        let left = self.until.map(|until| until.saturating_duration_since(now));
        Tenant {
            front: self.front,
            left_ms: left.map(|left| left.as_millis().try_into().unwrap_or(u32::MAX)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LENGTH: Duration = Duration::from_secs(10);
    const A: NodeId = NodeId([1; 32]);
    const B: NodeId = NodeId([2; 32]);

    fn after(start: Instant, seconds: u64) -> Instant {
        start + Duration::from_secs(seconds)
    }

    #[test]
    fn a_second_front_is_refused_until_the_lease_of_the_first_has_run_out() {
        let (mut lease, start) = (Lease::new(LENGTH), Instant::now());
        lease.take(A, true, start).unwrap();
        let linked = Tenant { front: A, left_ms: None };
        assert_eq!(
            lease.take(B, true, after(start, 1000)),
            Err(linked),
            "no lease ends while its link lives"
        );
        lease.unlinked(after(start, 1000));
        let gone = Tenant { front: A, left_ms: Some(4000) };
        assert_eq!(lease.take(B, true, after(start, 1006)), Err(gone));
        assert_eq!(lease.take(B, true, after(start, 1010)), Ok(()));
        let taken = Tenant { front: B, left_ms: None };
        assert_eq!(lease.take(A, true, after(start, 1010)), Err(taken));
    }

    #[test]
    fn the_same_front_comes_back_at_once_but_not_twice() {
        let (mut lease, start) = (Lease::new(LENGTH), Instant::now());
        lease.take(A, true, start).unwrap();
        lease.take(A, true, start).unwrap_err();
        lease.unlinked(start);
        lease.take(A, true, after(start, 1)).unwrap();
        assert_eq!(lease.ends(), None);
    }

    #[test]
    fn a_front_that_lets_go_makes_room_at_once_and_what_is_loaded_stays_a_while() {
        let (mut lease, start) = (Lease::new(LENGTH), Instant::now());
        lease.take(A, true, start).unwrap();
        lease.release(start);
        lease.unlinked(start);
        assert_eq!((lease.tenant(start), lease.keeps(), lease.ends()), (None, true, Some(after(start, 10))));
        lease.take(B, true, start).unwrap();
        assert_eq!(lease.ends(), None);
        lease.release(start);
        lease.expire(after(start, 10));
        assert!(!lease.keeps());
    }

    #[test]
    fn a_neighbour_gives_way_to_its_front_and_to_another_neighbour_once_it_is_gone() {
        let (mut lease, start) = (Lease::new(LENGTH), Instant::now());
        lease.take(A, false, start).unwrap();
        lease.take(A, false, start).unwrap_err();
        lease.take(B, true, start).unwrap_err();
        lease.unlinked(start);
        lease.take(A, false, start).unwrap();
        lease.take(A, true, start).unwrap();
        lease.take(A, false, start).unwrap_err();
    }
}
