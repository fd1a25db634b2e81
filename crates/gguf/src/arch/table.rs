//! One line per supported architecture. "As is" needs only the general rules of `layout.rs`.

use super::AttentionFix::{QueryNorm, RotationFactor};
use super::{
    Absent, Align, Architecture, Blocks, Capture, FinalNorm, Leaves, NextN, RecurrentLayers, Rewind, Rule,
    Scale, Test, Windows,
};

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
        capture: Capture::OfLayer("l_out"),
        final_norm: FinalNorm::Called("output_norm"),
        tolerance: 0.0,
        nextn: NextN::NoGraph,
        rewind: Rewind::Anywhere,
    }
}

/// With recurrent layers of which llama.cpp keeps no snapshots.
const fn forgetful(name: &'static str, rules: &'static [Rule]) -> Architecture {
    Architecture { rewind: Rewind::Never, ..with(name, rules) }
}

/// With recurrent layers of which llama.cpp keeps snapshots.
const fn snapshots(name: &'static str, rules: &'static [Rule]) -> Architecture {
    Architecture { rewind: Rewind::Snapshots, ..with(name, rules) }
}

/// Windows in all layers but the last one of `period`.
const fn window(period: u32) -> Rule {
    Rule::SlidingWindow(Windows::Every { period, full_first: false, only_if_set: false })
}

/// The same, in models that set a window.
const fn optional_window(period: u32) -> Rule {
    Rule::SlidingWindow(Windows::Every { period, full_first: false, only_if_set: true })
}

/// Windows in all layers but the first one of `period`.
const fn late_window(period: u32, only_if_set: bool) -> Rule {
    Rule::SlidingWindow(Windows::Every { period, full_first: true, only_if_set })
}

const LISTED_WINDOWS: Rule = Rule::SlidingWindow(Windows::Listed);
/// One layer in four has attention, the others are recurrent.
const ATTENTION_IN_FOUR: Rule = Rule::BothKinds(RecurrentLayers::Interval { default: 4 });
/// Recurrent layers have no heads.
const HEADLESS: Rule = Rule::BothKinds(RecurrentLayers::WithoutHeads);
const NEMOTRON: Rule = Rule::BothKinds(RecurrentLayers::WithoutHeadsAndFeedForward);
const NO_DEEPSTACK: Rule = Rule::NotWith {
    key: "deepstack_mapping",
    test: Test::Present,
    reason: "image features enter at several layers",
};
/// llama.cpp's graph takes a window for granted.
const NO_WINDOW: Rule = Rule::NotWith {
    key: "attention.sliding_window",
    test: Test::Unset,
    reason: "llama.cpp itself crashes without a sliding window",
};
const NO_IMAGES: Rule = Rule::TextOnly { key: "n_deepstack_layers" };
const EVERY_FOURTH_UNROTATED: Rule = Rule::Aligned(Align::To(4));
const BY_EXPERT_STEP: Rule = Rule::Aligned(Align::ToKey("interleave_moe_layer_step"));
const POSITIONS_ONCE: Rule = Rule::FirstOnly { tensor: "position_embd.weight", later: Absent::Zero };

/// llama.cpp's graph for drafting takes one block.
const ONE_BLOCK: Blocks = Blocks { most: 1, needs: &[], never_with: &[], leaves: Leaves::All };
const IN_TAIL: NextN = NextN::InTail(ONE_BLOCK);
/// The same, and the block has experts.
const SPARSE_IN_TAIL: NextN = NextN::InTail(Blocks { needs: &["ffn_gate_inp.weight"], ..ONE_BLOCK });
/// Real ones are of three; the limit bounds what a hostile file makes us do.
const CHAIN: Blocks = Blocks { most: 8, leaves: Leaves::Outputs, ..ONE_BLOCK };
/// Its rotation cannot do sections.
const APART: NextN = NextN::Apart(ONE_BLOCK);

/// Ordered by name. Tolerances are twice the largest difference measured.
pub(super) const ARCHITECTURES: &[Architecture] = &[
    Architecture {
        hidden_scale: Scale::InverseSqrtWidth,
        tolerance: 2e-3,
        ..with("afmoe", &[NO_WINDOW, EVERY_FOURTH_UNROTATED, optional_window(4)])
    },
    as_is("apertus"),
    as_is("arcee"),
    as_is("arctic"),
    with("baichuan", &[Rule::AsByDepth(&[(32, "llama"), (40, "refact")])]),
    as_is("bailingmoe"),
    as_is("bailingmoe2"),
    Architecture { nextn: IN_TAIL, ..snapshots("bailingmoe3", &[HEADLESS]) },
    as_is("bitnet"),
    // Every input is normalised.
    with(
        "bloom",
        &[
            Rule::LaterAs { arch: "mpt", key: "attention.max_alibi_bias", value: 8.0 },
            Rule::FirstOnly { tensor: "token_embd_norm.weight", later: Absent::LeftOut },
            Rule::FirstOnly { tensor: "token_embd_norm.bias", later: Absent::LeftOut },
        ],
    ),
    as_is("chatglm"),
    as_is("codeshell"),
    with("cohere2", &[window(4)]),
    Architecture { nextn: SPARSE_IN_TAIL, ..with("cohere2moe", &[late_window(4, false)]) },
    as_is("command-r"),
    as_is("dbrx"),
    with("deci", &[Rule::WholeLayers]),
    as_is("deepseek"),
    Architecture {
        nextn: NextN::InTail(Blocks {
            needs: &["ffn_gate_inp.weight", "attn_q_a.weight", "attn_k_b.weight"],
            never_with: &["attention.temperature_scale"],
            ..ONE_BLOCK
        }),
        ..with("deepseek2", &[Rule::LowRankQuery, Rule::GatingFunction])
    },
    Architecture { nextn: SPARSE_IN_TAIL, ..as_is("deepseek32") },
    as_is("dots1"),
    as_is("ernie4_5"),
    with("ernie4_5-moe", &[BY_EXPERT_STEP]),
    as_is("exaone"),
    with("exaone-moe", &[window(4)]),
    with(
        "exaone4",
        &[Rule::NotWithLayers {
            layers: 64,
            reason: "llama.cpp gives it a sliding window only in files of exactly 64 layers",
        }],
    ),
    as_is("falcon"),
    forgetful("falcon-h1", &[]),
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
    Architecture {
        token_scale: Scale::SqrtWidth,
        ..with(
            "gemma4",
            &[
                Rule::NotWith {
                    key: "embedding_length_per_layer_input",
                    test: Test::Positive,
                    reason: "its layers also take inputs made from token ids",
                },
                Rule::NotWith {
                    key: "attention.shared_kv_layers",
                    test: Test::Positive,
                    reason: "its layers share keys and values",
                },
                LISTED_WINDOWS,
                Rule::AtLeast { layers: 2 },
                Rule::FullOnly { tensor: "rope_freqs.weight" },
            ],
        )
    },
    Architecture { nextn: SPARSE_IN_TAIL, ..with("glm-dsa", &[Rule::SharedIndexer]) },
    // Query and key are permuted, so that their products are summed in another order.
    Architecture { tolerance: 3e-2, ..with("glm4", &[Rule::RotationSections { neighbours: true }]) },
    Architecture { nextn: APART, ..with("glm4moe", &[Rule::RotationSections { neighbours: false }]) },
    with("gpt-oss", &[window(2)]),
    with("gpt2", &[POSITIONS_ONCE]),
    as_is("gptneox"),
    with("granite", &[Rule::EmbeddingScaleOnce, NO_DEEPSTACK]),
    with("granite_swa", &[LISTED_WINDOWS, Rule::EmbeddingScaleOnce, NO_DEEPSTACK]),
    forgetful("granitehybrid", &[HEADLESS, Rule::EmbeddingScaleOnce]),
    with("granitemoe", &[Rule::EmbeddingScaleOnce, NO_DEEPSTACK]),
    with("grok", &[Rule::EmbeddingScaleOnce]),
    as_is("hunyuan-dense"),
    as_is("hunyuan-moe"),
    as_is("hunyuan_vl"),
    Architecture { nextn: IN_TAIL, ..as_is("hy_v3") },
    as_is("internlm2"),
    as_is("jais"),
    as_is("jais2"),
    forgetful("jamba", &[HEADLESS]),
    forgetful("kimi-linear", &[HEADLESS]),
    with("laguna", &[late_window(4, true)]),
    Architecture { final_norm: FinalNorm::Called("token_embd_norm"), ..snapshots("lfm2", &[HEADLESS]) },
    Architecture { final_norm: FinalNorm::Called("token_embd_norm"), ..snapshots("lfm2moe", &[HEADLESS]) },
    as_is("llama"),
    with(
        "llama4",
        &[
            Rule::NotWith {
                key: "attention.sliding_window",
                test: Test::Zero,
                reason: "llama.cpp itself aborts on it",
            },
            EVERY_FOURTH_UNROTATED,
            BY_EXPERT_STEP,
            window(4),
            // Its attention scale is an input that only layers without rotation use.
            Rule::AtLeast { layers: 4 },
        ],
    ),
    as_is("maincoder"),
    forgetful("mamba", &[]),
    forgetful("mamba2", &[]),
    with("maple", &[LISTED_WINDOWS]),
    with("mellum", &[optional_window(4)]),
    Architecture {
        nextn: NextN::InTail(Blocks {
            needs: &["attn_qkv.weight", "ffn_gate.weight", "ffn_up.weight", "ffn_down.weight"],
            ..CHAIN
        }),
        ..with("mimo2", &[LISTED_WINDOWS])
    },
    with("minicpm", &[Rule::EmbeddingScaleOnce, Rule::ResidualScale { numerator: 1.4 }]),
    // Every input is multiplied by 12.
    Architecture {
        hidden_scale: Scale::Inverse(12),
        tolerance: 6e-4,
        ..with("minicpm3", &[Rule::ResidualByDepth])
    },
    as_is("minimax-m2"),
    with("minimax-m3", &[Rule::NeedsSparse]),
    as_is("mistral3"),
    as_is("mistral4"),
    with("mpt", &[Rule::FirstOnly { tensor: "position_embd.weight", later: Absent::LeftOut }]),
    as_is("nemotron"),
    // `l_out` is the value before the sum, in some layers only.
    Architecture {
        capture: Capture::OfLayer("nemotron_h_block_out"),
        ..snapshots("nemotron_h", &[NEMOTRON])
    },
    Architecture {
        capture: Capture::OfLayer("nemotron_h_block_out"),
        nextn: SPARSE_IN_TAIL,
        ..snapshots("nemotron_h_moe", &[NEMOTRON])
    },
    as_is("olmo"),
    with("olmo2", &[optional_window(4)]),
    as_is("olmoe"),
    as_is("openelm"),
    as_is("orion"),
    as_is("paddleocr"),
    as_is("pangu-embedded"),
    as_is("phi2"),
    as_is("phi3"),
    as_is("phimoe"),
    as_is("plamo"),
    Architecture { final_norm: FinalNorm::Unnamed, ..with("plamo3", &[optional_window(8)]) },
    as_is("qwen"),
    as_is("qwen2"),
    as_is("qwen2moe"),
    with("qwen2vl", &[NO_IMAGES]),
    as_is("qwen3"),
    Architecture { nextn: IN_TAIL, ..snapshots("qwen35", &[ATTENTION_IN_FOUR]) },
    Architecture { nextn: SPARSE_IN_TAIL, ..snapshots("qwen35moe", &[ATTENTION_IN_FOUR]) },
    as_is("qwen3moe"),
    Architecture {
        nextn: NextN::LeftOut(
            "llama.cpp cannot take back what its recurrent layers have made of a wrong guess",
        ),
        ..forgetful("qwen3next", &[ATTENTION_IN_FOUR])
    },
    with("qwen3vl", &[NO_IMAGES]),
    with("qwen3vlmoe", &[NO_IMAGES]),
    as_is("refact"),
    as_is("seed_oss"),
    with(
        "smallthinker",
        &[
            Rule::Aligned(Align::ToIfWindows(4)),
            late_window(4, true),
            Rule::PadPast { layers: 4, reason: "llama.cpp rotates in every layer of a file of exactly 4" },
        ],
    ),
    with("smollm3", &[EVERY_FOURTH_UNROTATED]),
    with("spark2_5", &[LISTED_WINDOWS]),
    as_is("stablelm"),
    with("starcoder", &[POSITIONS_ONCE]),
    as_is("starcoder2"),
    // The last layer's output has a name of its own.
    Architecture {
        capture: Capture::Named("h_nextn"),
        nextn: NextN::InTail(CHAIN),
        ..with("step35", &[LISTED_WINDOWS])
    },
    as_is("xverse"),
];
