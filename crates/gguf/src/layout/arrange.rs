//! Which layers a slice has: those of its range, and pass-through ones where llama.cpp needs them.

use super::{Kept, Layout};
use crate::arch::{Align, RecurrentLayers, Rule, Windows};
use crate::source::{CutError, Source};
use crate::{Tensor, TensorType, Value};

impl Layout {
    /// Rules that add layers at the front come first in an architecture's list.
    pub(super) fn arrange(&mut self, source: &Source<'_>, rule: Rule) -> Result<(), CutError> {
        match rule {
            Rule::SlidingWindow(from) => {
                if let Some(windows) = source.windows(from)? {
                    self.need(source, &windows);
                }
            }
            Rule::BothKinds(from) => {
                let kinds = source.kinds(from)?;
                self.need(source, &kinds.recurrent);
                self.need(source, &kinds.attention);
            }
            Rule::Aligned(_) => self.align(source)?,
            Rule::AtLeast { layers } => {
                while self.kept.len() < layers as usize {
                    self.append(source)?;
                }
            }
            Rule::PadPast { layers, .. } => {
                if self.kept.len() == layers as usize && !self.is_whole {
                    self.append(source)?;
                }
            }
            Rule::NeedsSparse => self.need(source, &source.sparse()),
            Rule::WholeLayers => self.whole_layers(source)?,
            Rule::SharedIndexer => self.begin_with_indexer(source)?,
            Rule::LowRankQuery => self.avoid_full_queries(source),
            Rule::ResidualByDepth => self.check_floats(source)?,
            Rule::EmbeddingScaleOnce
            | Rule::ResidualScale { .. }
            | Rule::AttentionScale { .. }
            | Rule::RotationSections { .. }
            | Rule::GatingFunction
            | Rule::FirstOnly { .. }
            | Rule::FullOnly { .. }
            | Rule::LaterAs { .. }
            | Rule::AsByDepth(_)
            | Rule::TextOnly { .. }
            | Rule::NotWithLayers { .. }
            | Rule::NotWith { .. } => {}
        }
        Ok(())
    }

    /// Adds a pass-through layer of a kind that the model has and the slice has not: the nearest one before, at the
    /// front, or else the first one, at the end; always there if a layer's number in the file matters.
    fn need(&mut self, source: &Source<'_>, is_of_kind: &[bool]) {
        let of_kind = |layer: u32| is_of_kind[layer as usize];
        if self.kept.iter().any(|kept| of_kind(kept.layer)) {
            return;
        }
        let is_aligned = source.arch().rules.iter().any(|rule| matches!(rule, Rule::Aligned(_)));
        let before = (0..self.range.start).rev().find(|&layer| of_kind(layer)).filter(|_| !is_aligned);
        let first = (0..source.n_layers()).find(|&layer| of_kind(layer));
        let at = if before.is_some() { 0 } else { self.kept.len() };
        if let Some(layer) = before.or(first) {
            self.kept.insert(at, Kept { layer, pass_through: true });
        }
    }

    /// Fills up at the front so that a layer's number in the file is its own number but for a multiple of the period.
    fn align(&mut self, source: &Source<'_>) -> Result<(), CutError> {
        let first = self.kept[0].layer;
        let before = first - first % source.period()?..first;
        self.kept.splice(0..0, before.map(|layer| Kept { layer, pass_through: true }));
        Ok(())
    }

    /// Adds a pass-through layer at the end: the one that follows, or one that could.
    fn append(&mut self, source: &Source<'_>) -> Result<(), CutError> {
        let (next, period) = (self.kept[self.kept.len() - 1].layer + 1, source.period()?);
        let mut alike = (0..source.n_layers()).rev().filter(|layer| layer % period == next % period);
        let layer = if next < source.n_layers() { Some(next) } else { alike.next() };
        let layer = layer.ok_or_else(|| self.cannot("the model has too few layers".to_owned()))?;
        self.kept.push(Kept { layer, pass_through: true });
        Ok(())
    }

    /// llama.cpp takes some sizes from the first layer, the last one has an output only with a feed-forward part (without,
    /// the tail aborts), and a memory without keys and values cannot be made.
    fn whole_layers(&mut self, source: &Source<'_>) -> Result<(), CutError> {
        let [heads, kv_heads, widths] =
            ["attention.head_count", "attention.head_count_kv", "feed_forward_length"]
                .map(|key| source.counts(key));
        let (heads, kv_heads, widths) = (heads?, kv_heads?, widths?);
        let is_whole = |&layer: &usize| heads[layer] > 0 && kv_heads[layer] > 0 && widths[layer] > 0;
        let pad = (0..heads.len()).find(is_whole);
        let at = |kept: Option<&Kept>, counts: &[u64]| kept.map_or(0, |kept| counts[kept.layer as usize]);
        let no_keys = self.kept.iter().all(|kept| at(Some(kept), &kv_heads) == 0);
        let front = at(self.kept.first(), &heads) == 0 || no_keys;
        let back = at(self.kept.last(), &widths) == 0;
        if !front && !back {
            return Ok(());
        }
        let layer = pad.ok_or_else(|| self.cannot("no layer of the model is whole".to_owned()))? as u32;
        let pad = Kept { layer, pass_through: true };
        if front {
            self.kept.insert(0, pad);
        }
        if back {
            self.kept.push(pad);
        }
        Ok(())
    }

    fn begin_with_indexer(&self, source: &Source<'_>) -> Result<(), CutError> {
        let start = self.range.start;
        if start == 0 || source.indexers()?[start as usize] {
            return Ok(());
        }
        Err(self.cannot(format!("layer {start} reuses what an earlier one has selected")))
    }

    /// What is scaled by depth must be numbers that can be multiplied.
    fn check_floats(&self, source: &Source<'_>) -> Result<(), CutError> {
        let tensors = source.model().tensors();
        let own = self.kept.iter().flat_map(|kept| source.layer(kept.layer)).map(|&at| &tensors[at]);
        let is_bad = |tensor: &&Tensor| {
            let is_scaled = tensor.layer().is_some_and(|(_, rest)| BY_DEPTH.contains(&rest));
            is_scaled && !matches!(tensor.ty, TensorType::F32 | TensorType::F16)
        };
        match own.filter(|_| !self.is_whole).find(is_bad) {
            Some(tensor) => {
                Err(self.cannot(format!("tensor {} is not of 32-bit or 16-bit floats", tensor.name)))
            }
            None => Ok(()),
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
        Err(self.cannot(reason.to_owned()))
    }

    fn cannot(&self, reason: String) -> CutError {
        CutError::Range { start: self.range.start, end: self.range.end, reason }
    }
}

/// Which layers are of which kind; some may be of neither.
pub(super) struct Kinds {
    pub recurrent: Vec<bool>,
    pub attention: Vec<bool>,
}

impl Source<'_> {
    /// A slice can be given a layer that llama.cpp takes for granted, made from one of the model's; the model itself has
    /// them all, or is refused.
    pub(crate) fn check_kinds(&self) -> Result<(), CutError> {
        for rule in self.arch().rules {
            match *rule {
                Rule::SlidingWindow(from) => {
                    if let Some(windows) = self.windows(from)? {
                        self.has_some(&windows, "no layer has a sliding window")?;
                    }
                }
                Rule::BothKinds(from) => {
                    let kinds = self.kinds(from)?;
                    self.has_some(&kinds.recurrent, "no layer is recurrent")?;
                    self.has_some(&kinds.attention, "no layer has attention")?;
                }
                Rule::NeedsSparse => self.has_some(&self.sparse(), "no layer lies behind the dense ones")?,
                Rule::SharedIndexer => {
                    self.has_some(&self.indexers()?[..1], "the first layer has no indexer of its own")?;
                }
                _ => {}
            }
        }
        // A model that is not cut is run from its own file, to which nothing is added.
        let is_complete = match Layout::new(self, 0..self.n_layers()) {
            Ok(whole) => whole.kept.iter().all(|kept| !kept.pass_through),
            Err(CutError::Range { .. }) => false,
            Err(other) => return Err(other),
        };
        self.has_some(&[is_complete], "a layer that it counts on is missing")
    }

    fn has_some(&self, is_of_kind: &[bool], without: &'static str) -> Result<(), CutError> {
        match is_of_kind.contains(&true) {
            true => Ok(()),
            false => Err(CutError::Kind { arch: self.arch().name, without }),
        }
    }

    /// Which layers lie behind the leading dense ones.
    fn sparse(&self) -> Vec<bool> {
        let dense = self.model().arch_u32("leading_dense_block_count").unwrap_or(0);
        (0..self.n_layers()).map(|layer| layer >= dense).collect()
    }

    /// Which layers have a window; none if the model has no window at all.
    pub(super) fn windows(&self, from: Windows) -> Result<Option<Vec<bool>>, CutError> {
        let model = self.model();
        let value = model.arch_value(WINDOWS).map(|value| (value.as_array(), value.as_u64()));
        let own = match value {
            Some((Some(array), _)) => Some(array.to_bools().ok_or_else(|| self.bad_key(WINDOWS))?),
            _ => None,
        };
        let mut windows = match from {
            Windows::Listed => own.ok_or_else(|| self.bad_key(WINDOWS))?,
            Windows::Every { period, full_first, only_if_set } => {
                if only_if_set && model.arch_u32(WINDOW).unwrap_or(0) == 0 {
                    return Ok(None);
                }
                let period = match value {
                    Some((None, None)) => return Err(self.bad_key(WINDOWS)),
                    Some((None, Some(period))) => period,
                    _ => u64::from(period),
                };
                own.unwrap_or_else(|| windows(self.n_layers(), period, full_first))
            }
        };
        windows.truncate(self.n_layers() as usize);
        Ok(Some(windows))
    }

    /// Which layers are recurrent and which have attention.
    pub(super) fn kinds(&self, from: RecurrentLayers) -> Result<Kinds, CutError> {
        let opposite = |recurrent: Vec<bool>| {
            let attention = recurrent.iter().map(|is_recurrent| !is_recurrent).collect();
            Kinds { recurrent, attention }
        };
        Ok(match from {
            RecurrentLayers::Interval { default } => opposite(self.recurrent_by_interval(default)?),
            RecurrentLayers::WithoutHeads => {
                opposite(self.counts(KV_HEADS)?.iter().map(|&heads| heads == 0).collect())
            }
            RecurrentLayers::WithoutHeadsAndFeedForward => {
                let (heads, widths) = (self.counts(KV_HEADS)?, self.counts("feed_forward_length")?);
                let recurrent = heads.iter().zip(&widths).map(|(&heads, &width)| heads == 0 && width == 0);
                let attention = heads.iter().zip(&widths).map(|(&heads, &width)| heads > 0 && width == 0);
                Kinds { recurrent: recurrent.collect(), attention: attention.collect() }
            }
        })
    }

    fn recurrent_by_interval(&self, default: u32) -> Result<Vec<bool>, CutError> {
        if let Some(array) = self.model().arch_value(RECURRENT).and_then(Value::as_array) {
            let mut own = array.to_bools().ok_or_else(|| self.bad_key(RECURRENT))?;
            own.truncate(self.n_layers() as usize);
            return Ok(own);
        }
        let interval = match self.model().arch_value(INTERVAL) {
            Some(_) => self.count(INTERVAL)?,
            None => default,
        };
        Ok((0..self.n_layers()).map(|layer| !(layer + 1).is_multiple_of(interval)).collect())
    }

    /// What a slice's first layer must be a multiple of.
    fn period(&self) -> Result<u32, CutError> {
        let mut all = 1_u32;
        for rule in self.arch().rules {
            let Rule::Aligned(to) = *rule else { continue };
            let (key, period) = match to {
                Align::To(period) => ("block_count", period),
                Align::ToIfWindows(period) => match self.model().arch_u32(WINDOW) {
                    None | Some(0) => (WINDOW, 1),
                    Some(_) => (WINDOW, period),
                },
                Align::ToKey(key) => (key, self.count(key)?),
            };
            all = least_common_multiple(all, period).ok_or_else(|| self.bad_key(key))?;
        }
        Ok(all)
    }

    /// Which layers have an indexer of their own (`llama_model_glm_dsa::load_arch_hparams`).
    pub(super) fn indexers(&self) -> Result<Vec<bool>, CutError> {
        if let Some(array) = self.model().arch_value(INDEXERS).and_then(Value::as_array) {
            return array.to_bools().ok_or_else(|| self.bad_key(INDEXERS));
        }
        let all = self.model().arch_u32("context_length").is_none_or(|trained| trained < 1 << 20);
        Ok((0..self.n_layers()).map(|layer| all || layer < 2 || layer % 4 == 2).collect())
    }
}

/// What attention and feed-forward add to a row.
pub(super) const BY_DEPTH: [&str; 2] = ["attn_output.weight", "ffn_down.weight"];
/// Which layers have a sliding window.
pub(super) const WINDOWS: &str = "attention.sliding_window_pattern";
/// Positions that a window looks back over.
const WINDOW: &str = "attention.sliding_window";
/// Which layers are recurrent.
pub(super) const RECURRENT: &str = "attention.recurrent_layers";
/// One layer in so many has attention.
pub(super) const INTERVAL: &str = "full_attention_interval";
/// Which layers have an indexer of their own.
pub(super) const INDEXERS: &str = "attention.indexer.types";
const KV_HEADS: &str = "attention.head_count_kv";

/// Which layers have a window when one in `period` has none (`llama_hparams::set_swa_pattern`).
fn windows(n_layers: u32, period: u64, full_first: bool) -> Vec<bool> {
    let is_full = |layer: u64| layer % period == if full_first { 0 } else { period - 1 };
    (0..u64::from(n_layers)).map(|layer| period == 0 || !is_full(layer)).collect()
}

fn least_common_multiple(a: u32, b: u32) -> Option<u32> {
    let (mut x, mut y) = (a, b);
    while y > 0 {
        (x, y) = (y, x % y);
    }
    (a / x.max(1)).checked_mul(b)
}
