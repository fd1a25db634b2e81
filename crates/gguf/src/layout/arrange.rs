//! Which layers a slice has: those of its range, and pass-through ones where llama.cpp needs them.

use super::{Kept, Layout};
use crate::Value;
use crate::arch::{RecurrentLayers, Rule};
use crate::source::{CutError, Source};

impl Layout {
    /// Rules that add layers at the front come first in an architecture's list.
    pub(super) fn arrange(&mut self, source: &Source<'_>, rule: Rule) -> Result<(), CutError> {
        match rule {
            Rule::SlidingWindow { period, only_if_set } => {
                if let Some(windows) = source.windows(period, only_if_set)? {
                    self.need(&windows);
                }
            }
            Rule::BothKinds(from) => {
                let recurrent = source.recurrent_layers(from)?;
                let attention: Vec<bool> = recurrent.iter().map(|is_recurrent| !is_recurrent).collect();
                self.need(&recurrent);
                self.need(&attention);
            }
            Rule::RotationGap { period } => {
                let start = self.range.start;
                let before = (start - start % period..start).map(|layer| Kept { layer, pass_through: true });
                self.kept.splice(0..0, before);
            }
            Rule::LowRankQuery => self.avoid_full_queries(source),
            Rule::EmbeddingScaleOnce
            | Rule::ResidualScale { .. }
            | Rule::AttentionScale { .. }
            | Rule::RotationSections { .. }
            | Rule::GatingFunction
            | Rule::NotWithLayers { .. }
            | Rule::NotWithKey { .. } => {}
        }
        Ok(())
    }

    /// Adds a pass-through layer of a kind that the model has and the slice has not: the nearest one before, at the
    /// front, or else the first one, at the end.
    fn need(&mut self, is_of_kind: &[bool]) {
        let of_kind = |layer: u32| is_of_kind[layer as usize];
        if self.kept.iter().any(|kept| of_kind(kept.layer)) {
            return;
        }
        let before = (0..self.range.start).rev().find(|&layer| of_kind(layer));
        let first = (0..is_of_kind.len() as u32).find(|&layer| of_kind(layer));
        let at = if before.is_some() { 0 } else { self.kept.len() };
        if let Some(layer) = before.or(first) {
            self.kept.insert(at, Kept { layer, pass_through: true });
        }
    }

    fn avoid_full_queries(&mut self, source: &Source<'_>) {
        if !source.has_low_rank_queries() {
            return;
        }
        let last = self.kept[self.kept.len() - 1].layer;
        while source.reads_full_queries(self.kept.len()) {
            self.kept.push(Kept { layer: last, pass_through: true });
        }
    }

    pub(super) fn check_counts(&self, source: &Source<'_>) -> Result<(), CutError> {
        source.arch().rules.iter().try_for_each(|rule| match *rule {
            Rule::NotWithLayers { layers, reason } => self.not_with_layers(layers, reason),
            Rule::AttentionScale { layers, .. } => {
                self.not_with_layers(layers, "llama.cpp reads its count as a larger model's")
            }
            _ => Ok(()),
        })
    }

    fn not_with_layers(&self, layers: u32, reason: &str) -> Result<(), CutError> {
        if self.is_whole || self.kept.len() != layers as usize {
            return Ok(());
        }
        Err(CutError::Range { start: self.range.start, end: self.range.end, reason: reason.to_owned() })
    }
}

impl Source<'_> {
    /// Which layers have a window; none if the model has no window at all.
    pub(super) fn windows(&self, period: u32, only_if_set: bool) -> Result<Option<Vec<bool>>, CutError> {
        let model = self.model();
        if only_if_set && model.arch_u32("attention.sliding_window").unwrap_or(0) == 0 {
            return Ok(None);
        }
        let value = model.arch_value(WINDOWS);
        let mut windows = match value.map(|value| (value.as_array(), value.as_u64())) {
            Some((Some(array), _)) => array.to_bools().ok_or_else(|| self.bad_key(WINDOWS))?,
            Some((None, None)) => return Err(self.bad_key(WINDOWS)),
            Some((None, Some(period))) => windows(self.n_layers(), period),
            None => windows(self.n_layers(), u64::from(period)),
        };
        windows.truncate(self.n_layers() as usize);
        Ok(Some(windows))
    }

    /// Which layers are recurrent, the others having attention.
    pub(super) fn recurrent_layers(&self, from: RecurrentLayers) -> Result<Vec<bool>, CutError> {
        match from {
            RecurrentLayers::Interval { default } => {
                let value = self.model().arch_value(RECURRENT);
                if let Some(array) = value.and_then(Value::as_array) {
                    let mut own = array.to_bools().ok_or_else(|| self.bad_key(RECURRENT))?;
                    own.truncate(self.n_layers() as usize);
                    return Ok(own);
                }
                let interval = match self.model().arch_value(INTERVAL) {
                    Some(_) => self.count(INTERVAL)?,
                    None => default,
                };
                Ok((0..self.n_layers()).map(|layer| (layer + 1) % interval != 0).collect())
            }
        }
    }
}

/// Which layers have a sliding window.
pub(super) const WINDOWS: &str = "attention.sliding_window_pattern";
/// Which layers are recurrent.
pub(super) const RECURRENT: &str = "attention.recurrent_layers";
/// One layer in so many has attention.
pub(super) const INTERVAL: &str = "full_attention_interval";

/// Which layers have a window when one in `period` has none (`llama_hparams::set_swa_pattern`).
fn windows(n_layers: u32, period: u64) -> Vec<bool> {
    (0..u64::from(n_layers)).map(|layer| period == 0 || layer % period < period - 1).collect()
}
