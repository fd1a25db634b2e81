//! Toys whose layers are of several kinds: windows, recurrent layers, compressed keys and values, layers without rotation.

use super::{
    COMPRESSED, DELTA_NET, EXPERT_NORM, EXPERT_SCALE_ONE, EXPERT_SCALE_TWO, FOUR_KV_HEADS, FULL_ROTATION,
    GRANITE, HALF_ROTATION, HEADS, INDEXER, KIMI, KV_RANK, Keys, LATENT, LONG_KEYS, MAMBA, MAMBA2,
    MODELS_OWN, MOE, NEMOTRON, NEXTN_COMPRESSED, NO_ATTENTION, NOT_COMPRESSED, ONE_DENSE, ONE_KV_HEAD,
    ONE_NEXTN, PATTERN, PATTERN_KEY, QUARTER_LOGITS, QUERY_RANK, SHARED_EXPERT, SHARED_WIDTH, SIGMOID,
    SMALL_SECTIONS, THREE_NEXTN, THREE_WITH_HEADS, TWO_BASES, TWO_DENSE, TWO_HEADS, WINDOW, toy, variant,
};
use crate::toy::Key::{Bs, F, Fs, U, Us};
use crate::toy::ToySpec;

pub(super) const SPECS: &[ToySpec] = &[
    toy("afmoe", &[MOE, HEADS, WINDOW, TWO_DENSE, SHARED_EXPERT, SIGMOID, EXPERT_NORM, EXPERT_SCALE_TWO]),
    ToySpec {
        skip: &["attn_kv_b.", "nextn"],
        ..toy(
            "bailingmoe3",
            &[
                MOE,
                ONE_DENSE,
                SHARED_EXPERT,
                SIGMOID,
                EXPERT_SCALE_TWO,
                EXPERT_NORM,
                QUERY_RANK,
                KV_RANK,
                LONG_KEYS,
                LATENT,
                HALF_ROTATION,
                KIMI,
                &[("kda.gate_lower_bound", F(-5.0))],
            ],
        )
    },
    ToySpec {
        skip: NEXTN_COMPRESSED,
        ..variant(
            "bailingmoe3-nextn",
            "bailingmoe3",
            &[
                MOE,
                ONE_DENSE,
                SHARED_EXPERT,
                SIGMOID,
                EXPERT_SCALE_TWO,
                EXPERT_NORM,
                QUERY_RANK,
                KV_RANK,
                LONG_KEYS,
                LATENT,
                HALF_ROTATION,
                KIMI,
                &[("kda.gate_lower_bound", F(-5.0))],
                &[("attention.head_count_kv", Us(&[0, 0, 0, 1, 0, 0, 0, 1, 1]))],
                ONE_NEXTN,
            ],
        )
    },
    toy("cohere2", &[WINDOW, QUARTER_LOGITS]),
    ToySpec {
        skip: super::NO_NEXTN,
        ..toy(
            "cohere2moe",
            &[MOE, WINDOW, ONE_DENSE, QUARTER_LOGITS, SHARED_EXPERT, SIGMOID, EXPERT_NORM, EXPERT_SCALE_ONE],
        )
    },
    ToySpec {
        skip: MODELS_OWN,
        ..variant(
            "cohere2moe-nextn",
            "cohere2moe",
            &[
                MOE,
                WINDOW,
                ONE_DENSE,
                QUARTER_LOGITS,
                SHARED_EXPERT,
                SIGMOID,
                EXPERT_NORM,
                EXPERT_SCALE_ONE,
                ONE_NEXTN,
            ],
        )
    },
    ToySpec { skip: COMPRESSED, ..variant("deepseek2-mla", "deepseek2", &[DEEPSEEK, QUERY_RANK, MLA]) },
    ToySpec {
        n_layers: 30,
        skip: COMPRESSED,
        ..variant("deepseek2-30", "deepseek2", &[DEEPSEEK, QUERY_RANK, MLA])
    },
    ToySpec {
        skip: NOT_COMPRESSED,
        ..variant("deepseek2-mha", "deepseek2", &[DEEPSEEK, QUERY_RANK, FOUR_KV_HEADS])
    },
    ToySpec {
        n_layers: 27,
        skip: NOT_COMPRESSED,
        ..variant("deepseek2-lite", "deepseek2", &[DEEPSEEK, FOUR_KV_HEADS])
    },
    ToySpec {
        skip: NEXTN_COMPRESSED,
        ..variant("deepseek2-nextn", "deepseek2", &[DEEPSEEK, QUERY_RANK, MLA, ONE_NEXTN])
    },
    ToySpec {
        skip: NEXTN_COMPRESSED,
        ..variant("deepseek32-nextn", "deepseek32", &[DEEPSEEK, QUERY_RANK, MLA, INDEXER, ONE_NEXTN])
    },
    ToySpec { skip: &["attn_kv_b.", "nextn"], ..toy("deepseek32", &[DEEPSEEK, QUERY_RANK, MLA, INDEXER]) },
    toy("exaone-moe", &[MOE, WINDOW, SHARED_EXPERT, ONE_DENSE, SIGMOID, EXPERT_NORM, EXPERT_SCALE_TWO]),
    toy("falcon-h1", &[MAMBA2, HEADS]),
    toy("gemma3", &[HEADS, WINDOW, &[("rope.freq_base", F(1e6))]]),
    ToySpec {
        n_layers: 62,
        ..variant("gemma3-62", "gemma3", &[HEADS, WINDOW, &[("rope.freq_base", F(1e6))], TWO_HEADS])
    },
    ToySpec {
        skip: &[
            "_exps",
            "ffn_gate_inp",
            "per_layer",
            "attn_qkv",
            "pre_ffw_norm_2",
            "post_ffw_norm_1",
            "post_ffw_norm_2",
        ],
        ..toy("gemma4", &[GEMMA4, WINDOW])
    },
    ToySpec {
        skip: &["per_layer", "attn_qkv", "ffn_gate_exps", "ffn_up_exps"],
        ..variant("gemma4-moe", "gemma4", &[GEMMA4, WINDOW, MOE])
    },
    ToySpec {
        skip: &["attn_kv_b.", "nextn"],
        ..toy(
            "glm-dsa",
            &[
                DEEPSEEK,
                QUERY_RANK,
                MLA,
                INDEXER,
                &[("attention.indexer.types", Us(&[1, 0, 0, 1, 0, 0, 1, 0]))],
            ],
        )
    },
    ToySpec {
        skip: NEXTN_COMPRESSED,
        ..variant(
            "glm-dsa-nextn",
            "glm-dsa",
            &[
                DEEPSEEK,
                QUERY_RANK,
                MLA,
                INDEXER,
                &[("attention.indexer.types", Us(&[1, 0, 0, 1, 0, 0, 1, 0]))],
                ONE_NEXTN,
            ],
        )
    },
    toy("gpt-oss", &[MOE, HEADS, WINDOW]),
    toy("granite_swa", &[WINDOW, PATTERN, GRANITE]),
    toy("granitehybrid", &[MAMBA2, GRANITE, THREE_WITH_HEADS]),
    variant("granitehybrid-moe", "granitehybrid", &[MAMBA2, MOE, SHARED_WIDTH, GRANITE, THREE_WITH_HEADS]),
    toy("jamba", &[MOE, MAMBA, THREE_WITH_HEADS]),
    ToySpec {
        skip: &["attn_kv_b.", "attn_q_a.", "attn_q_b."],
        ..toy(
            "kimi-linear",
            &[
                MOE,
                ONE_DENSE,
                SHARED_EXPERT,
                SIGMOID,
                EXPERT_SCALE_TWO,
                KV_RANK,
                LONG_KEYS,
                LATENT,
                HALF_ROTATION,
                KIMI,
            ],
        )
    },
    toy(
        "laguna",
        &[MOE, HEADS, WINDOW, ONE_DENSE, SHARED_EXPERT, SHARED_WIDTH, SIGMOID, EXPERT_NORM, EXPERT_SCALE_TWO],
    ),
    toy("lfm2", &[SHORT_CONVOLUTION, THREE_WITH_HEADS]),
    toy("lfm2moe", &[SHORT_CONVOLUTION, THREE_WITH_HEADS, MOE, TWO_DENSE, SIGMOID]),
    toy("llama4", &[MOE, FULL_ROTATION, &[("interleave_moe_layer_step", U(2))]]),
    toy("mamba", &[MAMBA, NO_ATTENTION]),
    toy("mamba2", &[MAMBA2, NO_ATTENTION]),
    toy(
        "maple",
        &[
            MOE,
            WINDOW,
            HEADS,
            PATTERN,
            &[("swiglu_clamp_exp", Fs(&[0.0, 0.0, 0.0, 0.0, 7.0, 7.0, 7.0, 7.0]))],
        ],
    ),
    toy("mellum", &[MOE, HEADS, WINDOW]),
    ToySpec {
        skip: super::NO_NEXTN,
        ..toy(
            "mimo2",
            &[
                MOE,
                WINDOW,
                LONG_KEYS,
                PATTERN,
                TWO_BASES,
                HALF_ROTATION,
                &[
                    ("attention.head_count_kv", Us(&[2, 2, 1, 2, 2, 2, 1, 2])),
                    ("attention.value_scale", F(0.7)),
                ],
            ],
        )
    },
    // All blocks of the chain have a window.
    ToySpec {
        skip: MODELS_OWN,
        ..variant(
            "mimo2-nextn",
            "mimo2",
            &[
                MOE,
                WINDOW,
                LONG_KEYS,
                TWO_BASES,
                HALF_ROTATION,
                &[
                    (PATTERN_KEY, Bs(&[true, true, false, true, true, true, false, true, true, true, true])),
                    ("attention.head_count_kv", Us(&[2, 2, 1, 2, 2, 2, 1, 2, 2, 2, 2])),
                    ("attention.value_scale", F(0.7)),
                ],
                THREE_NEXTN,
            ],
        )
    },
    toy("minicpm3", &[QUERY_RANK, KV_RANK, LONG_KEYS, HALF_ROTATION, FOUR_KV_HEADS]),
    toy(
        "minimax-m3",
        &[
            MOE,
            HEADS,
            TWO_DENSE,
            SHARED_EXPERT,
            SIGMOID,
            HALF_ROTATION,
            EXPERT_NORM,
            EXPERT_SCALE_TWO,
            &[
                ("attention.indexer.head_count", U(2)),
                ("attention.indexer.key_length", U(32)),
                ("attention.indexer.top_k", U(2)),
                ("attention.indexer.block_size", U(4)),
                ("attention.indexer.local_blocks", U(1)),
            ],
        ],
    ),
    ToySpec {
        skip: COMPRESSED,
        ..toy(
            "mistral4",
            &[
                DEEPSEEK,
                QUERY_RANK,
                LATENT,
                ONE_KV_HEAD,
                &[("attention.temperature_scale", F(0.1)), ("attention.temperature_length", U(16))],
            ],
        )
    },
    toy("nemotron_h", &[MAMBA2, HEADS, NEMOTRON]),
    ToySpec {
        skip: super::NO_NEXTN,
        ..toy(
            "nemotron_h_moe",
            &[MAMBA2, HEADS, MOE, SHARED_WIDTH, SHARED_EXPERT, EXPERT_NORM, EXPERT_SCALE_TWO, NEMOTRON],
        )
    },
    ToySpec {
        skip: MODELS_OWN,
        ..variant(
            "nemotron_h_moe-nextn",
            "nemotron_h_moe",
            &[
                MAMBA2,
                HEADS,
                MOE,
                SHARED_WIDTH,
                SHARED_EXPERT,
                EXPERT_NORM,
                EXPERT_SCALE_TWO,
                &[
                    ("feed_forward_length", Us(&[0, 256, 0, 0, 0, 256, 0, 256, 0])),
                    ("attention.head_count_kv", Us(&[0, 0, 2, 0, 0, 0, 2, 0, 2])),
                ],
                ONE_NEXTN,
            ],
        )
    },
    variant("olmo2-swa", "olmo2", &[WINDOW]),
    toy("plamo3", &[WINDOW, HEADS]),
    ToySpec { skip: super::NO_NEXTN, ..toy("qwen35", &[DELTA_NET, SMALL_SECTIONS, HALF_ROTATION, HEADS]) },
    ToySpec {
        skip: MODELS_OWN,
        ..variant(
            "qwen35-nextn",
            "qwen35",
            &[
                DELTA_NET,
                SMALL_SECTIONS,
                HALF_ROTATION,
                HEADS,
                &[("full_attention_interval", U(4))],
                ONE_NEXTN,
            ],
        )
    },
    ToySpec {
        skip: super::NO_NEXTN,
        ..toy("qwen35moe", &[DELTA_NET, SMALL_SECTIONS, HALF_ROTATION, HEADS, MOE, SHARED_WIDTH])
    },
    ToySpec {
        skip: MODELS_OWN,
        ..variant(
            "qwen35moe-nextn",
            "qwen35moe",
            &[DELTA_NET, SMALL_SECTIONS, HALF_ROTATION, HEADS, MOE, SHARED_WIDTH, ONE_NEXTN],
        )
    },
    ToySpec {
        skip: super::NO_NEXTN,
        ..toy("qwen3next", &[DELTA_NET, HALF_ROTATION, HEADS, MOE, SHARED_WIDTH])
    },
    toy("smallthinker", &[MOE, HEADS, WINDOW, SIGMOID]),
    toy("spark2_5", &[WINDOW, PATTERN]),
    ToySpec {
        skip: super::NO_NEXTN,
        ..toy(
            "step35",
            &[
                MOE,
                HEADS,
                WINDOW,
                SHARED_WIDTH,
                EXPERT_NORM,
                EXPERT_SCALE_TWO,
                PATTERN,
                FULL_ROTATION,
                TWO_BASES,
                &[
                    ("attention.head_count", Us(&[6, 6, 4, 6, 6, 6, 4, 6])),
                    ("leading_dense_block_count", U(0)),
                    ("swiglu_clamp_exp", Fs(&[0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 7.0, 7.0])),
                    ("swiglu_clamp_shexp", Fs(&[0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 5.0])),
                ],
            ],
        )
    },
    // One block of the chain has no window, and other heads.
    ToySpec {
        skip: MODELS_OWN,
        ..variant(
            "step35-nextn",
            "step35",
            &[
                MOE,
                HEADS,
                WINDOW,
                SHARED_WIDTH,
                EXPERT_NORM,
                EXPERT_SCALE_TWO,
                FULL_ROTATION,
                TWO_BASES,
                &[
                    (PATTERN_KEY, Bs(&[true, true, false, true, true, true, false, true, true, false, true])),
                    ("attention.head_count", Us(&[6, 6, 4, 6, 6, 6, 4, 6, 6, 4, 6])),
                    ("leading_dense_block_count", U(0)),
                    ("swiglu_clamp_exp", Fs(&[0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 7.0, 7.0, 0.0, 0.0, 0.0])),
                    ("swiglu_clamp_shexp", Fs(&[0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 5.0, 0.0, 0.0, 0.0])),
                ],
                THREE_NEXTN,
            ],
        )
    },
];

const DEEPSEEK: Keys = &[
    ("expert_count", U(4)),
    ("expert_used_count", U(2)),
    ("expert_feed_forward_length", U(64)),
    ("attention.kv_lora_rank", U(32)),
    ("leading_dense_block_count", U(2)),
    ("expert_shared_count", U(1)),
    ("expert_weights_scale", F(1.5)),
    ("rope.dimension_count", U(16)),
    ("attention.key_length", U(48)),
    ("attention.value_length", U(32)),
];
/// Multi-head latent attention.
const MLA: Keys = &[
    ("expert_gating_func", U(2)),
    ("expert_weights_norm", super::B(true)),
    ("attention.key_length_mla", U(48)),
    ("attention.value_length_mla", U(32)),
    ("attention.head_count_kv", U(1)),
];
const SHORT_CONVOLUTION: Keys = &[("shortconv.l_cache", U(3))];
const GEMMA4: Keys = &[
    ("attention.key_length", U(32)),
    ("attention.value_length", U(32)),
    ("attention.key_length_swa", U(16)),
    ("attention.value_length_swa", U(16)),
    ("rope.dimension_count", U(32)),
    ("rope.dimension_count_swa", U(16)),
    ("rope.freq_base_swa", F(1e4)),
    ("rope.freq_base", F(1e6)),
    ("final_logit_softcapping", F(30.0)),
    ("attention.sliding_window_pattern", Bs(&[true, true, true, false, true, true, true, false])),
    ("attention.head_count_kv", Us(&[2, 2, 2, 1, 2, 2, 2, 1])),
    ("embedding_length_per_layer_input", U(0)),
];
