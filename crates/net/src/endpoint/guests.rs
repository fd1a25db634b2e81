//! Who is there already.
//!
//! Owns: how many links each member has. Does not judge anybody.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use protocol::NodeId;

use crate::link::WeakLink;

/// The links of each member.
#[derive(Debug, Default)]
pub(super) struct Guests(Mutex<Counts>);

#[derive(Debug, Default)]
struct Counts {
    /// Members that were let in and have no link yet.
    coming: BTreeMap<NodeId, usize>,
    links: Vec<WeakLink>,
}

/// A member that was let in. Dropped without a link it leaves its place to another.
#[derive(Debug)]
pub(super) struct Coming {
    node: NodeId,
    guests: Arc<Guests>,
}

impl Guests {
    /// Lets a member in, unless it has `limit` links already.
    pub(super) fn let_in(self: &Arc<Self>, node: NodeId, limit: usize) -> Option<Coming> {
        let mut counts = self.lock();
        counts.links.retain(WeakLink::is_alive);
        let coming = counts.coming.get(&node).copied().unwrap_or(0);
        let linked = counts.links.iter().filter(|link| link.node() == node).count();
        if coming + linked >= limit {
            return None;
        }
        counts.coming.insert(node, coming + 1);
        Some(Coming { node, guests: Arc::clone(self) })
    }

    fn lock(&self) -> MutexGuard<'_, Counts> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Coming {
    /// It has a link now, which counts for as long as it lives.
    pub(super) fn linked(self, link: WeakLink) {
        self.guests.lock().links.push(link);
    }
}

impl Drop for Coming {
    fn drop(&mut self) {
        let mut counts = self.guests.lock();
        let others = counts.coming.remove(&self.node).unwrap_or(0).saturating_sub(1);
        if others > 0 {
            counts.coming.insert(self.node, others);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: usize = 3;

    #[test]
    fn a_member_has_so_many_places_and_gets_them_back() {
        let guests = Arc::<Guests>::default();
        let (one, two) = (NodeId([1; 32]), NodeId([2; 32]));
        let mut coming: Vec<_> = (0..LIMIT).map(|_| guests.let_in(one, LIMIT).unwrap()).collect();
        assert!(guests.let_in(one, LIMIT).is_none());
        // Others have their own.
        assert!(guests.let_in(two, LIMIT).is_some());
        coming.pop();
        let again = guests.let_in(one, LIMIT);
        assert!(again.is_some() && guests.let_in(one, LIMIT).is_none());
        drop((coming, again));
        assert!(guests.lock().coming.is_empty());
    }
}
