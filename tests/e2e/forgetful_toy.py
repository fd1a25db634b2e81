"""A tiny model with state-space layers, of which llama.cpp keeps no snapshots: nothing that it has read is taken back."""

import random

from toy import CHAT, FEED, FLOAT32, GAP, HEADS, LAYERS, STRING, UINT32, WIDTH, is_recurrent, of_tokens, write_file

N_TOKENS = GAP + 1
# Of its recurrent layers: the convolution, values, a state's size, groups, and heads.
CONVOLVED, VALUES, STATE, GROUPS, RECURRENT = 4, 2 * WIDTH, 16, 2, 8
MIXED = VALUES + 2 * GROUPS * STATE


def metadata():
    own = {
        "context_length": (UINT32, 2048),
        "embedding_length": (UINT32, WIDTH),
        "block_count": (UINT32, LAYERS),
        "feed_forward_length": (UINT32, FEED),
        "attention.head_count": (UINT32, HEADS),
        "attention.head_count_kv": (UINT32, [0 if is_recurrent(at) else HEADS for at in range(LAYERS)]),
        "attention.layer_norm_rms_epsilon": (FLOAT32, 1e-6),
        "rope.dimension_count": (UINT32, WIDTH // HEADS),
        "ssm.conv_kernel": (UINT32, CONVOLVED),
        "ssm.inner_size": (UINT32, VALUES),
        "ssm.state_size": (UINT32, STATE),
        "ssm.time_step_rank": (UINT32, RECURRENT),
        "ssm.group_count": (UINT32, GROUPS),
    }
    return {
        "general.architecture": (STRING, "granitehybrid"),
        **{f"granitehybrid.{name}": value for name, value in own.items()},
        **of_tokens(),
        "tokenizer.chat_template": (STRING, CHAT),
    }


RECURRENT_LAYER = {
    "ssm_in.weight": (WIDTH, VALUES + MIXED + RECURRENT),
    "ssm_conv1d.weight": (CONVOLVED, MIXED),
    "ssm_conv1d.bias": (MIXED,),
    "ssm_dt.bias": (RECURRENT,),
    "ssm_a": (1, RECURRENT),
    "ssm_d": (1, RECURRENT),
    "ssm_norm.weight": (VALUES // GROUPS, GROUPS),
    "ssm_out.weight": (VALUES, WIDTH),
}
ATTENTION = {f"attn_{part}.weight": (WIDTH, WIDTH) for part in ("q", "k", "v", "output")}


def tensors():
    """Dimensions by name, the fastest first."""
    shapes = {"token_embd.weight": (WIDTH, N_TOKENS), "output_norm.weight": (WIDTH,), "output.weight": (WIDTH, N_TOKENS)}
    for at in range(LAYERS):
        layer = {
            "attn_norm.weight": (WIDTH,),
            **(RECURRENT_LAYER if is_recurrent(at) else ATTENTION),
            "ffn_norm.weight": (WIDTH,),
            "ffn_gate.weight": (WIDTH, FEED),
            "ffn_up.weight": (WIDTH, FEED),
            "ffn_down.weight": (FEED, WIDTH),
        }
        shapes |= {f"blk.{at}.{name}": dims for name, dims in layer.items()}
    return shapes


def write(path):
    """Writes the model, always the same one."""
    pick = random.Random(1)

    def numbers(name, dims):
        n = dims[0] * (dims[1] if len(dims) > 1 else 1)
        if name.endswith("ssm_a"):
            return [-0.3 - 0.1 * at for at in range(n)]
        if name.endswith(".bias"):
            return [pick.gauss(0, 0.5) for _ in range(n)]
        if "norm" in name:
            return [1.0] * n
        deviation = 1 if name.startswith("token_embd") else 2 / dims[0] ** 0.5
        return [pick.gauss(0, deviation) for _ in range(n)]

    return write_file(path, metadata(), tensors(), numbers)
