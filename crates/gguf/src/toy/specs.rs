//! The metadata of every toy: small sizes, and each feature that makes cutting harder switched on. Here are the groups of
//! keys that several share.

mod mixed;
mod plain;

use std::sync::LazyLock;

use super::Key::{B, F, U, Us};
use super::{Key, ToySpec};

type Keys = &'static [(&'static str, Key)];

/// All variants.
pub(super) static SPECS: LazyLock<Vec<ToySpec>> = LazyLock::new(|| [plain::SPECS, mixed::SPECS].concat());

const LAYERS: u32 = 8;

const fn toy(name: &'static str, keys: &'static [Keys]) -> ToySpec {
    ToySpec { name, arch: name, n_layers: LAYERS, keys, skip: &[] }
}

const fn variant(name: &'static str, arch: &'static str, keys: &'static [Keys]) -> ToySpec {
    ToySpec { arch, ..toy(name, keys) }
}

/// A window shorter than the test prompts.
const WINDOW: Keys = &[("attention.sliding_window", U(8))];
const PATTERN_KEY: &str = "attention.sliding_window_pattern";
const PATTERN: Keys = &[(PATTERN_KEY, Key::Bs(&[true, true, false, true, true, true, false, true]))];
/// The size of a head, unlike the nominal one where there are other than four heads.
const HEADS: Keys = &[("attention.key_length", U(32)), ("attention.value_length", U(32))];
/// Head size and nominal head size (128 / 2) differ, so that the attention scale matters.
const TWO_HEADS: Keys = &[("attention.head_count", U(2)), ("attention.head_count_kv", U(1))];
const ONE_KV_HEAD: Keys = &[("attention.head_count_kv", U(1))];
const FOUR_KV_HEADS: Keys = &[("attention.head_count_kv", U(4))];
const NO_ATTENTION: Keys =
    &[("attention.head_count", U(0)), ("attention.head_count_kv", U(0)), ("feed_forward_length", U(0))];
/// Recurrent layers, three of them with attention.
const THREE_WITH_HEADS: Keys = &[("attention.head_count_kv", Us(&[0, 0, 2, 0, 0, 2, 0, 2]))];
const HALF_ROTATION: Keys = &[("rope.dimension_count", U(16))];
const FULL_ROTATION: Keys = &[("rope.dimension_count", U(32))];
const SECTIONS: Keys = &[("rope.dimension_sections", Us(&[8, 4, 4, 0]))];
const TWO_BASES: Keys = &[("rope.freq_base_swa", F(1e4)), ("rope.freq_base", F(1e6))];
const SHORT_CONTEXT: Keys = &[("context_length", U(256))];
const EXPERTS: Keys = &[("expert_count", U(4)), ("expert_used_count", U(2))];
const MOE: Keys =
    &[("expert_count", U(4)), ("expert_used_count", U(2)), ("expert_feed_forward_length", U(64))];
const EXPERT_NORM: Keys = &[("expert_weights_norm", B(true))];
const EXPERT_SCALE_ONE: Keys = &[("expert_weights_scale", F(1.0))];
const EXPERT_SCALE: Keys = &[("expert_weights_scale", F(1.5))];
const EXPERT_SCALE_TWO: Keys = &[("expert_weights_scale", F(2.0))];
const SHARED_EXPERT: Keys = &[("expert_shared_count", U(1))];
const SHARED_WIDTH: Keys = &[("expert_shared_feed_forward_length", U(64))];
const SIGMOID: Keys = &[("expert_gating_func", U(2))];
const ONE_DENSE: Keys = &[("leading_dense_block_count", U(1))];
const TWO_DENSE: Keys = &[("leading_dense_block_count", U(2))];
const CAPPED: Keys = &[("attn_logit_softcapping", F(50.0)), ("final_logit_softcapping", F(30.0))];
const GRANITE: Keys = &[
    ("logit_scale", F(4.0)),
    ("residual_scale", F(0.5)),
    ("embedding_scale", F(6.0)),
    ("attention.scale", F(0.1)),
];
const QUARTER_LOGITS: Keys = &[("logit_scale", F(0.25))];
const KV_RANK: Keys = &[("attention.kv_lora_rank", U(32))];
const QUERY_RANK: Keys = &[("attention.q_lora_rank", U(48))];
/// Keys longer than values: a part that is rotated.
const LONG_KEYS: Keys = &[("attention.key_length", U(48)), ("attention.value_length", U(32))];
const LATENT: Keys = &[("attention.key_length_mla", U(48)), ("attention.value_length_mla", U(32))];
const INDEXER: Keys = &[
    ("attention.indexer.head_count", U(2)),
    ("attention.indexer.key_length", U(64)),
    ("attention.indexer.top_k", U(8)),
];
const MAMBA2: Keys = &[
    ("ssm.conv_kernel", U(4)),
    ("ssm.inner_size", U(256)),
    ("ssm.state_size", U(32)),
    ("ssm.time_step_rank", U(8)),
    ("ssm.group_count", U(2)),
];
const MAMBA: Keys = &[
    ("ssm.conv_kernel", U(4)),
    ("ssm.inner_size", U(256)),
    ("ssm.state_size", U(16)),
    ("ssm.time_step_rank", U(8)),
];
const DELTA_NET: Keys = &[
    ("ssm.conv_kernel", U(4)),
    ("ssm.inner_size", U(128)),
    ("ssm.state_size", U(32)),
    ("ssm.time_step_rank", U(4)),
    ("ssm.group_count", U(2)),
];
const SMALL_SECTIONS: Keys = &[("rope.dimension_sections", Us(&[3, 3, 2, 0]))];
const KIMI: Keys = &[
    ("ssm.conv_kernel", U(4)),
    ("kda.head_dim", U(32)),
    ("attention.head_count_kv", Us(&[0, 0, 0, 1, 0, 0, 0, 1])),
];
const NEMOTRON: Keys = &[
    ("feed_forward_length", Us(&[0, 256, 0, 0, 0, 256, 0, 256])),
    ("attention.head_count_kv", Us(&[0, 0, 2, 0, 0, 0, 2, 0])),
];
const ONE_NEXTN: Keys = &[("nextn_predict_layers", U(1))];
const THREE_NEXTN: Keys = &[("nextn_predict_layers", U(3))];

/// A block that drafts may have embeddings and a head of its own.
const MODELS_OWN: &[&str] = &["nextn.embed_tokens", "nextn.shared_head_head"];
/// llama.cpp offers blocks that draft in any file.
const NO_NEXTN: &[&str] = &["nextn"];
/// Keys and values are compressed together.
const COMPRESSED: &[&str] = &["attn_kv_b."];
/// The same, in toys that draft.
const NEXTN_COMPRESSED: &[&str] = &["attn_kv_b.", "nextn.embed_tokens", "nextn.shared_head_head"];
/// Keys and values are apart.
const NOT_COMPRESSED: &[&str] = &["attn_k_b.", "attn_v_b.", "exp_probs_b"];
