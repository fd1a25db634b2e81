//! The metadata of every toy: small sizes, and each feature that makes cutting harder switched on.

use super::Key::{B, F, U, Us};
use super::{Key, ToySpec};

type Keys = &'static [(&'static str, Key)];

const LAYERS: u32 = 8;
const HEAD: Key = U(32);
/// A window shorter than the test prompts.
const WINDOW: (&str, Key) = ("attention.sliding_window", U(8));
const KEY_LENGTH: (&str, Key) = ("attention.key_length", HEAD);
const VALUE_LENGTH: (&str, Key) = ("attention.value_length", HEAD);
const HALF_ROTATION: (&str, Key) = ("rope.dimension_count", U(16));
const EXPERTS: (&str, Key) = ("expert_count", U(4));
const EXPERTS_USED: (&str, Key) = ("expert_used_count", U(2));
const EXPERT_WIDTH: (&str, Key) = ("expert_feed_forward_length", U(64));
const EXPERT_NORM: (&str, Key) = ("expert_weights_norm", B(true));
const SHARED_EXPERT: (&str, Key) = ("expert_shared_count", U(1));
const LEADING_DENSE: (&str, Key) = ("leading_dense_block_count", U(2));
const LOGITS_CAPPED: (&str, Key) = ("final_logit_softcapping", F(30.0));
const ATTENTION_CAPPED: (&str, Key) = ("attn_logit_softcapping", F(50.0));

const HEADS: Keys = &[KEY_LENGTH, VALUE_LENGTH];
const GEMMA2: Keys = &[KEY_LENGTH, VALUE_LENGTH, WINDOW, ATTENTION_CAPPED, LOGITS_CAPPED];
const GEMMA3: Keys = &[KEY_LENGTH, VALUE_LENGTH, WINDOW, ("rope.freq_base", F(1e6))];
/// Head size and nominal head size (128 / 2) differ, so that the attention scale matters.
const TWO_HEADS: (&str, Key) = ("attention.head_count", U(2));
const ONE_KV_HEAD: (&str, Key) = ("attention.head_count_kv", U(1));
const LOGIT_SCALE: (&str, Key) = ("logit_scale", F(4.0));
const RESIDUAL_SCALE: (&str, Key) = ("residual_scale", F(0.5));
const EMBEDDING_SCALE: (&str, Key) = ("embedding_scale", F(6.0));
const ATTENTION_SCALE: (&str, Key) = ("attention.scale", F(0.1));
const KV_RANK: (&str, Key) = ("attention.kv_lora_rank", U(32));
const QUERY_RANK: (&str, Key) = ("attention.q_lora_rank", U(48));
const EXPERT_SCALE: (&str, Key) = ("expert_weights_scale", F(1.5));
const SIGMOID: (&str, Key) = ("expert_gating_func", U(2));

const MLA: Keys = &[
    EXPERTS,
    EXPERTS_USED,
    EXPERT_WIDTH,
    KV_RANK,
    LEADING_DENSE,
    SHARED_EXPERT,
    EXPERT_SCALE,
    HALF_ROTATION,
    QUERY_RANK,
    SIGMOID,
    EXPERT_NORM,
    ("attention.key_length", U(48)),
    VALUE_LENGTH,
    ("attention.key_length_mla", U(48)),
    ("attention.value_length_mla", HEAD),
    ONE_KV_HEAD,
];
const DEEPSEEK_MHA: Keys = &[
    EXPERTS,
    EXPERTS_USED,
    EXPERT_WIDTH,
    KV_RANK,
    LEADING_DENSE,
    SHARED_EXPERT,
    EXPERT_SCALE,
    HALF_ROTATION,
    QUERY_RANK,
    ("attention.key_length", U(48)),
    VALUE_LENGTH,
    ("attention.head_count_kv", U(4)),
];
const DEEPSEEK_LITE: Keys = &[
    EXPERTS,
    EXPERTS_USED,
    EXPERT_WIDTH,
    KV_RANK,
    LEADING_DENSE,
    SHARED_EXPERT,
    EXPERT_SCALE,
    HALF_ROTATION,
    ("attention.key_length", U(48)),
    VALUE_LENGTH,
    ("attention.head_count_kv", U(4)),
];
const ONE_NEXTN: (&str, Key) = ("nextn_predict_layers", U(1));
/// A block that drafts may have embeddings and a head of its own.
const MODELS_OWN: &[&str] = &["nextn.embed_tokens", "nextn.shared_head_head"];
/// A gated delta net and attention in one of four layers.
const QWEN35: Keys = &[
    ("ssm.conv_kernel", U(4)),
    ("ssm.inner_size", U(128)),
    ("ssm.state_size", U(32)),
    ("ssm.time_step_rank", U(4)),
    ("ssm.group_count", U(2)),
    ("rope.dimension_sections", Us(&[3, 3, 2, 0])),
    HALF_ROTATION,
    KEY_LENGTH,
    VALUE_LENGTH,
    ("full_attention_interval", U(4)),
    ONE_NEXTN,
];
/// Either keys and values are compressed together or they are apart.
const NOT_MLA: &[&str] = &["attn_k_b.", "attn_v_b.", "exp_probs_b"];

const fn toy(name: &'static str, keys: Keys) -> ToySpec {
    ToySpec { name, arch: name, n_layers: LAYERS, keys, skip: &[] }
}

const fn variant(name: &'static str, arch: &'static str, keys: Keys) -> ToySpec {
    ToySpec { arch, ..toy(name, keys) }
}

pub(super) const SPECS: &[ToySpec] = &[
    toy("cohere2", &[WINDOW, ("logit_scale", F(0.25))]),
    toy("command-r", &[("logit_scale", F(0.25))]),
    ToySpec { skip: &["attn_kv_b."], ..variant("deepseek2-mla", "deepseek2", MLA) },
    ToySpec { n_layers: 30, skip: &["attn_kv_b."], ..variant("deepseek2-30", "deepseek2", MLA) },
    ToySpec { skip: NOT_MLA, ..variant("deepseek2-mha", "deepseek2", DEEPSEEK_MHA) },
    ToySpec { n_layers: 27, skip: NOT_MLA, ..variant("deepseek2-lite", "deepseek2", DEEPSEEK_LITE) },
    toy("ernie4_5", &[]),
    toy("exaone4", &[]),
    toy("gemma", HEADS),
    toy("gemma2", GEMMA2),
    ToySpec {
        n_layers: 46,
        ..variant(
            "gemma2-46",
            "gemma2",
            &[KEY_LENGTH, VALUE_LENGTH, WINDOW, ATTENTION_CAPPED, LOGITS_CAPPED, TWO_HEADS, ONE_KV_HEAD],
        )
    },
    toy("gemma3", GEMMA3),
    ToySpec {
        n_layers: 62,
        ..variant(
            "gemma3-62",
            "gemma3",
            &[KEY_LENGTH, VALUE_LENGTH, WINDOW, ("rope.freq_base", F(1e6)), TWO_HEADS, ONE_KV_HEAD],
        )
    },
    toy("glm4", &[HALF_ROTATION]),
    ToySpec {
        skip: &["nextn"],
        ..toy(
            "glm4moe",
            &[
                EXPERTS,
                EXPERTS_USED,
                EXPERT_WIDTH,
                SHARED_EXPERT,
                LEADING_DENSE,
                HALF_ROTATION,
                EXPERT_NORM,
                ("expert_weights_scale", F(1.0)),
            ],
        )
    },
    ToySpec {
        n_layers: 6,
        skip: MODELS_OWN,
        ..variant(
            "glm4moe-nextn",
            "glm4moe",
            &[
                EXPERTS,
                EXPERTS_USED,
                EXPERT_WIDTH,
                SHARED_EXPERT,
                LEADING_DENSE,
                HALF_ROTATION,
                EXPERT_NORM,
                ("expert_weights_scale", F(1.0)),
                ONE_NEXTN,
            ],
        )
    },
    toy("gpt-oss", &[EXPERTS, EXPERTS_USED, EXPERT_WIDTH, KEY_LENGTH, VALUE_LENGTH, WINDOW]),
    toy("granite", &[LOGIT_SCALE, RESIDUAL_SCALE, EMBEDDING_SCALE, ATTENTION_SCALE]),
    toy(
        "granitemoe",
        &[EXPERTS, EXPERTS_USED, EXPERT_WIDTH, LOGIT_SCALE, RESIDUAL_SCALE, EMBEDDING_SCALE, ATTENTION_SCALE],
    ),
    toy("hunyuan-dense", HEADS),
    ToySpec {
        n_layers: 6,
        skip: &["nextn.embed_tokens", "nextn.shared_head_head", "ffn_gate.", "ffn_up.", "ffn_down."],
        ..variant(
            "hy_v3-nextn",
            "hy_v3",
            &[
                EXPERTS,
                EXPERTS_USED,
                EXPERT_WIDTH,
                KEY_LENGTH,
                VALUE_LENGTH,
                ("expert_shared_feed_forward_length", U(64)),
                SIGMOID,
                EXPERT_NORM,
                ("expert_weights_scale", F(1.0)),
                ONE_NEXTN,
            ],
        )
    },
    toy("llama", &[]),
    variant("llama-moe", "llama", &[EXPERTS, EXPERTS_USED]),
    toy("minicpm", &[]),
    toy(
        "mistral3",
        &[
            KEY_LENGTH,
            VALUE_LENGTH,
            ("attention.temperature_scale", F(0.1)),
            ("rope.scaling.original_context_length", U(16)),
        ],
    ),
    toy("olmo2", &[]),
    variant("olmo2-swa", "olmo2", &[WINDOW]),
    toy("phi2", &[HALF_ROTATION]),
    toy("phi3", &[]),
    toy("qwen2", &[]),
    toy("qwen2moe", &[EXPERTS, EXPERTS_USED, EXPERT_WIDTH, ("expert_shared_feed_forward_length", U(96))]),
    toy("qwen3", HEADS),
    ToySpec { skip: MODELS_OWN, ..variant("qwen35-nextn", "qwen35", QWEN35) },
    toy("qwen3moe", &[EXPERTS, EXPERTS_USED, EXPERT_WIDTH, KEY_LENGTH, VALUE_LENGTH]),
    toy("seed_oss", HEADS),
    toy("smollm3", &[]),
    toy("stablelm", &[HALF_ROTATION, ("use_parallel_residual", B(true))]),
    toy("starcoder2", &[]),
];
