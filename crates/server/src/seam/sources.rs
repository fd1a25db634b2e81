//! How well each source of guesses does, as a line tells it.

use std::collections::BTreeMap;

use scheduler::{DraftTally, Guesses, Judged, SourceTally, Tally};
use schemars::JsonSchema;
use serde::Serialize;

/// One source's guesses.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct SourceStatus {
    /// Sent.
    pub proposed: u64,
    /// Of those, right.
    pub accepted: u64,
    /// The same by how far they were ahead of what was certain when they were sent: 1 token, 2 tokens and so on; the
    /// sixteenth entry holds all that were further. Ends with the last distance that has any.
    pub by_depth: Vec<DepthStatus>,
    /// What became of the drafts that the tail made for it; none for a source that drafts nothing there.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub drafts: Option<DraftStatus>,
}

/// Drafts that the tail makes with the model's own blocks for that.
#[derive(Clone, Debug, Default, PartialEq, Serialize, JsonSchema)]
pub struct DraftStatus {
    /// That came with a token at least.
    pub made: u64,
    /// Of those, sent, at least in part.
    pub used: u64,
    /// The others: the line did better without them, or the text had gone on.
    pub unused: u64,
    /// Mean time that the tail spent on one, milliseconds.
    pub ms: f32,
    /// Of their first tokens, their second ones and so on, whether they were sent or not: what was right. Behind a wrong
    /// token all are wrong.
    pub by_position: Vec<JudgedStatus>,
}

/// Tokens that were compared with what was committed in their place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct JudgedStatus {
    /// Compared.
    pub judged: u64,
    /// Of those, the same.
    pub right: u64,
}

impl DraftStatus {
    fn of(drafts: &DraftTally) -> Self {
        let DraftTally { made, used, time_us, positions } = drafts;
        let n_positions = positions.iter().rposition(|one| one.judged > 0).map_or(0, |last| last + 1);
        let judged = |one: &Judged| JudgedStatus { judged: one.judged, right: one.right };
        Self {
            made: *made,
            used: *used,
            unused: made - used,
            ms: if *made == 0 { 0.0 } else { (*time_us as f64 / *made as f64 / 1e3) as f32 },
            by_position: positions[..n_positions].iter().map(judged).collect(),
        }
    }
}

/// Guesses of one distance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, JsonSchema)]
pub struct DepthStatus {
    /// Sent.
    pub proposed: u64,
    /// Of those, right.
    pub accepted: u64,
}

impl SourceStatus {
    /// Every source of a tally, by name.
    #[must_use]
    pub fn all(tally: &Tally) -> BTreeMap<String, Self> {
        tally.sources().map(|source| (source.name.to_owned(), Self::of(source))).collect()
    }

    fn of(source: &SourceTally) -> Self {
        let n_depths = source.depths.iter().rposition(|depth| depth.proposed > 0).map_or(0, |last| last + 1);
        let depth =
            |guesses: &Guesses| DepthStatus { proposed: guesses.proposed, accepted: guesses.accepted };
        Self {
            proposed: source.guesses.proposed,
            accepted: source.guesses.accepted,
            by_depth: source.depths[..n_depths].iter().map(depth).collect(),
            drafts: (source.drafts != DraftTally::default()).then(|| DraftStatus::of(&source.drafts)),
        }
    }
}
