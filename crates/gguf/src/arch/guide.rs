//! The table in words for people: the text of `docs/models.md`.

use std::fmt::Write as _;

use super::{
    Absent, Align, Architecture, Blocks, Capture, NextN, RecurrentLayers, Rewind, Rule, Scale, Test, Windows,
    all, refused,
};

const HEAD: &str = "\
# Models

Which architectures can be cut into stages, by the name in `general.architecture` of the GGUF file (`paceline inspect
MODEL` shows it, and where that model can be cut). Each was measured on a small random model of its kind: cut before every
layer, run through the stages, and compared with the whole model's logits. An architecture that is not in the first table
is refused by name.

This file is written from the table in `crates/gguf/src/arch/table.rs`; a test says how when the two differ.

## What can be cut

* *In a slice*: what a slice needs beyond renumbered layers. A *pass-through layer* is one whose tensors are all zero: it
  adds nothing, and costs its memory and time, so plans avoid cuts that need one.
* *Logits*: `=` are those of the whole model to the last bit; a number is how far they may be off, because the boundary
  costs a rounding.
* *Takes back*: how far llama.cpp can take back tokens that have been computed. Where that is not *anything*, some layers
  are recurrent: such models begin with a known prompt only where all of it is known, and guess one window at a time (*the
  last call's*) or not at all (*nothing*; `--speculate` is left out, and that is said).
* *Drafts itself*: where the model's own blocks that draft (NextN) are kept, if it has any; of a *chain* each one drafts
  another token. Elsewhere they are left out, for the reason that stands here, or else because llama.cpp has no graph
  for them, and `--speculate mtp` says so.

| architecture | in a slice | logits | takes back | drafts itself |
|---|---|---|---|---|
";

const REFUSED: &str = "
## What cannot

| architecture | why |
|---|---|
";

/// The text of `docs/models.md`.
#[must_use]
pub fn guide() -> String {
    let mut out = HEAD.to_owned();
    for arch in all() {
        let logits = if arch.tolerance == 0.0 { "=".to_owned() } else { arch.tolerance.to_string() };
        let (rewind, nextn) = (rewind(arch.rewind), nextn(arch.nextn));
        let _ = writeln!(out, "| `{}` | {} | {logits} | {rewind} | {nextn} |", arch.name, in_a_slice(arch));
    }
    out += REFUSED;
    for (names, reason) in refused::REASONS {
        let names: Vec<String> = names.iter().map(|name| format!("`{name}`")).collect();
        let _ = writeln!(out, "| {} | {reason} |", names.join(", "));
    }
    out
}

const fn rewind(rewind: Rewind) -> &'static str {
    match rewind {
        Rewind::Anywhere => "anything",
        Rewind::Snapshots => "the last call's",
        Rewind::Never => "nothing",
    }
}

const fn nextn(nextn: NextN) -> &'static str {
    match nextn {
        NextN::NoGraph => "",
        NextN::LeftOut(reason) => reason,
        NextN::InTail(Blocks { most: 1, .. }) => "in the tail's slice",
        NextN::InTail(_) => "a chain, in the tail's slice",
        NextN::Apart(_) => "in a file beside the tail's slice",
    }
}

fn in_a_slice(arch: &Architecture) -> String {
    let mut words: Vec<String> = arch.rules.iter().map(|rule| rule.words()).collect();
    match arch.hidden_scale {
        Scale::One | Scale::SqrtWidth => {}
        Scale::InverseSqrtWidth => {
            words.push("hidden rows × 1/√width, since the graph multiplies every input".into())
        }
        Scale::Inverse(n) => {
            words.push(format!("hidden rows × 1/{n}, since the graph multiplies every input"))
        }
    }
    if arch.token_scale != Scale::One {
        words.push("embedding rows × √width".into());
    }
    match arch.capture {
        Capture::OfLayer("l_out") => {}
        Capture::OfLayer(name) | Capture::Named(name) => words.push(format!("hidden rows leave as `{name}`")),
    }
    if words.is_empty() { "nothing".into() } else { words.join("; ") }
}

impl Rule {
    fn words(self) -> String {
        match self {
            Self::SlidingWindow(Windows::Listed) => "at least one layer with a sliding window".into(),
            Self::SlidingWindow(Windows::Every { .. }) => {
                "windows written out by layer, at least one layer with a window".into()
            }
            Self::BothKinds(from) => {
                let written = match from {
                    RecurrentLayers::Interval { .. } => "recurrent layers written out, ",
                    RecurrentLayers::WithoutHeads | RecurrentLayers::WithoutHeadsAndFeedForward => "",
                };
                format!("{written}at least one recurrent and one attention layer")
            }
            Self::Aligned(Align::To(n)) => {
                format!("begins at a multiple of {n}, filled up with pass-through layers")
            }
            Self::Aligned(Align::ToIfWindows(n)) => {
                format!(
                    "begins at a multiple of {n}, filled up with pass-through layers, if the model has windows"
                )
            }
            Self::Aligned(Align::ToKey(key)) => {
                format!("begins at a multiple of `{key}`, filled up with pass-through layers")
            }
            Self::AtLeast { layers } => format!("at least {layers} layers"),
            Self::PadPast { layers, .. } => format!("never exactly {layers} layers"),
            Self::NeedsSparse => "at least one layer behind the leading dense ones".into(),
            Self::WholeLayers => "begins with attention and ends with a feed-forward part".into(),
            Self::SharedIndexer => "begins with a layer that has an indexer of its own: no other cuts".into(),
            Self::EmbeddingScaleOnce => "`embedding_scale` in the first stage only".into(),
            Self::ResidualScale { .. } => "`residual_scale` of the whole model".into(),
            Self::ResidualByDepth => {
                "`attn_output` and `ffn_down` scaled by depth, which must be 32-bit or 16-bit floats".into()
            }
            Self::AttentionScale { layers, tolerance, .. } => {
                format!("attention scale of models with {layers} layers made up for (logits {tolerance})")
            }
            Self::RotationSections { neighbours: true } => {
                "rotation in sections, rows of query and key reordered".into()
            }
            Self::RotationSections { neighbours: false } => "rotation in sections".into(),
            Self::LowRankQuery => "never a number of layers that llama.cpp takes for full queries".into(),
            Self::GatingFunction => "gating function written out".into(),
            Self::FirstOnly { tensor, later: Absent::Zero } => {
                format!("`{tensor}` zero behind the first stage")
            }
            Self::FirstOnly { tensor, later: Absent::LeftOut } => {
                format!("`{tensor}` in the first stage only")
            }
            Self::FullOnly { tensor } => format!("`{tensor}` only with a layer without window"),
            Self::LaterAs { arch, .. } => format!("written as `{arch}` behind the first stage"),
            Self::AsByDepth(depths) => {
                let each = depths.iter().map(|(layers, arch)| format!("`{arch}` ({layers} layers)"));
                format!("written as {}", each.collect::<Vec<_>>().join(" or "))
            }
            Self::TextOnly { key } => format!("text only (`{key}` is 0)"),
            Self::NotWithLayers { layers, .. } => format!("not models of {layers} layers"),
            Self::NotWith { key, test, .. } => {
                let condition = match test {
                    Test::Present => "",
                    Test::Zero => " 0",
                    Test::Positive => " over 0",
                    Test::Unset => " 0 or missing",
                };
                format!("not models with `{key}`{condition}")
            }
        }
    }
}
