//! How a model's layers are shared out over the stages of a line. Pure.

use std::ops::Range;

use crate::layout::Layout;
use crate::slice::{Load, load};
use crate::source::{CutError, Source};

/// One stage of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedStage {
    /// Its layers.
    pub range: Range<u32>,
    /// Multiplications for a token: one for each weight, however it is stored, of its layers, and of the output head if
    /// it is the tail; and those of attention some hundred positions into a text.
    pub products: u64,
    /// Bytes of those weights.
    pub bytes: u64,
}

/// Ranges that cover all layers in order, each computable by llama.cpp.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// The stages, first to tail.
    pub stages: Vec<PlannedStage>,
}

impl Plan {
    /// Shares the layers out so that the stage with the most multiplications has as few as can be, and among those plans
    /// the one with the fewest in all (pass-through layers cost). What counts is not the bytes of the weights: heads are
    /// often stored in twice the bits of the layers, and take no longer to compute for it. (SmolLM2-135M on two
    /// processors, eight clients: cut by bytes, 22 : 8, 119 tokens per second; by weights alone, 19 : 11, 155; with
    /// attention, 18 : 12, 161.)
    ///
    /// # Errors
    /// If there are fewer layers than stages, or no allowed cut.
    pub fn balanced(source: &Source<'_>, n_stages: u32) -> Result<Self, CutError> {
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
                let Load { products, bytes } = stage_load(source, range.clone())?;
                Ok(PlannedStage { products, bytes, range })
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

/// Compared by the largest stage, then by all multiplications.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Cost {
    largest: u64,
    total: u64,
}

impl Cost {
    fn with(self, products: u64) -> Self {
        Self { largest: self.largest.max(products), total: self.total.saturating_add(products) }
    }
}

/// Multiplications of every range, none where it cannot be a stage.
struct Table {
    n_layers: usize,
    products: Vec<Option<u64>>,
}

impl Table {
    fn new(source: &Source<'_>) -> Self {
        let n = source.n_layers();
        let ranges = (0..n).flat_map(|start| (1..=n).map(move |end| start..end));
        let of = |range: Range<u32>| (!range.is_empty()).then(|| stage_load(source, range).ok()).flatten();
        Self {
            n_layers: n as usize,
            products: ranges.map(|range| of(range).map(|load| load.products)).collect(),
        }
    }

    fn get(&self, start: usize, end: usize) -> Option<u64> {
        self.products[start * self.n_layers + end - 1]
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

fn stage_load(source: &Source<'_>, range: Range<u32>) -> Result<Load, CutError> {
    Ok(load(source, &Layout::new(source, range)?))
}
