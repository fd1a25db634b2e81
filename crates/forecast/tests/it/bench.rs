//! Lines and texts that the tests share.

use std::time::Duration;

use forecast::{Case, Comparison, Kind, LineModel, StageModel};

/// Tokens of an answer, unless a test says otherwise.
pub(crate) const TOKENS: usize = 1024;

/// What the full sizes are for: `./run soak`.
pub(crate) fn is_soak() -> bool {
    std::env::var_os("PACELINE_SOAK").is_some()
}

pub(crate) fn ms(ms: f64) -> Duration {
    Duration::from_secs_f64(ms / 1e3)
}

/// How a stage's time grows with its rows.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Shape {
    /// A share of the first row's time for each row more.
    PerRow(f64),
    /// As llama.cpp on a CPU: each row costs up to the width where tiled kernels begin, then rows come in fours.
    Stairs,
}

/// Stage times of a CPU and of a GPU with small ranges of layers, and what a row more costs.
pub(crate) const STAGES: [(f64, Shape); 5] = [
    (5.0, Shape::Stairs),
    (10.0, Shape::Stairs),
    (5.0, Shape::PerRow(1.0)),
    (1.0, Shape::PerRow(0.05)),
    (3.0, Shape::PerRow(0.15)),
];

/// Widths of serial windows.
pub(crate) const SERIAL: [u32; 8] = [1, 2, 3, 4, 6, 8, 12, 16];

/// A stage that takes `one` ms for a row.
pub(crate) fn stage(one: f64, shape: Shape) -> StageModel {
    match shape {
        Shape::PerRow(share) => StageModel::linear(ms(one), share),
        Shape::Stairs => {
            let steps = [(1, 1.0), (2, 1.35), (3, 1.7), (4, 1.9), (8, 2.6), (12, 3.6), (16, 4.2)];
            let more = (5..=128).map(|fours| (4 * fours, 0.2 + 0.25 * f64::from(4 * fours)));
            let all = steps.into_iter().chain(more);
            StageModel { steps: all.map(|(rows, times)| (rows, ms(one * times))).collect() }
        }
    }
}

/// Equal stages, `delay` ms apart.
pub(crate) fn line(n_stages: u16, one: f64, shape: Shape, delay: f64) -> LineModel {
    LineModel::even(n_stages, stage(one, shape), ms(delay))
}

/// Every kind of text, from one client.
pub(crate) fn texts(seed: u64) -> Vec<Case> {
    Kind::ALL.map(|kind| Case::text(kind, seed, TOKENS, 1)).into()
}

/// Guesses that are wrong in each text of a given agreement, at least: a share that shows in fewer cannot be learned,
/// only known, as the best of many fixed choices knows it. (At 0.97 the controller is 4 % behind that over 30 wrong
/// guesses and 1 % over 120; told the share it would not be behind at all.)
const WRONG: f64 = 100.0;

/// Sources of every agreement.
pub(crate) fn agreements(seed: u64) -> Vec<Case> {
    let length = |right: f64| TOKENS.max((WRONG / (1.0 - right)) as usize);
    [0.0, 0.3, 0.6, 0.8, 0.9, 0.97].map(|right| Case::agreeing(right, seed, length(right), 1)).into()
}

pub(crate) fn geometric_mean(rows: &[Comparison], of: fn(&Comparison) -> f64) -> f64 {
    (rows.iter().map(|row| of(row).ln()).sum::<f64>() / rows.len() as f64).exp()
}
