//! How a model's layers are shared out over the stages of a line. Pure.

use std::ops::Range;

use crate::layout::Layout;
use crate::slice::{Weights, weights};
use crate::source::{CutError, Source};

/// One stage of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedStage {
    /// Its layers.
    pub range: Range<u32>,
    /// Weights that it computes with for a token, however they are stored: its layers, and the output head if it is the
    /// tail.
    pub weights: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// Ranges that cover all layers in order, each computable by llama.cpp.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The stages, first to tail.
    pub stages: Vec<PlannedStage>,
}

impl Plan {
    /// Shares the layers out so that the stage with the most weights has as few as can be, and among those plans the one
    /// with the fewest in all (pass-through layers cost). What counts is not their bytes: heads are often stored in
    /// twice the bits of the layers, and take no longer to compute for it. (SmolLM2-135M on two processors: cut
    /// by bytes, 22 : 8, eight clients got 119 tokens per second; by weights, 19 : 11, 136.)
    ///
    /// # Errors
    /// If there are fewer layers than stages, or no allowed cut.
    pub fn by_weights(source: &Source<'_>, n_stages: u32) -> Result<Self, CutError> {
        let n_layers = source.n_layers();
        if n_stages == 0 || n_stages > n_layers {
            return Err(CutError::TooManyStages { stages: n_stages, layers: n_layers });
        }
        let cuts =
            Table::new(source).best_cuts(n_stages as usize).ok_or(CutError::NoPlan { stages: n_stages })?;
        Self::at_cuts(source, &cuts)
    }

    /// Cuts before the given layers.
    ///
    /// # Errors
    /// If the cuts do not rise within the model, or a range cannot be a stage.
    pub fn at_cuts(source: &Source<'_>, cuts: &[u32]) -> Result<Self, CutError> {
        let n_layers = source.n_layers();
        let mut start = 0;
        let mut stages = vec![];
        for &cut in cuts {
            if cut <= start || cut >= n_layers {
                return Err(CutError::Cuts { cut, last: n_layers - 1 });
            }
            stages.push(start..cut);
            start = cut;
        }
        stages.push(start..n_layers);
        let stages = stages
            .into_iter()
            .map(|range| {
                let Weights { n, bytes } = stage_weights(source, range.clone())?;
                Ok(PlannedStage { weights: n, bytes, range })
            })
            .collect::<Result<_, CutError>>()?;
        Ok(Self { stages })
    }

    /// Where it cuts: the first layer of every stage but the first.
    #[must_use]
    pub fn cuts(&self) -> Vec<u32> {
        self.stages[1..].iter().map(|stage| stage.range.start).collect()
    }
}

/// Compared by the largest stage, then by all weights.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Cost {
    largest: u64,
    total: u64,
}

impl Cost {
    fn with(self, weights: u64) -> Self {
        Self { largest: self.largest.max(weights), total: self.total.saturating_add(weights) }
    }
}

/// Weights of every range, none where it cannot be a stage.
struct Table {
    n_layers: usize,
    weights: Vec<Option<u64>>,
}

impl Table {
    fn new(source: &Source<'_>) -> Self {
        let n = source.n_layers();
        let ranges = (0..n).flat_map(|start| (1..=n).map(move |end| start..end));
        let of = |range: Range<u32>| (!range.is_empty()).then(|| stage_weights(source, range).ok()).flatten();
        Self {
            n_layers: n as usize,
            weights: ranges.map(|range| of(range).map(|weights| weights.n)).collect(),
        }
    }

    fn get(&self, start: usize, end: usize) -> Option<u64> {
        self.weights[start * self.n_layers + end - 1]
    }

    /// The first layers of all stages but the first, by dynamic programming over the stages.
    fn best_cuts(&self, n_stages: usize) -> Option<Vec<u32>> {
        let n = self.n_layers;
        // `best[end]`: the cheapest way to cut layers 0..end into the stages placed so far.
        let mut best: Vec<Option<Cost>> = vec![None; n + 1];
        best[0] = Some(Cost::default());
        // `starts[stage][end]`: where that way's last stage begins.
        let mut starts = Vec::new();
        for _ in 0..n_stages {
            let cheapest = |end: usize| {
                (0..end).filter_map(|start| Some((best[start]?.with(self.get(start, end)?), start))).min()
            };
            let next: Vec<_> = (0..=n).map(cheapest).collect();
            best = next.iter().map(|found| found.map(|(cost, _)| cost)).collect();
            starts.push(next);
        }
        let mut cuts = vec![];
        let mut end = n;
        for found in starts.iter().rev() {
            (_, end) = found[end]?;
            cuts.push(end as u32);
        }
        cuts.pop();
        cuts.reverse();
        Some(cuts)
    }
}

fn stage_weights(source: &Source<'_>, range: Range<u32>) -> Result<Weights, CutError> {
    Ok(weights(source, &Layout::new(source, range)?))
}
