//! A model that is known to be cuttable: supported architecture, sane layer count, every layer present.
//!
//! Owns what is checked once per model. What one range of it needs is in `layout.rs`.

use std::ops::Range;
use std::path::PathBuf;

use crate::arch::{self, Architecture, NextN, Rule, Test};
use crate::layout::Layout;
use crate::{Model, Value};

/// Layers in one model: llama.cpp's own limit (`LLAMA_MAX_LAYERS`), and a bound on what a hostile file makes us do.
pub const MAX_LAYERS: u32 = 512;

/// Metadata that has one entry per layer when it is an array, under the architecture's prefix.
const PER_LAYER: &[&str] = &[
    "feed_forward_length",
    "expert_feed_forward_length",
    "expert_used_count",
    "attention.head_count",
    "attention.head_count_kv",
    "attention.sliding_window_pattern",
    "attention.rope_pattern",
    "attention.recurrent_layers",
    "attention.indexer.types",
    "attention.compress_ratios",
    "swiglu_clamp_exp",
    "swiglu_clamp_shexp",
    "deepstack_mapping",
];
/// The same without a prefix.
const PER_LAYER_BARE: &[&str] = &["xielu.alpha_n", "xielu.alpha_p", "xielu.beta", "xielu.eps"];

/// A model or a cut that is refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CutError {
    /// The file names no architecture.
    #[error("{path} does not say which architecture it is; convert the model to GGUF again")]
    NoArchitecture {
        /// Which file.
        path: PathBuf,
    },
    /// An architecture that is not supported, or not in this variant.
    #[error("architecture {arch} cannot be cut into stages: {reason}")]
    Unsupported {
        /// Its name.
        arch: String,
        /// Why.
        reason: String,
    },
    /// A model without a layer of some kind that its architecture takes for granted. llama.cpp would end the process.
    #[error("llama.cpp aborts on a model of architecture {arch} in which {without}; use another model")]
    Kind {
        /// Its name.
        arch: &'static str,
        /// What there is none of.
        without: &'static str,
    },
    /// A key is missing or holds something impossible.
    #[error("metadata key {key} is {found}; convert the model to GGUF again")]
    Metadata {
        /// Which one, with its prefix.
        key: String,
        /// What is there.
        found: String,
    },
    /// A tensor is missing, or belongs to no layer of the model.
    #[error("tensor {name} {problem}; download or convert the model again")]
    Tensor {
        /// Which one.
        name: String,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// More stages than layers.
    #[error("{stages} stages need as many layers, but the model has {layers}; use fewer stages")]
    TooManyStages {
        /// Asked for.
        stages: u32,
        /// There.
        layers: u32,
    },
    /// Cut positions that do not rise, or lie outside the model.
    #[error("cuts must rise and lie between 1 and {last}, but one is {cut}; choose others")]
    Cuts {
        /// The offending one.
        cut: u32,
        /// Layers less one.
        last: u32,
    },
    /// A range that llama.cpp could not compute correctly.
    #[error("layers {start}..{end} cannot be a stage: {reason}; choose other cuts")]
    Range {
        /// First layer.
        start: u32,
        /// One past the last layer.
        end: u32,
        /// Why.
        reason: String,
    },
    /// No way to cut the model into so many stages.
    #[error("the model cannot be cut into {stages} stages; use fewer stages")]
    NoPlan {
        /// Asked for.
        stages: u32,
    },
}

/// Why a model cannot draft for itself.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoDrafts {
    /// Most models.
    #[error("it has no block that drafts (NextN)")]
    NoBlock,
    /// Files are often made without the block, or with a part of it.
    #[error("it announces blocks that draft (NextN), but the file does not hold them")]
    Missing,
    /// No slice of this architecture keeps them.
    #[error("it has a block that drafts (NextN), but {reason}")]
    Architecture {
        /// Why.
        reason: &'static str,
    },
    /// A tensor or a key of this model, at which llama.cpp aborts.
    #[error("llama.cpp cannot run its block that drafts (NextN) {what}")]
    Unfit {
        /// Without or with what.
        what: String,
    },
    /// They would have to run one after the other.
    #[error(
        "it has {n} blocks that draft (NextN) in a chain, and llama.cpp runs {most} of this architecture's"
    )]
    Chained {
        /// How many.
        n: u32,
        /// How many could be.
        most: u32,
    },
    /// llama.cpp aborts at them.
    #[error("its positions have sections, and llama.cpp's block that drafts (NextN) does not know any")]
    Sections,
}

/// A cuttable model.
#[derive(Debug)]
pub struct Source<'m> {
    model: &'m Model,
    arch: &'static Architecture,
    n_layers: u32,
    /// Blocks that draft and are kept.
    nextn: Result<Range<u32>, NoDrafts>,
    /// Indices of each block's tensors, in file order.
    layers: Vec<Vec<usize>>,
    /// Indices of the tensors of the whole model.
    globals: Vec<usize>,
}

impl<'m> Source<'m> {
    /// Checks that the model can be cut at all.
    ///
    /// # Errors
    /// If its architecture or variant is not supported, or its metadata and tensors do not fit together.
    pub fn new(model: &'m Model) -> Result<Self, CutError> {
        let name = model.arch();
        if name.is_empty() {
            return Err(CutError::NoArchitecture { path: model.path().to_owned() });
        }
        let unsupported =
            |reason: &str| CutError::Unsupported { arch: name.to_owned(), reason: reason.to_owned() };
        let arch = arch::find(name).map_err(|refusal| unsupported(&refusal.to_string()))?;
        let n_layers = model.n_layers();
        let nextn = Err(NoDrafts::NoBlock);
        let mut source = Self { model, arch, n_layers, nextn, layers: vec![], globals: vec![] };
        if n_layers == 0 || model.n_blocks() > MAX_LAYERS {
            return Err(source.bad_key("block_count"));
        }
        if let Some(reason) = source.refusal() {
            return Err(unsupported(&reason));
        }
        source.check_keys()?;
        source.sort_tensors()?;
        source.check_kinds()?;
        source.nextn = source.usable_nextn();
        Ok(source)
    }

    /// Why this variant cannot be cut, although its architecture can.
    fn refusal(&self) -> Option<String> {
        let holds = |key: &str, test: Test| {
            let value = self.model.arch_value(key);
            match test {
                Test::Present => value.is_some(),
                Test::Zero => value.and_then(Value::as_u64) == Some(0),
                Test::Positive => value.is_some_and(|value| value.as_u64() != Some(0)),
                Test::Unset => value.is_none_or(|value| value.as_u64() == Some(0)),
            }
        };
        self.arch.rules.iter().find_map(|rule| match *rule {
            Rule::NotWithLayers { layers, reason } | Rule::PadPast { layers, reason }
                if layers == self.n_layers =>
            {
                Some(reason.to_owned())
            }
            Rule::NotWith { key, test, reason } if holds(key, test) => Some(reason.to_owned()),
            Rule::AsByDepth(depths) if depths.iter().all(|(layers, _)| *layers != self.n_layers) => {
                let known: Vec<String> = depths.iter().map(|(layers, _)| layers.to_string()).collect();
                Some(format!("llama.cpp knows it with {} layers only", known.join(" or ")))
            }
            _ => None,
        })
    }

    /// Blocks that draft, if llama.cpp can run them: it aborts at a number or at tensors that it does not expect. Some
    /// files announce blocks that they do not hold.
    fn usable_nextn(&self) -> Result<Range<u32>, NoDrafts> {
        const NEEDED: [&str; 3] = ["nextn.eh_proj.weight", "nextn.enorm.weight", "nextn.hnorm.weight"];
        let blocks = self.n_layers..self.model.n_blocks();
        let has = |block: u32, name: &&str| self.model.tensor(&format!("blk.{block}.{name}")).is_some();
        let is_whole = |block: u32| NEEDED.iter().all(|name| has(block, name));
        let n = blocks.len() as u32;
        if n == 0 {
            return Err(NoDrafts::NoBlock);
        }
        let wanted = match self.arch.nextn {
            NextN::NoGraph => {
                let reason = "llama.cpp has no graph for those of its architecture";
                return Err(NoDrafts::Architecture { reason });
            }
            NextN::LeftOut(reason) => return Err(NoDrafts::Architecture { reason }),
            NextN::InTail(wanted) | NextN::Apart(wanted) => wanted,
        };
        if n > wanted.most {
            return Err(NoDrafts::Chained { n, most: wanted.most });
        }
        if !blocks.clone().all(is_whole) {
            return Err(NoDrafts::Missing);
        }
        if let Some(name) = wanted.needs.iter().find(|name| !blocks.clone().all(|block| has(block, name))) {
            return Err(NoDrafts::Unfit { what: format!("without {name}") });
        }
        let is_set = |key: &&&str| {
            self.model.arch_value(key).is_some_and(|value| value.as_f64().is_none_or(|value| value != 0.0))
        };
        if let Some(key) = wanted.never_with.iter().find(is_set) {
            return Err(NoDrafts::Unfit { what: format!("with {key}") });
        }
        // Where sections break them, sections of the model's own do so as well.
        if matches!(self.arch.nextn, NextN::Apart(_)) && self.has_sections() {
            return Err(NoDrafts::Sections);
        }
        Ok(blocks)
    }

    fn check_keys(&self) -> Result<(), CutError> {
        if self.model.n_embd() == 0 {
            return Err(self.bad_key("embedding_length"));
        }
        // Blocks that draft have entries in most arrays, but not in all.
        let fits = |array: crate::Array<'_>| {
            let lengths = [self.model.n_blocks(), self.n_layers].map(u64::from);
            lengths.contains(&(array.len() as u64)) && array.element_type().size().is_some()
        };
        if let Some((key, _)) = self.per_layer_arrays().find(|(_, array)| !fits(*array)) {
            return Err(self.bad_full_key(key));
        }
        Ok(())
    }

    fn sort_tensors(&mut self) -> Result<(), CutError> {
        let bad = |name: &str, problem| CutError::Tensor { name: name.to_owned(), problem };
        let n_blocks = self.model.n_blocks();
        self.layers = vec![Vec::new(); n_blocks as usize];
        for (at, tensor) in self.model.tensors().iter().enumerate() {
            match tensor.layer() {
                Some((layer, _)) if layer < n_blocks => self.layers[layer as usize].push(at),
                Some(_) => return Err(bad(&tensor.name, "belongs to no layer of the model")),
                None => self.globals.push(at),
            }
        }
        // Blocks that draft may be missing.
        if let Some(layer) = self.layers[..self.n_layers as usize].iter().position(Vec::is_empty) {
            return Err(bad(&format!("blk.{layer}.*"), "is missing"));
        }
        let embd = self.model.tensor(TOKEN_EMBD).ok_or_else(|| bad(TOKEN_EMBD, "is missing"))?;
        let width = u64::from(self.model.n_embd());
        for tensor in [Some(embd), self.model.tensor(OUTPUT)].into_iter().flatten() {
            if tensor.row_elements() != width || tensor.dims.len() > 2 {
                return Err(bad(&tensor.name, "has another width than embedding_length says"));
            }
        }
        Ok(())
    }

    /// What is in the file under an architecture's key, as an error.
    pub(crate) fn bad_key(&self, key: &str) -> CutError {
        self.bad_full_key(format!("{}.{key}", self.arch.name))
    }

    fn bad_full_key(&self, key: String) -> CutError {
        let found = self.model.metadata().get(&key).map_or_else(|| "missing".to_owned(), Value::to_string);
        CutError::Metadata { key, found }
    }

    /// The model.
    #[must_use]
    pub const fn model(&self) -> &'m Model {
        self.model
    }

    /// Its architecture.
    #[must_use]
    pub const fn arch(&self) -> &'static Architecture {
        self.arch
    }

    /// Layers that can be shared out: those that every token passes.
    #[must_use]
    pub const fn n_layers(&self) -> u32 {
        self.n_layers
    }

    /// Blocks that draft (NextN) and that slices keep, numbered behind the layers; empty if there are none.
    #[must_use]
    pub fn nextn(&self) -> Range<u32> {
        self.drafts().unwrap_or(0..0)
    }

    /// The same, with the reason why there are none.
    ///
    /// # Errors
    /// If the model cannot draft for itself.
    pub fn drafts(&self) -> Result<Range<u32>, NoDrafts> {
        self.nextn.clone()
    }

    /// Indices of the tensors of one layer, or block that drafts.
    pub(crate) fn layer(&self, layer: u32) -> &[usize] {
        &self.layers[layer as usize]
    }

    /// Indices of the tensors that belong to no layer.
    pub(crate) fn globals(&self) -> &[usize] {
        &self.globals
    }

    /// A count that must be there.
    pub(crate) fn count(&self, key: &str) -> Result<u32, CutError> {
        self.model.arch_u32(key).filter(|&n| n > 0).ok_or_else(|| self.bad_key(key))
    }

    /// A count that may be one number for all layers or an array; its value in `layer`.
    pub(crate) fn count_in_layer(&self, key: &str, layer: u32) -> Result<u32, CutError> {
        let Some(array) = self.model.arch_value(key).and_then(Value::as_array) else {
            return self.count(key);
        };
        let values = array.to_u64s().ok_or_else(|| self.bad_key(key))?;
        u32::try_from(values[layer as usize]).map_err(|_| self.bad_key(key))
    }

    /// Whether the model rotates in sections.
    pub(crate) fn has_sections(&self) -> bool {
        let sections = self.model.arch_value("rope.dimension_sections").and_then(Value::as_array);
        sections.and_then(crate::Array::to_u64s).is_some_and(|sections| sections.iter().any(|&n| n != 0))
    }

    /// A count of each layer, whether it is one number for all or an array.
    pub(crate) fn counts(&self, key: &str) -> Result<Vec<u64>, CutError> {
        let value = self.model.arch_value(key).ok_or_else(|| self.bad_key(key))?;
        let n_layers = self.n_layers as usize;
        let counts = match value.as_array() {
            Some(array) => array.to_u64s().map(|mut counts| {
                counts.truncate(n_layers);
                counts
            }),
            None => value.as_u64().map(|count| vec![count; n_layers]),
        };
        counts.ok_or_else(|| self.bad_key(key))
    }

    /// Whether the file has an array under this key.
    pub(crate) fn has_array(&self, key: &str) -> bool {
        self.model.arch_value(key).and_then(Value::as_array).is_some()
    }

    /// Entries of the vocabulary.
    #[must_use]
    pub fn n_vocab(&self) -> u64 {
        self.model.tensor(TOKEN_EMBD).map_or(0, crate::Tensor::n_rows)
    }

    /// The arrays that are cut with the layers, as full keys.
    pub(crate) fn per_layer_arrays(&self) -> impl Iterator<Item = (String, crate::Array<'m>)> {
        let model = self.model;
        let own = PER_LAYER.iter().map(move |key| format!("{}.{key}", model.arch()));
        own.chain(PER_LAYER_BARE.iter().map(|&key| key.to_owned())).filter_map(move |key| {
            let array = model.metadata().get(&key)?.as_array()?;
            Some((key, array))
        })
    }

    /// Whether these layers can be a stage.
    ///
    /// # Errors
    /// If the range is empty or outside the model, or llama.cpp could not compute it correctly.
    pub fn check(&self, range: Range<u32>) -> Result<(), CutError> {
        Layout::new(self, range).map(drop)
    }

    /// Whether the model can be cut before layer `at` into two stages.
    ///
    /// # Errors
    /// If `at` is not inside the model, or a side could not be computed correctly.
    pub fn check_boundary(&self, at: u32) -> Result<(), CutError> {
        if at == 0 || at >= self.n_layers {
            return Err(CutError::Cuts { cut: at, last: self.n_layers - 1 });
        }
        self.check(0..at)?;
        self.check(at..self.n_layers)
    }
}

/// The embedding rows.
pub(crate) const TOKEN_EMBD: &str = "token_embd.weight";
/// The output head, where it is not the embedding rows.
pub(crate) const OUTPUT: &str = "output.weight";
/// The output head's offset.
pub(crate) const OUTPUT_BIAS: &str = "output.bias";
