//! What each architecture needs beyond the general rules when its layers are cut into slices, as data.
//!
//! Owns the look-up. The words of rules are in `arch/rule.rs`, what each architecture needs is in `arch/table.rs`, and it
//! is interpreted in one place, `layout.rs`. Measured on the pinned llama.cpp; one that is not listed is refused by name.
//! `docs/models.md` is written from it (`arch/guide.rs`).

mod guide;
mod refused;
mod rule;
mod table;

pub use guide::guide;
pub use rule::{Absent, Align, AttentionFix, RecurrentLayers, Rule, Test, Windows};

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
    /// Graph tensor that holds the residual stream after the last layer.
    pub capture: Capture,
    /// What the graph makes of that last.
    pub final_norm: FinalNorm,
    /// Largest logit difference to the unsplit model on the toy models in default settings; 0 where slices are
    /// bit-equal. Elsewhere a stage boundary costs one rounding, which half-precision keys and values amplify.
    pub tolerance: f32,
    /// What becomes of blocks that draft.
    pub nextn: NextN,
    /// Whether what a sequence has left in memory can be taken back.
    pub rewind: Rewind,
}

/// The name of the graph tensor that leaves a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Capture {
    /// This, `-`, and the number of the file's last layer.
    OfLayer(&'static str),
    /// Just this: llama.cpp names the last layer's in another way.
    Named(&'static str),
}

impl Capture {
    /// The name in a file of so many layers.
    #[must_use]
    pub fn name(self, n_layers: usize) -> String {
        match self {
            Self::OfLayer(name) => format!("{name}-{}", n_layers.saturating_sub(1)),
            Self::Named(name) => name.to_owned(),
        }
    }
}

/// The norm behind the last layer, by which it can be checked that the captured tensor is the residual stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FinalNorm {
    /// Its tensors are called so, with `.weight` and `.bias`; the graph calls its result `result_norm`.
    Called(&'static str),
    /// The graph does not name its result, so nothing can be checked.
    Unnamed,
}

/// How far llama.cpp can take back what a sequence has left in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rewind {
    /// To any position: keys and values only.
    Anywhere,
    /// By some rows of the last call: recurrent layers keep snapshots (`llm_arch_supports_rs_rollback`).
    Snapshots,
    /// Not at all: recurrent layers without snapshots.
    Never,
}

/// What becomes of a model's own blocks that draft (NextN) when it is cut. They are no layers: no token passes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NextN {
    /// They are left out: llama.cpp has no graph for them.
    NoGraph,
    /// They are left out for this reason, worded to follow "it has a block that drafts (NextN), but".
    LeftOut(&'static str),
    /// They stand behind the layers of the tail's slice.
    InTail(Blocks),
    /// They have a file of their own beside the tail's slice, because its rewrites would break them.
    Apart(Blocks),
}

/// What llama.cpp wants of blocks that draft, and what it makes of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocks {
    /// Blocks at most, because llama.cpp aborts at more; a model with more loses them. Several are a chain: the first one
    /// drafts the next token, the second one the token behind it, and so on.
    pub most: u32,
    /// Tensors of a block, besides those that all have, without which llama.cpp aborts.
    pub needs: &'static [&'static str],
    /// Keys with which it aborts, unless they are 0.
    pub never_with: &'static [&'static str],
    /// Which rows of a call a block leaves for its next step.
    pub leaves: Leaves,
}

/// The rows of a call that a block which drafts leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leaves {
    /// All of them.
    All,
    /// Those that are outputs: its graph takes no others to its end.
    Outputs,
}

impl NextN {
    /// What is wanted of the blocks; none where they are left out.
    #[must_use]
    pub const fn blocks(self) -> Option<Blocks> {
        match self {
            Self::NoGraph | Self::LeftOut(_) => None,
            Self::InTail(blocks) | Self::Apart(blocks) => Some(blocks),
        }
    }
}

impl Architecture {
    /// Whether some layers are recurrent: their state cannot be taken back to any earlier token.
    #[must_use]
    pub fn is_recurrent(&self) -> bool {
        self.rewind != Rewind::Anywhere
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
    /// One over this: undoes such a factor.
    Inverse(u8),
}

impl Scale {
    /// The factor for rows of `width` values, in the precision llama.cpp uses.
    #[must_use]
    pub fn factor(self, width: u32) -> f32 {
        match self {
            Self::One => 1.0,
            Self::SqrtWidth => (width as f32).sqrt(),
            Self::InverseSqrtWidth => 1.0 / (width as f32).sqrt(),
            Self::Inverse(factor) => 1.0 / f32::from(factor),
        }
    }
}

/// Why an architecture cannot be cut. Reads well after "cannot be cut into stages:".
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// Values cross layers, or constants cannot be set from outside.
    #[error("{0}")]
    Impossible(&'static str),
    /// Nobody looked.
    #[error("it was not tested; use a model of an architecture that docs/models.md lists")]
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
        assert!(find("frobnicate").unwrap_err().to_string().contains("not tested"));
        assert_eq!(find("llama").unwrap().tolerance, 0.0);
    }

    #[test]
    fn factors_are_those_of_llama_cpp() {
        assert_eq!(Scale::SqrtWidth.factor(640), 640_f32.sqrt());
        assert_eq!(Scale::InverseSqrtWidth.factor(4), 0.5);
        assert_eq!(Scale::One.factor(4), 1.0);
        assert_eq!(Scale::Inverse(12).factor(4), 1.0 / 12.0);
    }

    #[test]
    fn recurrent_memory_is_that_of_layers_with_recurrent_state() {
        for arch in all() {
            let is_recurrent = ["mamba", "mamba2", "falcon-h1"].contains(&arch.name)
                || arch.rules.iter().any(|rule| matches!(rule, Rule::BothKinds(_)));
            assert_eq!(is_recurrent, arch.is_recurrent(), "{}", arch.name);
        }
    }
}
