//! One line per supported architecture. "As is" needs only the general rules of `layout.rs`.

use super::AttentionFix::{QueryNorm, RotationFactor};
use super::{Architecture, NextN, RecurrentLayers, Rule, Scale};

/// The residual stream after a layer, in all architectures listed here.
const LAYER_OUTPUT: &str = "l_out";

const fn as_is(name: &'static str) -> Architecture {
    with(name, &[])
}

/// Bit-equal, with these rules.
const fn with(name: &'static str, rules: &'static [Rule]) -> Architecture {
    Architecture {
        name,
        rules,
        token_scale: Scale::One,
        hidden_scale: Scale::One,
        capture: LAYER_OUTPUT,
        tolerance: 0.0,
        nextn: NextN::LeftOut,
    }
}

/// Windows in all layers but one of `period`.
const fn window(period: u32) -> Rule {
    Rule::SlidingWindow { period, only_if_set: false }
}

/// The same, in models that set a window.
const fn optional_window(period: u32) -> Rule {
    Rule::SlidingWindow { period, only_if_set: true }
}

const NO_DEEPSTACK: Rule =
    Rule::NotWithKey { key: "deepstack_mapping", reason: "image features enter at several layers" };

/// One layer in four has attention, the others are recurrent.
const ATTENTION_IN_FOUR: Rule = Rule::BothKinds(RecurrentLayers::Interval { default: 4 });
/// llama.cpp's graph for drafting takes one block.
const IN_TAIL: NextN = NextN::InTail { most: 1 };
/// The same, and its rotation cannot do sections.
const APART: NextN = NextN::Apart { most: 1 };

/// Ordered by name. Tolerances are twice the largest difference measured.
pub(super) const ARCHITECTURES: &[Architecture] = &[
    with("cohere2", &[window(4)]),
    as_is("command-r"),
    with("deepseek2", &[Rule::LowRankQuery, Rule::GatingFunction]),
    as_is("ernie4_5"),
    with(
        "exaone4",
        &[Rule::NotWithLayers {
            layers: 64,
            reason: "llama.cpp gives it a sliding window only in files of exactly 64 layers",
        }],
    ),
    // Every input is multiplied by sqrt(width), hidden rows too.
    Architecture { hidden_scale: Scale::InverseSqrtWidth, tolerance: 6e-3, ..as_is("gemma") },
    Architecture {
        hidden_scale: Scale::InverseSqrtWidth,
        tolerance: 1e-2,
        ..with(
            "gemma2",
            &[window(2), Rule::AttentionScale { layers: 46, by: RotationFactor, tolerance: 6e-2 }],
        )
    },
    // Only tokens are multiplied.
    Architecture {
        token_scale: Scale::SqrtWidth,
        ..with(
            "gemma3",
            &[optional_window(6), Rule::AttentionScale { layers: 62, by: QueryNorm, tolerance: 6e-3 }],
        )
    },
    // Query and key are permuted, so that their products are summed in another order.
    Architecture { tolerance: 3e-2, ..with("glm4", &[Rule::RotationSections { neighbours: true }]) },
    Architecture { nextn: APART, ..with("glm4moe", &[Rule::RotationSections { neighbours: false }]) },
    with("gpt-oss", &[window(2)]),
    with("granite", &[Rule::EmbeddingScaleOnce, NO_DEEPSTACK]),
    with("granitemoe", &[Rule::EmbeddingScaleOnce, NO_DEEPSTACK]),
    as_is("hunyuan-dense"),
    Architecture { nextn: IN_TAIL, ..as_is("hy_v3") },
    as_is("llama"),
    with("minicpm", &[Rule::EmbeddingScaleOnce, Rule::ResidualScale { numerator: 1.4 }]),
    as_is("mistral3"),
    with("olmo2", &[optional_window(4)]),
    as_is("phi2"),
    as_is("phi3"),
    as_is("qwen2"),
    as_is("qwen2moe"),
    as_is("qwen3"),
    Architecture { nextn: IN_TAIL, ..with("qwen35", &[ATTENTION_IN_FOUR]) },
    as_is("qwen3moe"),
    as_is("seed_oss"),
    with("smollm3", &[Rule::RotationGap { period: 4 }]),
    as_is("stablelm"),
    as_is("starcoder2"),
];
