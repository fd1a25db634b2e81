//! The vocabulary of what an architecture may need when its layers are cut. Says what, never how.

/// One thing to do beyond the general rules. Keys are given without the architecture's prefix.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rule {
    /// Some layers attend to a sliding window only. A slice without any gets a pass-through one, because llama.cpp aborts
    /// without.
    SlidingWindow(Windows),
    /// Some layers are recurrent and some have attention. llama.cpp aborts at the first call without a layer of each kind,
    /// so a slice of one kind gets a pass-through layer of the other.
    BothKinds(RecurrentLayers),
    /// Something follows from a layer's number with no key, so a slice starts with pass-through layers up to a multiple.
    Aligned(Align),
    /// llama.cpp needs so many layers: a slice ends with pass-through ones.
    AtLeast {
        /// The count.
        layers: u32,
    },
    /// llama.cpp reads a file of exactly so many layers as something else: a slice gets one more, a model is refused.
    PadPast {
        /// The count.
        layers: u32,
        /// Why.
        reason: &'static str,
    },
    /// llama.cpp aborts without a layer behind the leading dense ones: a slice of these ends with a pass-through layer.
    NeedsSparse,
    /// The first layer must have attention and the last a feed-forward part, and some layer keys and values: else
    /// pass-through layers that have them are added.
    WholeLayers,
    /// Layers reuse what the last layer with an indexer of its own (`attention.indexer.types`) has selected, so a slice
    /// must begin with one.
    SharedIndexer,
    /// `embedding_scale` multiplies every input, so later stages get 1.
    EmbeddingScaleOnce,
    /// Without a key the residual scale is `numerator / sqrt(layers in the file)`, so the whole model's is written.
    ResidualScale {
        /// The numerator.
        numerator: f32,
    },
    /// What attention and feed-forward add is scaled by one over the root of the file's layer count, with no key, so their
    /// last matrices (32-bit or 16-bit floats) are scaled back.
    ResidualByDepth,
    /// llama.cpp takes the attention scale from the head's nominal size in files of exactly `layers` layers.
    AttentionScale {
        /// That count.
        layers: u32,
        /// How a slice makes up for it.
        by: AttentionFix,
        /// Replaces the architecture's tolerance in such a model.
        tolerance: f32,
    },
    /// The graph takes rows as input only with multi-section rotation, so sections that equal the plain one are written.
    RotationSections {
        /// Whether the plain rotation pairs neighbours, so that rows of query and key must change places.
        neighbours: bool,
    },
    /// llama.cpp decides by layer count whether a DeepSeek 2 file has low-rank queries.
    LowRankQuery,
    /// llama.cpp takes a missing gating function from the layer count and vocabulary.
    GatingFunction,
    /// A tensor is used at every input, so only the first stage has it.
    FirstOnly {
        /// Which one.
        tensor: &'static str,
        /// What later stages have.
        later: Absent,
    },
    /// Only layers without a window use this tensor of the whole model, and llama.cpp refuses it where nobody does.
    FullOnly {
        /// Which one.
        tensor: &'static str,
    },
    /// Later stages are written as another architecture that computes the same without what this one does to every input.
    LaterAs {
        /// Its name.
        arch: &'static str,
        /// A key that it needs besides, and its value.
        key: &'static str,
        /// The value.
        value: f32,
    },
    /// llama.cpp chooses what the layers do by their number, so every slice is written as an architecture that says so. A
    /// model of another depth is refused.
    AsByDepth(&'static [(u32, &'static str)]),
    /// Image features would enter at several layers; a slice takes text only and says 0.
    TextOnly {
        /// The key.
        key: &'static str,
    },
    /// A model with exactly this many layers is refused, and no slice of another may have as many.
    NotWithLayers {
        /// The count.
        layers: u32,
        /// Why.
        reason: &'static str,
    },
    /// A model with such a key is refused.
    NotWith {
        /// The key.
        key: &'static str,
        /// What about it.
        test: Test,
        /// Why.
        reason: &'static str,
    },
}

/// Where it is written which layers have a sliding window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Windows {
    /// In `attention.sliding_window_pattern`, an array.
    Listed,
    /// In that key, as an array or a period, or else it follows from the layer's number; a slice gets the array.
    Every {
        /// One layer in `period` attends to everything, unless the file says otherwise.
        period: u32,
        /// Whether that is the first one rather than the last.
        full_first: bool,
        /// Whether the model has no window at all unless `attention.sliding_window` is there and not 0.
        only_if_set: bool,
    },
}

/// Where it is written which layers are recurrent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecurrentLayers {
    /// In `attention.recurrent_layers`, or else all but one in `full_attention_interval`; a slice gets the former.
    Interval {
        /// The interval where no key says it.
        default: u32,
    },
    /// Those with no heads of keys and values (`attention.head_count_kv`).
    WithoutHeads,
    /// The same, unless they have a feed-forward part: such a layer has nothing else.
    WithoutHeadsAndFeedForward,
}

/// What a slice's first layer must be a multiple of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Align {
    /// This: every so many layers one has no rotation.
    To(u32),
    /// This, if the model has a sliding window.
    ToIfWindows(u32),
    /// What this key says.
    ToKey(&'static str),
}

/// What stages but the first have instead of a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Absent {
    /// Zeros: llama.cpp requires it.
    Zero,
    /// Nothing.
    LeftOut,
}

/// What about a key forbids to cut a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Test {
    /// It is there.
    Present,
    /// It is there and 0.
    Zero,
    /// It is there and not 0.
    Positive,
    /// It is 0, or not there.
    Unset,
}

/// How a slice makes up for an attention scale chosen by layer count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttentionFix {
    /// The factor goes into `attn_q_norm.weight`.
    QueryNorm,
    /// Its square root goes into `rope.scaling.attn_factor`, which multiplies query and key.
    RotationFactor,
}
