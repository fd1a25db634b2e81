//! What the grid runs: lengths, delays, and ways to guess.

use serde::Serialize;
use spec::{Reach, Sources, Speculate};

/// What is run.
#[derive(Clone, Debug)]
pub(in crate::bench) struct Extent {
    pub(super) stages: Vec<u16>,
    pub(super) delays_ms: Vec<u64>,
    /// Widths of serial windows.
    pub(super) serial: Vec<u32>,
    /// Widths and depths of windows several of which are under way.
    pub(super) deep: Vec<(u32, u32)>,
    /// Of each answer.
    pub(super) n_tokens: usize,
}

impl Extent {
    /// Some minutes.
    pub(in crate::bench) fn modest() -> Self {
        Self {
            stages: vec![2, 4],
            delays_ms: vec![0, 10, 40],
            serial: vec![4, 8, 16],
            deep: Vec::new(),
            n_tokens: 192,
        }
    }

    /// An hour and more.
    pub(in crate::bench) fn full() -> Self {
        let deep = [1, 2, 4, 8, 16].into_iter().flat_map(|width| [2, 4, 8, 16].map(|depth| (width, depth)));
        Self {
            stages: (1..=8).collect(),
            delays_ms: vec![0, 2, 10, 40],
            serial: vec![2, 4, 8, 12, 16],
            deep: deep.collect(),
            n_tokens: 128,
        }
    }
}

/// Who guesses, and how wide and deep.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Way {
    Off,
    Fixed { width: u32, depth: u32 },
    Auto,
}

impl Way {
    pub(super) fn speculate(self) -> Speculate {
        match self {
            Self::Off => Speculate::off(),
            Self::Auto => Speculate::auto(),
            Self::Fixed { width, depth } => Speculate {
                sources: Sources::Auto,
                reach: Reach { width: Some(width), depth: Some(depth), ..Reach::default() },
                draft_len: None,
            },
        }
    }

    pub(super) const fn is_serial(self) -> bool {
        matches!(self, Self::Fixed { depth: 1, .. })
    }
}
