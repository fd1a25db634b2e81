//! What each architecture needs beyond the general rules when its layers are cut into slices, as data.
//!
//! Owns the vocabulary of rules and the look-up. The rules themselves are in `arch/table.rs`, and they are interpreted
//! in one place, `layout.rs`. Measured on the pinned llama.cpp; one that is not listed is refused by name.

mod refused;
mod table;

/// A supported architecture.
#[derive(Debug)]
pub struct Architecture {
    /// `general.architecture` in the file.
    pub name: &'static str,
    /// What to do beyond the general rules.
    pub rules: &'static [Rule],
    /// Factor on embedding rows that are looked up outside llama.cpp.
    pub token_scale: Scale,
    /// Factor on hidden rows given to a stage that is not the first.
    pub hidden_scale: Scale,
    /// Graph tensor that holds the residual stream after a layer, without `-<layer>`.
    pub capture: &'static str,
    /// Largest logit difference to the unsplit model on the toy models in default settings; 0 where slices are
    /// bit-equal. Elsewhere a stage boundary costs one rounding, which half-precision keys and values amplify.
    pub tolerance: f32,
    /// What becomes of blocks that draft.
    pub nextn: NextN,
}

/// What becomes of a model's own blocks that draft (NextN) when it is cut. They are no layers: no token passes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextN {
    /// They are left out: llama.cpp has no graph for them, or nobody measured it.
    LeftOut,
    /// They stand behind the layers of the tail's slice.
    InTail {
        /// Blocks at most, because llama.cpp aborts at more; a model with more loses them.
        most: u32,
    },
    /// They have a file of their own beside the tail's slice, because its rewrites would break them.
    Apart {
        /// Blocks at most, because llama.cpp aborts at more; a model with more loses them.
        most: u32,
    },
}

impl NextN {
    /// Blocks at most.
    #[must_use]
    pub const fn most(self) -> u32 {
        match self {
            Self::LeftOut => 0,
            Self::InTail { most } | Self::Apart { most } => most,
        }
    }
}

impl Architecture {
    /// Whether some layers are recurrent: their state cannot be taken back to any earlier token.
    #[must_use]
    pub fn is_recurrent(&self) -> bool {
        self.rules.iter().any(|rule| matches!(rule, Rule::BothKinds(_)))
    }
}

/// A factor on rows, from the model's width.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scale {
    /// 1.
    One,
    /// The square root of the row width.
    SqrtWidth,
    /// One over the square root of the row width: undoes a factor that the graph applies to every input.
    InverseSqrtWidth,
}

impl Scale {
    /// The factor for rows of `width` values, in the precision llama.cpp uses.
    #[must_use]
    pub fn factor(self, width: u32) -> f32 {
        match self {
            Self::One => 1.0,
            Self::SqrtWidth => (width as f32).sqrt(),
            Self::InverseSqrtWidth => 1.0 / (width as f32).sqrt(),
        }
    }
}

/// One thing to do beyond the general rules. Keys are given without the architecture's prefix.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Rule {
    /// Which layers attend to a sliding window only follows from the layer's index, so it is written out as an array.
    /// A slice without any such layer gets a pass-through one, because llama.cpp aborts without.
    SlidingWindow {
        /// One layer in `period` attends to everything, unless the file says otherwise.
        period: u32,
        /// Whether the model has no window at all unless `attention.sliding_window` is there and not 0.
        only_if_set: bool,
    },
    /// Some layers are recurrent and some have attention. llama.cpp aborts at the first call without a layer of each kind,
    /// so a slice of one kind gets a pass-through layer of the other.
    BothKinds(RecurrentLayers),
    /// `embedding_scale` multiplies every input, so later stages get 1.
    EmbeddingScaleOnce,
    /// Without a key the residual scale is `numerator / sqrt(layers in the file)`, so the whole model's is written.
    ResidualScale {
        /// The numerator.
        numerator: f32,
    },
    /// llama.cpp takes the attention scale from the head's nominal size in files of exactly `layers` layers.
    AttentionScale {
        /// That count.
        layers: u32,
        /// How a slice makes up for it.
        by: AttentionFix,
        /// Replaces [`Architecture::tolerance`] in such a model.
        tolerance: f32,
    },
    /// The graph takes rows as input only with multi-section rotation, so sections that equal the plain one are written.
    RotationSections {
        /// Whether the plain rotation pairs neighbours, so that rows of query and key must change places.
        neighbours: bool,
    },
    /// Every `n`-th layer has no rotation, with no key, so a slice starts with pass-through layers up to a multiple.
    RotationGap {
        /// The period.
        period: u32,
    },
    /// llama.cpp decides by layer count whether a DeepSeek 2 file has low-rank queries.
    LowRankQuery,
    /// llama.cpp takes a missing gating function from the layer count and vocabulary.
    GatingFunction,
    /// A model with exactly this many layers is refused, and no slice of another may have as many.
    NotWithLayers {
        /// The count.
        layers: u32,
        /// Why.
        reason: &'static str,
    },
    /// A model with this key is refused.
    NotWithKey {
        /// The key.
        key: &'static str,
        /// Why.
        reason: &'static str,
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
}

/// How a slice makes up for an attention scale chosen by layer count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AttentionFix {
    /// The factor goes into `attn_q_norm.weight`.
    QueryNorm,
    /// Its square root goes into `rope.scaling.attn_factor`, which multiplies query and key.
    RotationFactor,
}

/// Why an architecture cannot be cut. Reads well after "cannot be cut into stages:".
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Values cross layers, or constants cannot be set from outside.
    #[error("{0}")]
    Impossible(&'static str),
    /// Nobody looked.
    #[error("it was not tested; use a model of one of {}", names())]
    NotTested,
}

/// The architecture of this name.
///
/// # Errors
/// Why it cannot be cut.
pub fn find(name: &str) -> Result<&'static Architecture, Refusal> {
    if let Some(found) = all().iter().find(|arch| arch.name == name) {
        return Ok(found);
    }
    let known = refused::REASONS.iter().find(|(names, _)| names.contains(&name));
    Err(known.map_or(Refusal::NotTested, |(_, reason)| Refusal::Impossible(reason)))
}

fn names() -> String {
    let names: Vec<_> = all().iter().map(|arch| arch.name).collect();
    names.join(", ")
}

/// All supported architectures, by name.
#[must_use]
pub fn all() -> &'static [Architecture] {
    table::ARCHITECTURES
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_ordered_and_none_is_both_supported_and_refused() {
        assert!(all().is_sorted_by(|a, b| a.name < b.name));
        for (names, _) in refused::REASONS {
            for name in *names {
                assert!(all().iter().all(|arch| arch.name != *name), "{name}");
            }
        }
    }

    #[test]
    fn refusals_say_why() {
        assert!(find("gemma3n").unwrap_err().to_string().contains("token"));
        assert!(
            find("mamba")
                .unwrap_err()
                .to_string()
                .contains("not tested; use a model of one of cohere2, command-r,")
        );
        assert_eq!(find("llama").unwrap().tolerance, 0.0);
    }

    #[test]
    fn factors_are_those_of_llama_cpp() {
        assert_eq!(Scale::SqrtWidth.factor(640), 640_f32.sqrt());
        assert_eq!(Scale::InverseSqrtWidth.factor(4), 0.5);
        assert_eq!(Scale::One.factor(4), 1.0);
    }
}
