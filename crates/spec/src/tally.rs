//! Counters of guesses, by source and by how far ahead they were.

/// Sources of one sequence at most: the kinds that exist, and room for a caller's own.
pub const MAX_SOURCES: usize = 8;
/// Distances that are told apart: 1 to 15 tokens behind the committed ones, and further.
pub const DEPTHS: usize = 16;
/// Tokens in a draft of the tail's own.
const DRAFTED: usize = protocol::limits::MAX_DRAFT as usize;

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
    /// What became of drafts that the tail made for it.
    pub drafts: DraftTally,
}

/// What became of a tail's own drafts. Counts only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DraftTally {
    /// That came with a token at least.
    pub made: u64,
    /// Of those, sent, at least in part.
    pub used: u64,
    /// Time that the tail spent on them, microseconds; one call may have made several.
    pub time_us: u64,
    /// Of the first tokens of drafts, the second ones and so on, sent or not: how many have been judged, and how many of
    /// those were right. Behind a wrong one all are wrong.
    pub positions: [Judged; DRAFTED],
}

/// Tokens that were compared with what was committed in their place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Judged {
    /// Compared.
    pub judged: u64,
    /// Of those, the same.
    pub right: u64,
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
            ours.drafts.add(&theirs.drafts);
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

impl DraftTally {
    fn add(&mut self, other: &Self) {
        self.made += other.made;
        self.used += other.used;
        self.time_us += other.time_us;
        for (ours, theirs) in self.positions.iter_mut().zip(&other.positions) {
            ours.judged += theirs.judged;
            ours.right += theirs.right;
        }
    }
}

impl Guesses {
    fn add(&mut self, other: Self) {
        self.proposed += other.proposed;
        self.accepted += other.accepted;
    }
}
