"""Tiny models that draft for themselves: what follows a token is mostly a function of it, so that layers and the block that
drafts (NextN) agree on some tokens and not on others."""

import math
import random

from toy import BOOL, CHAT, FLOAT32, GAP, STRING, UINT32, of_tokens, write_file

WIDTH, HEADS, KV_HEADS, HEAD, FEED = 64, 4, 2, 32, 128
# Of the hybrid one's recurrent layers: its convolution, a state's size, groups, and heads.
CONVOLVED, STATE, GROUPS, RECURRENT = 4, 32, 2, 4
KEYS, VALUES = STATE * GROUPS, STATE * RECURRENT
# Every fourth layer of the hybrid one looks back with attention.
INTERVAL = 4
# What the layers add to a row, against what they add in other toys.
NOISE = 0.5
# Of the one with experts: so many, so many of them at once, and layers without any in front.
EXPERTS, CHOSEN, DENSE = 4, 2, 1
N_TOKENS = GAP + 1
# Architecture and layers: plain attention; recurrent layers, too; experts, and blocks that slices keep in a file beside.
KINDS = {"plain": ("hy_v3", 4), "hybrid": ("qwen35", 8), "apart": ("glm4moe", 4)}


def metadata(kind):
    arch, layers = KINDS[kind]
    is_hybrid = kind == "hybrid"
    own = {
        "context_length": (UINT32, 2048),
        "embedding_length": (UINT32, WIDTH),
        "block_count": (UINT32, layers + 1),
        "nextn_predict_layers": (UINT32, 1),
        "feed_forward_length": (UINT32, FEED),
        "attention.head_count": (UINT32, HEADS),
        "attention.head_count_kv": (UINT32, KV_HEADS),
        "attention.key_length": (UINT32, HEAD),
        "attention.value_length": (UINT32, HEAD),
        "attention.layer_norm_rms_epsilon": (FLOAT32, 1e-6),
        "rope.dimension_count": (UINT32, HEAD if kind == "plain" else HEAD // 2),
        "rope.freq_base": (FLOAT32, 10000.0),
    }
    if is_hybrid:
        own |= {
            "rope.dimension_sections": (UINT32, [3, 3, 2, 0]),
            "ssm.conv_kernel": (UINT32, CONVOLVED),
            "ssm.inner_size": (UINT32, VALUES),
            "ssm.state_size": (UINT32, STATE),
            "ssm.time_step_rank": (UINT32, RECURRENT),
            "ssm.group_count": (UINT32, GROUPS),
            "full_attention_interval": (UINT32, INTERVAL),
        }
    else:
        own["expert_feed_forward_length"] = (UINT32, FEED)
    if kind == "apart":
        own |= {
            "expert_count": (UINT32, EXPERTS),
            "expert_used_count": (UINT32, CHOSEN),
            "expert_shared_count": (UINT32, 1),
            "leading_dense_block_count": (UINT32, DENSE),
            "expert_weights_norm": (BOOL, True),
            "expert_weights_scale": (FLOAT32, 1.0),
        }
    return layers, {
        "general.architecture": (STRING, arch),
        **{f"{arch}.{name}": value for name, value in own.items()},
        **of_tokens(),
        "tokenizer.chat_template": (STRING, CHAT),
    }


def attention(is_hybrid):
    # The hybrid one's queries come with a gate.
    gated = 2 if is_hybrid else 1
    return {
        "attn_q.weight": (WIDTH, HEADS * HEAD * gated),
        "attn_k.weight": (WIDTH, KV_HEADS * HEAD),
        "attn_v.weight": (WIDTH, KV_HEADS * HEAD),
        "attn_output.weight": (HEADS * HEAD, WIDTH),
        "attn_q_norm.weight": (HEAD,),
        "attn_k_norm.weight": (HEAD,),
    }


RECURRENT_LAYER = {
    "attn_qkv.weight": (WIDTH, 2 * KEYS + VALUES),
    "attn_gate.weight": (WIDTH, VALUES),
    "ssm_conv1d.weight": (CONVOLVED, 2 * KEYS + VALUES),
    "ssm_dt.bias": (RECURRENT,),
    "ssm_a": (RECURRENT,),
    "ssm_beta.weight": (WIDTH, RECURRENT),
    "ssm_alpha.weight": (WIDTH, RECURRENT),
    "ssm_norm.weight": (STATE,),
    "ssm_out.weight": (VALUES, WIDTH),
}


def feed_forward(kind, layer):
    dense = {"ffn_gate": (WIDTH, FEED), "ffn_up": (WIDTH, FEED), "ffn_down": (FEED, WIDTH)}
    if kind != "apart" or layer < DENSE:
        return {f"{name}.weight": dims for name, dims in dense.items()}
    return {
        "ffn_gate_inp.weight": (WIDTH, EXPERTS),
        "exp_probs_b.bias": (EXPERTS,),
        **{f"{name}_exps.weight": (*dims, EXPERTS) for name, dims in dense.items()},
        **{f"{name}_shexp.weight": dims for name, dims in dense.items()},
    }


def tensors(layers, kind):
    """Dimensions by name, the fastest first."""
    shapes = {"token_embd.weight": (WIDTH, N_TOKENS), "output_norm.weight": (WIDTH,), "output.weight": (WIDTH, N_TOKENS)}
    for at in range(layers + 1):
        is_recurrent = kind == "hybrid" and at < layers and (at + 1) % INTERVAL != 0
        block = {
            "attn_norm.weight": (WIDTH,),
            **(RECURRENT_LAYER if is_recurrent else attention(kind == "hybrid")),
            "ffn_norm.weight" if kind == "plain" else "post_attention_norm.weight": (WIDTH,),
            **feed_forward(kind, at),
        }
        if at == layers:
            block |= {
                "nextn.eh_proj.weight": (2 * WIDTH, WIDTH),
                "nextn.enorm.weight": (WIDTH,),
                "nextn.hnorm.weight": (WIDTH,),
                "nextn.shared_head_norm.weight": (WIDTH,),
            }
        shapes |= {f"blk.{at}.{name}": dims for name, dims in block.items()}
    return shapes


def follows(token):
    """The token that follows another one unless the layers disturb it; none but bytes follow."""
    return (5 * token + 3) % 256


def write(path, kind="plain", change=lambda fields, shapes: None):
    """Writes the model, always the same one of its kind but for a `change` of its fields and of its tensors' dimensions."""
    pick = random.Random(1)
    gauss = lambda n, deviation: [pick.gauss(0, deviation) for _ in range(n)]
    embeddings = gauss(WIDTH * N_TOKENS, 1)
    row = lambda token: embeddings[token * WIDTH : (token + 1) * WIDTH]

    def numbers(name, dims):
        n, root = math.prod(dims), dims[0] ** 0.5
        if name.startswith("token_embd"):
            return embeddings
        if name.startswith("output.weight"):
            before = {follows(token): token for token in range(256)}
            rows = [row(before[at]) if at in before else [0.0] * WIDTH for at in range(N_TOKENS)]
            return [2 / root * value for values in rows for value in values]
        if name.endswith("eh_proj.weight"):
            # The token's own row, and half of the row that it follows, with noise.
            own = [[float(at == out) for at in range(WIDTH)] for out in range(WIDTH)]
            past = [[0.5 * (at == out) + pick.gauss(0, 0.2 / WIDTH**0.5) for at in range(WIDTH)] for out in range(WIDTH)]
            return [value for pair in zip(own, past) for part in pair for value in part]
        if name.endswith("ssm_a"):
            return [-0.3 - 0.1 * at for at in range(n)]
        if name.endswith("ssm_dt.bias") or "conv1d" in name:
            return gauss(n, 0.5)
        if name.endswith("exp_probs_b.bias"):
            return gauss(n, 0.1)
        if len(dims) == 1:
            return [1.0] * n
        if name.endswith(("attn_output.weight", "ssm_out.weight")):
            return gauss(n, 2 * NOISE / root)
        return gauss(n, (NOISE if ".ffn_down" in name else 1) / root)

    layers, fields = metadata(kind)
    shapes = tensors(layers, kind)
    change(fields, shapes)
    return write_file(path, fields, shapes, numbers)
