//! Toys with nothing but attention of one kind, and a feed-forward part or experts in every layer.

use super::{
    CAPPED, EXPERT_NORM, EXPERT_SCALE, EXPERT_SCALE_ONE, EXPERTS, FOUR_KV_HEADS, GRANITE, HALF_ROTATION,
    HEADS, MODELS_OWN, MOE, NO_NEXTN, ONE_DENSE, ONE_KV_HEAD, ONE_NEXTN, QUARTER_LOGITS, SECTIONS,
    SHARED_EXPERT, SHARED_WIDTH, SHORT_CONTEXT, SIGMOID, TWO_DENSE, TWO_HEADS, WINDOW, toy, variant,
};
use crate::toy::Key::{B, F, Fs, U, Us};
use crate::toy::ToySpec;

pub(super) const SPECS: &[ToySpec] = &[
    toy(
        "apertus",
        &[&[
            ("xielu.alpha_n", Fs(&[0.8, 0.8, 0.8, 0.8, 0.6, 0.6, 0.6, 0.6])),
            ("xielu.alpha_p", Fs(&[0.8, 0.8, 0.8, 0.8, 0.5, 0.5, 0.5, 0.5])),
            ("xielu.beta", Fs(&[0.5; 8])),
            ("xielu.eps", Fs(&[-1e-6; 8])),
        ]],
    ),
    toy("arcee", &[HEADS]),
    toy("arctic", &[MOE]),
    ToySpec { n_layers: 40, ..variant("baichuan-13b", "baichuan", &[FOUR_KV_HEADS]) },
    ToySpec { n_layers: 32, ..variant("baichuan-7b", "baichuan", &[]) },
    toy("bailingmoe", &[MOE, ONE_DENSE, SHARED_EXPERT, EXPERT_SCALE_ONE, EXPERT_NORM]),
    ToySpec {
        skip: NO_NEXTN,
        ..toy(
            "bailingmoe2",
            &[MOE, ONE_DENSE, SHARED_EXPERT, SHARED_WIDTH, EXPERT_SCALE, EXPERT_NORM, SIGMOID, HALF_ROTATION],
        )
    },
    toy("bitnet", &[]),
    toy("bloom", &[FOUR_KV_HEADS]),
    toy("chatglm", &[HALF_ROTATION]),
    toy("codeshell", &[]),
    toy("command-r", &[QUARTER_LOGITS]),
    toy("dbrx", &[MOE, &[("attention.clamp_kqv", F(8.0))]]),
    toy(
        "deci",
        &[
            HEADS,
            &[
                ("attention.head_count", Us(&[4, 4, 0, 4, 4, 4, 4, 4])),
                ("attention.head_count_kv", Us(&[2, 4, 0, 2, 2, 0, 2, 2])),
                ("feed_forward_length", Us(&[256, 128, 256, 0, 256, 256, 192, 256])),
            ],
        ],
    ),
    toy("deepseek", &[MOE, ONE_DENSE, SHARED_EXPERT, EXPERT_SCALE_ONE]),
    toy("dots1", &[MOE, FOUR_KV_HEADS, ONE_DENSE, SHARED_EXPERT, EXPERT_SCALE, SIGMOID, EXPERT_NORM, HEADS]),
    toy("ernie4_5", &[]),
    toy(
        "ernie4_5-moe",
        &[MOE, SHARED_EXPERT, SHARED_WIDTH, &[("interleave_moe_layer_step", U(1))], ONE_DENSE],
    ),
    toy("exaone", &[]),
    toy("exaone4", &[]),
    toy("falcon", &[ONE_KV_HEAD]),
    toy("gemma", &[HEADS]),
    toy("gemma2", &[HEADS, WINDOW, CAPPED]),
    ToySpec { n_layers: 46, ..variant("gemma2-46", "gemma2", &[HEADS, WINDOW, CAPPED, TWO_HEADS]) },
    toy("glm4", &[HALF_ROTATION]),
    ToySpec {
        skip: NO_NEXTN,
        ..toy("glm4moe", &[MOE, SHARED_EXPERT, TWO_DENSE, HALF_ROTATION, EXPERT_NORM, EXPERT_SCALE_ONE])
    },
    ToySpec {
        n_layers: 6,
        skip: MODELS_OWN,
        ..variant(
            "glm4moe-nextn",
            "glm4moe",
            &[MOE, SHARED_EXPERT, TWO_DENSE, HALF_ROTATION, EXPERT_NORM, EXPERT_SCALE_ONE, ONE_NEXTN],
        )
    },
    toy("gpt2", &[FOUR_KV_HEADS, SHORT_CONTEXT]),
    toy("gptneox", &[FOUR_KV_HEADS, HALF_ROTATION, &[("use_parallel_residual", B(true))]]),
    toy("granite", &[GRANITE]),
    toy("granitemoe", &[MOE, GRANITE]),
    // Without a key its embeddings would drown what the layers add.
    toy("grok", &[MOE, HEADS, &[("embedding_scale", F(6.0))]]),
    toy("hunyuan-dense", &[HEADS]),
    toy("hunyuan-moe", &[MOE, SHARED_WIDTH, HEADS]),
    toy("hunyuan_vl", &[HEADS]),
    ToySpec {
        n_layers: 6,
        skip: &["nextn.embed_tokens", "nextn.shared_head_head", "ffn_gate.", "ffn_up.", "ffn_down."],
        ..variant(
            "hy_v3-nextn",
            "hy_v3",
            &[MOE, HEADS, SHARED_WIDTH, SIGMOID, EXPERT_NORM, EXPERT_SCALE_ONE, ONE_NEXTN],
        )
    },
    toy("internlm2", &[]),
    toy("jais", &[FOUR_KV_HEADS, &[("attention.max_alibi_bias", F(2.0))]]),
    toy("jais2", &[FOUR_KV_HEADS]),
    toy("llama", &[]),
    variant("llama-moe", "llama", &[EXPERTS]),
    toy("maincoder", &[HEADS]),
    toy("minicpm", &[]),
    toy("minimax-m2", &[MOE, HEADS, SIGMOID, HALF_ROTATION]),
    toy(
        "mistral3",
        &[HEADS, &[("attention.temperature_scale", F(0.1)), ("rope.scaling.original_context_length", U(16))]],
    ),
    ToySpec {
        skip: &["position_embd", "q_norm", "k_norm"],
        ..toy(
            "mpt",
            &[FOUR_KV_HEADS, &[("attention.max_alibi_bias", F(8.0)), ("attention.clamp_kqv", F(4.0))]],
        )
    },
    ToySpec {
        skip: &["q_norm", "k_norm"],
        ..variant(
            "mpt-positions",
            "mpt",
            &[FOUR_KV_HEADS, SHORT_CONTEXT, &[("attention.max_alibi_bias", F(8.0))]],
        )
    },
    toy("nemotron", &[HALF_ROTATION]),
    toy("olmo", &[&[("attention.clamp_kqv", F(8.0))]]),
    toy("olmo2", &[]),
    toy("olmoe", &[MOE, FOUR_KV_HEADS]),
    toy("openelm", &[OPENELM, HEADS]),
    variant("openelm-sizes", "openelm", &[OPENELM]),
    toy("orion", &[]),
    toy("paddleocr", &[SECTIONS]),
    toy("pangu-embedded", &[HEADS]),
    toy("phi2", &[HALF_ROTATION]),
    toy("phi3", &[]),
    toy("phimoe", &[MOE]),
    toy("plamo", &[]),
    toy("qwen", &[FOUR_KV_HEADS]),
    toy("qwen2", &[]),
    toy("qwen2moe", &[MOE, &[("expert_shared_feed_forward_length", U(96))]]),
    toy("qwen2vl", &[SECTIONS]),
    toy("qwen3", &[HEADS]),
    toy("qwen3moe", &[MOE, HEADS]),
    toy("qwen3vl", &[HEADS, SECTIONS, NO_DEEPSTACK]),
    toy("qwen3vlmoe", &[HEADS, MOE, SECTIONS, NO_DEEPSTACK]),
    toy("refact", &[ONE_KV_HEAD]),
    toy("seed_oss", &[HEADS]),
    toy("smollm3", &[]),
    toy("stablelm", &[HALF_ROTATION, &[("use_parallel_residual", B(true))]]),
    toy("starcoder", &[ONE_KV_HEAD, SHORT_CONTEXT]),
    toy("starcoder2", &[]),
    toy("xverse", &[]),
];

const NO_DEEPSTACK: super::Keys = &[("n_deepstack_layers", U(0))];
const OPENELM: super::Keys = &[
    ("attention.head_count", Us(&[4, 4, 4, 4, 8, 8, 8, 8])),
    ("attention.head_count_kv", Us(&[1, 1, 1, 1, 2, 2, 2, 2])),
    ("feed_forward_length", Us(&[128, 160, 192, 192, 224, 224, 256, 256])),
];
