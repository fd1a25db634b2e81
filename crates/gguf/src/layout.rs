//! What a slice of given layers holds: the one place where the rules of `arch` are interpreted.
//!
//! Owns which layers (real and pass-through) and which metadata a slice gets. Does not touch files.
//!
//! A *pass-through* layer has all-zero tensors, so it adds exactly nothing to the residual stream. It is put where
//! llama.cpp needs a layer of some kind, or a certain number of layers, and costs its memory and compute.

use std::ops::Range;

use crate::arch::{AttentionFix, Rule};
use crate::source::{CutError, Source};
use crate::{Metadata, Value};

/// A layer of a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kept {
    /// Its number in the whole model.
    pub layer: u32,
    /// Whether its tensors are all zero.
    pub pass_through: bool,
}

/// Rows of query and key that change places, within each head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Reorder {
    /// Rows of one head.
    pub head_rows: u32,
    /// Rows of it that are rotated: the even ones move to the front, the odd ones behind them.
    pub rotated: u32,
    /// Rows of all query heads.
    pub query_rows: u32,
    /// Rows of all key heads.
    pub key_rows: u32,
}

impl Reorder {
    /// The row that stands at `row` afterwards.
    pub(crate) const fn source_row(self, row: u64) -> u64 {
        let (head, within) = (row / self.head_rows as u64, row % self.head_rows as u64);
        let half = self.rotated as u64 / 2;
        let from = if within < half {
            2 * within
        } else if within < 2 * half {
            2 * (within - half) + 1
        } else {
            within
        };
        head * self.head_rows as u64 + from
    }
}

/// What a slice holds.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    pub range: Range<u32>,
    pub kept: Vec<Kept>,
    /// Looks up embeddings.
    pub is_first: bool,
    /// Has the output head.
    pub is_tail: bool,
    /// Keys under the architecture's prefix to write or replace.
    pub put: Vec<(&'static str, Value)>,
    pub reorder: Option<Reorder>,
    /// Factor on `attn_q_norm.weight`.
    pub query_norm: Option<f32>,
    pub tolerance: f32,
    /// Every layer of the model is there: whatever llama.cpp derives from their number is right.
    is_whole: bool,
}

impl Layout {
    /// What a slice of these layers needs.
    pub(crate) fn new(source: &Source<'_>, range: Range<u32>) -> Result<Self, CutError> {
        let is_tail = range.end == source.n_layers();
        Self::with_head(source, range, is_tail)
    }

    /// What a model of the first layers needs that goes on with the whole model's head.
    pub(crate) fn shallow(source: &Source<'_>, n_layers: u32) -> Result<Self, CutError> {
        Self::with_head(source, 0..n_layers, true)
    }

    fn with_head(source: &Source<'_>, range: Range<u32>, is_tail: bool) -> Result<Self, CutError> {
        let n_layers = source.n_layers();
        if range.is_empty() || range.end > n_layers {
            let reason = format!("the model has layers 0..{n_layers}");
            return Err(CutError::Range { start: range.start, end: range.end, reason });
        }
        let mut layout = Self {
            kept: range.clone().map(|layer| Kept { layer, pass_through: false }).collect(),
            is_first: range.start == 0,
            is_tail,
            is_whole: range == (0..n_layers),
            range,
            put: vec![],
            reorder: None,
            query_norm: None,
            tolerance: source.arch().tolerance,
        };
        for rule in source.arch().rules {
            layout.apply(source, *rule)?;
        }
        layout.check_counts(source)?;
        layout.put_general(source)?;
        Ok(layout)
    }

    /// Rules that may add pass-through layers come before those that depend on the kept layers: an architecture's
    /// rules are listed in an order that allows that.
    fn apply(&mut self, source: &Source<'_>, rule: Rule) -> Result<(), CutError> {
        match rule {
            Rule::SlidingWindow { period, only_if_set } => self.sliding_window(source, period, only_if_set),
            Rule::EmbeddingScaleOnce => {
                if !self.is_first {
                    self.put.push(("embedding_scale", 1.0_f32.into()));
                }
                Ok(())
            }
            Rule::ResidualScale { numerator } => {
                if source.model().arch_value("residual_scale").is_none() {
                    let scale = numerator / (source.n_layers() as f32).sqrt();
                    self.put.push(("residual_scale", scale.into()));
                }
                Ok(())
            }
            Rule::AttentionScale { layers, by, tolerance } => {
                self.attention_scale(source, layers, by, tolerance)
            }
            Rule::RotationSections { neighbours } => self.rotation_sections(source, neighbours),
            Rule::RotationGap { period } => {
                let start = self.range.start;
                let before = (start - start % period..start).map(|layer| Kept { layer, pass_through: true });
                self.kept.splice(0..0, before);
                Ok(())
            }
            Rule::LowRankQuery => {
                self.low_rank_query(source);
                Ok(())
            }
            Rule::GatingFunction => {
                self.gating_function(source);
                Ok(())
            }
            // Checked for the model in `Source::new`, for the slice in `check_counts`.
            Rule::NotWithLayers { .. } | Rule::NotWithKey { .. } => Ok(()),
        }
    }

    fn sliding_window(
        &mut self,
        source: &Source<'_>,
        period: u32,
        only_if_set: bool,
    ) -> Result<(), CutError> {
        const KEY: &str = "attention.sliding_window_pattern";
        let model = source.model();
        if only_if_set && model.arch_u32("attention.sliding_window").unwrap_or(0) == 0 {
            return Ok(());
        }
        let pattern: Vec<bool> = match model.arch_value(KEY).map(|value| (value.as_array(), value.as_u64())) {
            Some((Some(array), _)) => array.to_bools().ok_or_else(|| source.bad_key(KEY))?,
            Some((None, None)) => return Err(source.bad_key(KEY)),
            Some((None, Some(period))) => windows(source.n_layers(), period),
            None => windows(source.n_layers(), u64::from(period)),
        };
        let windowed = |layer: u32| pattern[layer as usize];
        if (0..source.n_layers()).any(windowed) && !self.kept.iter().any(|kept| windowed(kept.layer)) {
            // The nearest one before, at the front, or else the first one, at the end.
            let before = (0..self.range.start).rev().find(|&layer| windowed(layer));
            let layer = before.or_else(|| (0..source.n_layers()).find(|&layer| windowed(layer)));
            let at = if before.is_some() { 0 } else { self.kept.len() };
            let layer = layer.expect("some layer of the model has a window");
            self.kept.insert(at, Kept { layer, pass_through: true });
        }
        let own: Vec<bool> = self.kept.iter().map(|kept| windowed(kept.layer)).collect();
        self.put.push((KEY, Value::bools(&own)));
        Ok(())
    }

    fn attention_scale(
        &mut self,
        source: &Source<'_>,
        layers: u32,
        by: AttentionFix,
        tolerance: f32,
    ) -> Result<(), CutError> {
        if source.n_layers() != layers || self.is_whole {
            return Ok(());
        }
        let n_head = source.count_in_layer("attention.head_count", 0)?;
        if n_head == 0 || source.model().n_embd() < n_head {
            return Err(source.bad_key("attention.head_count"));
        }
        let nominal = source.model().n_embd() / n_head;
        let head = source.model().arch_u32("attention.key_length").unwrap_or(nominal);
        let factor = (head as f32 / nominal as f32).sqrt();
        match by {
            AttentionFix::QueryNorm => self.query_norm = Some(factor),
            AttentionFix::RotationFactor => {
                let own = source.model().arch_value("rope.scaling.attn_factor").and_then(Value::as_f64);
                let own = own.unwrap_or(1.0) as f32;
                self.put.push(("rope.scaling.attn_factor", (own * factor.sqrt()).into()));
            }
        }
        self.tolerance = tolerance;
        Ok(())
    }

    fn rotation_sections(&mut self, source: &Source<'_>, neighbours: bool) -> Result<(), CutError> {
        const KEY: &str = "rope.dimension_sections";
        let model = source.model();
        let own = model.arch_value(KEY).and_then(Value::as_array).and_then(crate::Array::to_u64s);
        if own.is_some_and(|sections| sections.iter().any(|&n| n != 0)) {
            return Ok(());
        }
        let n_head = source.count_in_layer("attention.head_count", 0)?;
        let n_head_kv = match model.arch_value("attention.head_count_kv") {
            Some(_) => source.count_in_layer("attention.head_count_kv", 0)?,
            None => n_head,
        };
        if n_head == 0 || n_head_kv == 0 {
            return Err(source.bad_key("attention.head_count"));
        }
        let head_rows = model.arch_u32("attention.key_length").unwrap_or(model.n_embd() / n_head);
        let rotated = model.arch_u32("rope.dimension_count").unwrap_or(head_rows);
        if rotated < 4 || !rotated.is_multiple_of(2) || rotated > head_rows {
            return Err(source.bad_key("rope.dimension_count"));
        }
        self.put.push((KEY, Value::u32s(&[rotated / 2 - 1, 1, 0, 0])));
        if neighbours {
            let rows = |heads: u32| {
                heads.checked_mul(head_rows).ok_or_else(|| source.bad_key("attention.key_length"))
            };
            let (query_rows, key_rows) = (rows(n_head)?, rows(n_head_kv)?);
            self.reorder = Some(Reorder { head_rows, rotated, query_rows, key_rows });
        }
        Ok(())
    }

    fn low_rank_query(&mut self, source: &Source<'_>) {
        const KEY: &str = "attention.q_lora_rank";
        // `llama_model_deepseek2::load_arch_hparams`: files of these sizes have full queries and ignore the key.
        let has_full_queries =
            |layers: usize| matches!(layers, 26 | 27) || (layers == 48 && source.n_vocab() == 128_256);
        if has_full_queries(source.n_layers() as usize) || source.model().arch_u32(KEY).unwrap_or(0) == 0 {
            self.put.push((KEY, 0_u32.into()));
            return;
        }
        let last = self.kept[self.kept.len() - 1].layer;
        while has_full_queries(self.kept.len()) {
            self.kept.push(Kept { layer: last, pass_through: true });
        }
    }

    fn gating_function(&mut self, source: &Source<'_>) {
        const KEY: &str = "expert_gating_func";
        const SOFTMAX: u32 = 1;
        const SIGMOID: u32 = 2;
        if source.model().arch_u32(KEY).unwrap_or(0) == 0 {
            let sigmoid = matches!(source.n_layers(), 47 | 48) && source.n_vocab() == 154_880;
            self.put.push((KEY, if sigmoid { SIGMOID } else { SOFTMAX }.into()));
        }
    }

    fn not_with_layers(&self, layers: u32, reason: &str) -> Result<(), CutError> {
        if self.is_whole || self.kept.len() != layers as usize {
            return Ok(());
        }
        Err(CutError::Range { start: self.range.start, end: self.range.end, reason: reason.to_owned() })
    }

    fn check_counts(&self, source: &Source<'_>) -> Result<(), CutError> {
        source.arch().rules.iter().try_for_each(|rule| match *rule {
            Rule::NotWithLayers { layers, reason } => self.not_with_layers(layers, reason),
            Rule::AttentionScale { layers, .. } => {
                self.not_with_layers(layers, "llama.cpp reads its count as a larger model's")
            }
            _ => Ok(()),
        })
    }

    /// What every architecture needs.
    fn put_general(&mut self, source: &Source<'_>) -> Result<(), CutError> {
        let model = source.model();
        self.put.push(("block_count", (self.kept.len() as u32).into()));
        if let Some(dense) = model.arch_u32("leading_dense_block_count") {
            let own = self.kept.iter().filter(|kept| kept.layer < dense).count();
            self.put.push(("leading_dense_block_count", (own as u32).into()));
        }
        // llama.cpp takes the head size from the first layer of the file.
        const HEADS: &str = "attention.head_count";
        if model.arch_value(HEADS).and_then(Value::as_array).is_some()
            && model.arch_value("attention.key_length").is_none()
        {
            let heads = source.count_in_layer(HEADS, 0)?;
            let size = model.n_embd().checked_div(heads).ok_or_else(|| source.bad_key(HEADS))?;
            self.put.push(("attention.key_length", size.into()));
            self.put.push(("attention.value_length", size.into()));
            if model.arch_value("rope.dimension_count").is_none() {
                self.put.push(("rope.dimension_count", size.into()));
            }
        }
        if !self.is_tail {
            self.put.push(("vocab_size", 1_u32.into()));
        }
        Ok(())
    }

    /// The slice's metadata for llama.cpp, in the order of the model's own.
    pub(crate) fn metadata(&self, source: &Source<'_>) -> Metadata {
        let prefix = source.arch().name;
        let mut out = Metadata::default();
        for (key, value) in source.model().metadata().iter() {
            let of_file =
                key.starts_with("split.") || key == "general.alignment" || key.starts_with("paceline.");
            // Blocks that draft are not in the slice.
            let drafts = key == format!("{prefix}.nextn_predict_layers");
            let of_tail = !self.is_tail && key.starts_with("tokenizer.");
            if !(of_file || drafts || of_tail) {
                out.set(key, value.clone());
            }
        }
        for (key, array) in source.per_layer_arrays() {
            let own = array.select(self.kept.iter().map(|kept| kept.layer as usize));
            out.set(key, own.expect("length and element type were checked with the model"));
        }
        for (key, value) in &self.put {
            out.set(format!("{prefix}.{key}"), value.clone());
        }
        if !self.is_tail {
            out.set("tokenizer.ggml.model", Value::string("no_vocab"));
        }
        out
    }
}

/// Which layers have a window when one in `period` has none (`llama_hparams::set_swa_pattern`).
fn windows(n_layers: u32, period: u64) -> Vec<bool> {
    (0..u64::from(n_layers)).map(|layer| period == 0 || layer % period < period - 1).collect()
}
