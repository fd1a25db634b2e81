//! Which metadata a slice has beyond what is copied.

use super::arrange::{BY_DEPTH, INDEXERS, INTERVAL, RECURRENT, WINDOWS};
use super::{Layout, Reorder};
use crate::Value;
use crate::arch::{Absent, AttentionFix, RecurrentLayers, Rule, Windows};
use crate::source::{CutError, Source};

impl Layout {
    /// Applied once it is clear which layers there are.
    pub(super) fn rewrite(&mut self, source: &Source<'_>, rule: Rule) -> Result<(), CutError> {
        match rule {
            Rule::SlidingWindow(from @ Windows::Every { .. }) => {
                // An array of the file's own has been cut with the layers.
                if !source.has_array(WINDOWS)
                    && let Some(windows) = source.windows(from)?
                {
                    self.put_kinds(WINDOWS, &windows);
                }
            }
            Rule::BothKinds(from @ RecurrentLayers::Interval { .. }) => {
                if !source.has_array(RECURRENT) {
                    self.put_kinds(RECURRENT, &source.kinds(from)?.recurrent);
                }
                self.drop.push(INTERVAL);
            }
            Rule::SharedIndexer => {
                if !source.has_array(INDEXERS) {
                    let all = source.indexers()?;
                    let own: Vec<bool> = self.kept.iter().map(|kept| all[kept.layer as usize]).collect();
                    self.put.push((INDEXERS, Value::bools(&own)));
                }
            }
            Rule::EmbeddingScaleOnce => {
                if !self.is_first {
                    self.put.push(("embedding_scale", 1.0_f32.into()));
                }
            }
            Rule::ResidualScale { numerator } => {
                if source.model().arch_value("residual_scale").is_none() {
                    let scale = numerator / (source.n_layers() as f32).sqrt();
                    self.put.push(("residual_scale", scale.into()));
                }
            }
            Rule::AttentionScale { layers, by, tolerance } => {
                self.attention_scale(source, layers, by, tolerance)?;
            }
            Rule::RotationSections { neighbours } => self.rotation_sections(source, neighbours)?,
            Rule::LowRankQuery => {
                if !source.has_low_rank_queries() {
                    self.put.push((QUERY_RANK, 0_u32.into()));
                }
            }
            Rule::GatingFunction => self.gating_function(source),
            Rule::ResidualByDepth => {
                let factor = (self.kept.len() as f32 / source.n_layers() as f32).sqrt();
                if !self.is_whole {
                    self.scaled.extend(BY_DEPTH.map(|name| (name, factor)));
                }
            }
            Rule::FirstOnly { tensor, later } => {
                if !self.is_first {
                    self.absent.push((tensor, later));
                }
            }
            Rule::FullOnly { tensor } => {
                let windows = source.windows(Windows::Listed)?.unwrap_or_default();
                if self.kept.iter().all(|kept| windows[kept.layer as usize]) {
                    self.absent.push((tensor, Absent::LeftOut));
                }
            }
            Rule::LaterAs { arch, key, value } => {
                if !self.is_first {
                    self.arch = arch;
                    self.put.push((key, value.into()));
                }
            }
            Rule::AsByDepth(depths) => {
                let depth = depths.iter().find(|(layers, _)| *layers == source.n_layers());
                self.arch = depth.map_or(self.arch, |(_, arch)| arch);
            }
            Rule::TextOnly { key } => {
                if source.model().arch_value(key).is_some() {
                    self.put.push((key, 0_u32.into()));
                }
            }
            Rule::SlidingWindow(Windows::Listed)
            | Rule::BothKinds(_)
            | Rule::Aligned(_)
            | Rule::AtLeast { .. }
            | Rule::PadPast { .. }
            | Rule::NeedsSparse
            | Rule::WholeLayers
            | Rule::NotWithLayers { .. }
            | Rule::NotWith { .. } => {}
        }
        Ok(())
    }

    /// Writes which layers are of a kind. Blocks that draft are of none: llama.cpp takes them for plain ones.
    fn put_kinds(&mut self, key: &'static str, is_of_kind: &[bool]) {
        let of_kind = |layer: u32| is_of_kind.get(layer as usize).copied().unwrap_or(false);
        let own: Vec<bool> = self.blocks().map(|kept| of_kind(kept.layer)).collect();
        self.put.push((key, Value::bools(&own)));
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
            AttentionFix::QueryNorm => self.scaled.push(("attn_q_norm.weight", factor)),
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
        if source.has_sections() {
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

    fn gating_function(&mut self, source: &Source<'_>) {
        const KEY: &str = "expert_gating_func";
        const SOFTMAX: u32 = 1;
        const SIGMOID: u32 = 2;
        if source.model().arch_u32(KEY).unwrap_or(0) == 0 {
            let sigmoid = matches!(source.n_layers(), 47 | 48) && source.n_vocab() == 154_880;
            self.put.push((KEY, if sigmoid { SIGMOID } else { SOFTMAX }.into()));
        }
    }

    /// Layers and blocks in the file.
    pub(super) fn put_counts(&mut self, source: &Source<'_>) {
        self.drop.push(NEXTN);
        self.put.push(("block_count", (self.blocks().count() as u32).into()));
        if !self.nextn.is_empty() {
            self.put.push((NEXTN, (self.nextn.len() as u32).into()));
        }
        if let Some(dense) = source.model().arch_u32("leading_dense_block_count") {
            let own = self.kept.iter().filter(|kept| kept.layer < dense).count();
            self.put.push(("leading_dense_block_count", (own as u32).into()));
        }
    }

    /// What every architecture needs.
    pub(super) fn put_general(&mut self, source: &Source<'_>) -> Result<(), CutError> {
        let model = source.model();
        self.put_counts(source);
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
}

/// Blocks that draft.
const NEXTN: &str = "nextn_predict_layers";
const QUERY_RANK: &str = "attention.q_lora_rank";

impl Source<'_> {
    /// Whether llama.cpp takes a file of so many layers for one with full queries, whatever its keys say
    /// (`llama_model_deepseek2::load_arch_hparams`).
    pub(super) fn reads_full_queries(&self, layers: usize) -> bool {
        matches!(layers, 26 | 27) || (layers == 48 && self.n_vocab() == 128_256)
    }

    /// Whether the model's queries are of low rank.
    pub(super) fn has_low_rank_queries(&self) -> bool {
        !self.reads_full_queries(self.n_layers() as usize)
            && self.model().arch_u32(QUERY_RANK).unwrap_or(0) > 0
    }
}
