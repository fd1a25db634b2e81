//! Counters of guesses, by source and by how far ahead they were.

/// Sources of one sequence at most: the kinds that exist, and room for a caller's own.
pub const MAX_SOURCES: usize = 8;
/// Distances that are told apart: 1 to 15 tokens behind the committed ones, and further.
pub const DEPTHS: usize = 16;

/// What became of guesses. Counts only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Guesses {
    /// Sent.
    pub proposed: u64,
    /// Of those, committed.
    pub accepted: u64,
}

/// One source's guesses.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SourceTally {
    /// The source's name; empty for none.
    pub name: &'static str,
    /// Its guesses.
    pub guesses: Guesses,
    /// The same by distance, as in [`Tally::depths`].
    pub depths: [Guesses; DEPTHS],
    /// Tokens that it was asked about when nothing was at stake, or that were judged: its shadow's score.
    pub scored: u64,
    /// Of those, right.
    pub right: u64,
    /// Tokens that it proposed but that are not in the vocabulary. It was not asked again.
    pub unknown: u64,
}

/// Counters by source and by distance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    sources: [SourceTally; MAX_SOURCES],
    /// By the number of tokens between the last committed one, at the time of sending, and the guess; the last entry
    /// holds all that were further away.
    pub depths: [Guesses; DEPTHS],
}

impl Tally {
    /// The sources that were asked at all, in the order of the chain.
    pub fn sources(&self) -> impl Iterator<Item = &SourceTally> {
        self.sources.iter().take_while(|source| !source.name.is_empty())
    }

    /// Adds the counts of another sequence. Sources are matched by name; those beyond [`MAX_SOURCES`] are left out.
    pub fn add(&mut self, other: &Self) {
        for theirs in other.sources() {
            let ours = self.sources.iter_mut().find(|ours| ours.name.is_empty() || ours.name == theirs.name);
            let Some(ours) = ours else { continue };
            ours.name = theirs.name;
            ours.guesses.add(theirs.guesses);
            ours.scored += theirs.scored;
            ours.right += theirs.right;
            ours.unknown += theirs.unknown;
            for (ours, theirs) in ours.depths.iter_mut().zip(&theirs.depths) {
                ours.add(*theirs);
            }
        }
        for (ours, theirs) in self.depths.iter_mut().zip(&other.depths) {
            ours.add(*theirs);
        }
    }

    pub(crate) fn source(&mut self, source: usize) -> &mut SourceTally {
        &mut self.sources[source]
    }

    pub(crate) fn sent(&mut self, source: usize, depth: usize) {
        let at = depth.clamp(1, DEPTHS) - 1;
        let SourceTally { guesses, depths, .. } = &mut self.sources[source];
        for guesses in [guesses, &mut depths[at], &mut self.depths[at]] {
            guesses.proposed += 1;
        }
    }

    pub(crate) fn accepted(&mut self, source: usize, depth: usize) {
        let at = depth.clamp(1, DEPTHS) - 1;
        let SourceTally { guesses, depths, .. } = &mut self.sources[source];
        for guesses in [guesses, &mut depths[at], &mut self.depths[at]] {
            guesses.accepted += 1;
        }
    }
}

impl Guesses {
    fn add(&mut self, other: Self) {
        self.proposed += other.proposed;
        self.accepted += other.accepted;
    }
}
