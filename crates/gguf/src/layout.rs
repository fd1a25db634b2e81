//! What a slice of given layers holds: the one place where the rules of `arch` are interpreted.
//!
//! Owns which layers (real and pass-through; `arrange.rs`) and which metadata a slice gets (`rewrite.rs`). Does not
//! touch files.
//!
//! A *pass-through* layer has all-zero tensors, so it adds exactly nothing to the residual stream. It is put where
//! llama.cpp needs a layer of some kind, or a certain number of layers, and costs its memory and compute.

mod arrange;
mod rewrite;

use std::ops::Range;

use crate::arch::{Absent, NextN};
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
    /// Layers that every token passes.
    pub kept: Vec<Kept>,
    /// Blocks that draft (NextN), behind them, by their numbers in the whole model.
    pub nextn: Range<u32>,
    /// Looks up embeddings.
    pub is_first: bool,
    /// Has the output head.
    pub is_tail: bool,
    /// Keys under the architecture's prefix to write or replace.
    pub put: Vec<(&'static str, Value)>,
    /// Keys under the architecture's prefix to leave out.
    pub drop: Vec<&'static str>,
    /// The architecture that it is written as.
    pub arch: &'static str,
    pub reorder: Option<Reorder>,
    /// Layers' tensors that are multiplied, without `blk.N.`, and by what.
    pub scaled: Vec<(&'static str, f32)>,
    /// Tensors of the whole model that it does without, and what it has instead.
    pub absent: Vec<(&'static str, Absent)>,
    pub tolerance: f32,
    /// Every layer of the model is there: whatever llama.cpp derives from their number is right.
    is_whole: bool,
}

/// Which slice.
struct Place {
    range: Range<u32>,
    is_tail: bool,
    /// Blocks that draft.
    nextn: Range<u32>,
}

impl Layout {
    /// What a slice of these layers needs.
    pub(crate) fn new(source: &Source<'_>, range: Range<u32>) -> Result<Self, CutError> {
        let is_tail = range.end == source.n_layers();
        let in_tail = is_tail && matches!(source.arch().nextn, NextN::InTail(_));
        let nextn = if in_tail { source.nextn() } else { 0..0 };
        Self::at(source, Place { range, is_tail, nextn })
    }

    /// What a model of the first layers needs that goes on with the whole model's head.
    pub(crate) fn shallow(source: &Source<'_>, n_layers: u32) -> Result<Self, CutError> {
        Self::at(source, Place { range: 0..n_layers, is_tail: true, nextn: 0..0 })
    }

    /// What a file of the blocks that draft needs, if they do not belong into the tail's slice: no layer, the
    /// embeddings and the head.
    pub(crate) fn nextn(source: &Source<'_>) -> Option<Self> {
        let blocks = source.nextn();
        let is_apart = matches!(source.arch().nextn, NextN::Apart(_)) && !blocks.is_empty();
        is_apart.then(|| {
            let end = source.n_layers();
            let mut layout = Self::bare(source, Place { range: end..end, is_tail: true, nextn: blocks });
            layout.is_first = true;
            layout.put_counts(source);
            layout
        })
    }

    fn at(source: &Source<'_>, place: Place) -> Result<Self, CutError> {
        let n_layers = source.n_layers();
        let Range { start, end } = place.range;
        if place.range.is_empty() || end > n_layers {
            let reason = format!("the model has layers 0..{n_layers}");
            return Err(CutError::Range { start, end, reason });
        }
        let mut layout = Self::bare(source, place);
        for rule in source.arch().rules {
            layout.arrange(source, *rule)?;
        }
        layout.check_counts(source)?;
        for rule in source.arch().rules {
            layout.rewrite(source, *rule)?;
        }
        layout.put_general(source)?;
        Ok(layout)
    }

    /// Before any rule is applied.
    fn bare(source: &Source<'_>, Place { range, is_tail, nextn }: Place) -> Self {
        Self {
            kept: range.clone().map(|layer| Kept { layer, pass_through: false }).collect(),
            nextn,
            is_first: range.start == 0,
            is_tail,
            is_whole: range == (0..source.n_layers()),
            range,
            put: vec![],
            drop: vec![],
            arch: source.arch().name,
            reorder: None,
            scaled: vec![],
            absent: vec![],
            tolerance: source.arch().tolerance,
        }
    }

    /// All blocks of the file in their order.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = Kept> {
        let nextn = self.nextn.clone().map(|layer| Kept { layer, pass_through: false });
        self.kept.iter().copied().chain(nextn)
    }

    /// The slice's metadata for llama.cpp, in the order of the model's own.
    pub(crate) fn metadata(&self, source: &Source<'_>) -> Metadata {
        let prefix = source.arch().name;
        let own_key = |key: &str| key.strip_prefix(prefix)?.strip_prefix('.').map(str::to_owned);
        // Under the name that it is written as.
        let renamed = |key: &str| match own_key(key) {
            Some(own) => format!("{}.{own}", self.arch),
            None => key.to_owned(),
        };
        let is_dropped = |key: &str| own_key(key).is_some_and(|own| self.drop.contains(&own.as_str()));
        let mut out = Metadata::default();
        for (key, value) in source.model().metadata().iter() {
            let of_file =
                key.starts_with("split.") || key == "general.alignment" || key.starts_with("paceline.");
            let of_tail = !self.is_tail && key.starts_with("tokenizer.");
            if !(of_file || of_tail || is_dropped(key)) {
                out.set(renamed(key), value.clone());
            }
        }
        out.set("general.architecture", Value::string(self.arch));
        for (key, array) in source.per_layer_arrays() {
            // Some arrays are of the layers alone.
            let n_entries = array.len();
            let blocks = self.blocks().map(|kept| kept.layer as usize).filter(|&layer| layer < n_entries);
            let own = array.select(blocks).expect("length and element type were checked with the model");
            out.set(renamed(&key), own);
        }
        for (key, value) in &self.put {
            out.set(format!("{}.{key}", self.arch), value.clone());
        }
        if !self.is_tail {
            out.set("tokenizer.ggml.model", Value::string("no_vocab"));
        }
        out
    }
}
