"""A tiny model with random weights that has a tokenizer: it answers at once, and what it says means nothing."""

import array
import random
import struct

# A token for each byte, three that are none, and those around a gap that an answer fills.
BOS, END, UNKNOWN, BEFORE, BEHIND, GAP = range(256, 262)
WIDTH, LAYERS, HEADS, FEED = 64, 4, 4, 128
# Positions that a short convolution sees.
CONVOLVED = 3
# Files begin with this.
MAGIC, VERSION, ALIGNMENT = b"GGUF", 3, 32
# Kinds of values.
UINT32, INT32, FLOAT32, BOOL, STRING, ARRAY = 4, 5, 6, 7, 8, 9
CHAT = "{% for message in messages %}[{{ message.role }}] {{ message.content }}\n{% endfor %}[assistant] "


def letters():
    """How vocabularies of this kind write each byte: as itself if it is to be seen, else as a letter beyond 255."""
    seen = [*range(33, 127), *range(161, 173), *range(174, 256)]
    hidden = [byte for byte in range(256) if byte not in seen]
    return [chr(byte) if byte in seen else chr(256 + hidden.index(byte)) for byte in range(256)]


def text(value):
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def value_of(kind, value):
    """A value of the metadata, without its kind."""
    if kind == STRING:
        return text(value)
    return struct.pack({UINT32: "<I", INT32: "<i", FLOAT32: "<f", BOOL: "<?"}[kind], value)


def of_tokens(marks=(), words=()):
    """The vocabulary."""
    special = ["<s>", "</s>", "<unk>", "<|fim_prefix|>", "<|fim_suffix|>", "<|fim_middle|>", *marks]
    tokens = [*letters(), *special, *("".join(letters()[byte] for byte in word.encode()) for word in words)]
    # Ordinary ones, then two that steer, one that stands for what is unknown, others that steer, and ordinary ones.
    kinds = [1] * 256 + [3, 3, 2, 3, 3, 3] + [3] * len(marks) + [1] * len(words)
    fields = {
        "model": (STRING, "gpt2"),
        "pre": (STRING, "gpt-2"),
        "tokens": (STRING, tokens),
        "token_type": (INT32, kinds),
        # One that never applies: a list may not be empty.
        "merges": (STRING, ["Ā Ā"]),
        "bos_token_id": (UINT32, BOS),
        "eos_token_id": (UINT32, END),
        "unknown_token_id": (UINT32, UNKNOWN),
        "fim_pre_token_id": (UINT32, BEFORE),
        "fim_suf_token_id": (UINT32, BEHIND),
        "fim_mid_token_id": (UINT32, GAP),
    }
    return {f"tokenizer.ggml.{name}": value for name, value in fields.items()}


def metadata(chat, marks, words, is_hybrid):
    """Name, kind and value of each; of a list, the kind of what is in it."""
    arch = "lfm2" if is_hybrid else "llama"
    own = {
        "context_length": (UINT32, 512),
        "embedding_length": (UINT32, WIDTH),
        "block_count": (UINT32, LAYERS),
        "feed_forward_length": (UINT32, FEED),
        "attention.head_count": (UINT32, HEADS),
        "attention.head_count_kv": (UINT32, HEADS),
        "attention.layer_norm_rms_epsilon": (FLOAT32, 1e-6),
        "rope.dimension_count": (UINT32, WIDTH // HEADS),
    }
    if is_hybrid:
        own["attention.head_count_kv"] = (UINT32, [0 if is_recurrent(at) else HEADS for at in range(LAYERS)])
        own["shortconv.l_cache"] = (UINT32, CONVOLVED)
    return {
        "general.architecture": (STRING, arch),
        **{f"{arch}.{name}": value for name, value in own.items()},
        **of_tokens(marks, words),
        "tokenizer.chat_template": (STRING, chat),
    }


def is_recurrent(layer):
    """Of a hybrid model, every second one."""
    return layer % 2 == 0


def mixer(layer, is_hybrid):
    """What a layer looks back with."""
    if is_hybrid and is_recurrent(layer):
        return {
            "shortconv.conv": (CONVOLVED, WIDTH),
            "shortconv.in_proj": (WIDTH, 3 * WIDTH),
            "shortconv.out_proj": (WIDTH, WIDTH),
        }
    norms = {"attn_q_norm": (WIDTH // HEADS,), "attn_k_norm": (WIDTH // HEADS,)} if is_hybrid else {}
    return {**{name: (WIDTH, WIDTH) for name in ("attn_q", "attn_k", "attn_v", "attn_output")}, **norms}


def tensors(n_tokens, is_hybrid):
    """Dimensions by name, the fastest first."""
    layer = lambda at: {
        "attn_norm": (WIDTH,),
        **mixer(at, is_hybrid),
        "ffn_norm": (WIDTH,),
        "ffn_gate": (WIDTH, FEED),
        "ffn_up": (WIDTH, FEED),
        "ffn_down": (FEED, WIDTH),
    }
    return {
        "token_embd.weight": (WIDTH, n_tokens),
        **{f"blk.{at}.{name}.weight": dims for at in range(LAYERS) for name, dims in layer(at).items()},
        f"{'token_embd_norm' if is_hybrid else 'output_norm'}.weight": (WIDTH,),
        "output.weight": (WIDTH, n_tokens),
    }


def padded(raw):
    return raw + bytes(-len(raw) % ALIGNMENT)


def write(path, chat=CHAT, marks=(), words=(), is_hybrid=False):
    """Writes the model, always the same one but for its chat template and for what it has tokens for besides: marks, which
    steer, then words, which it can say and does not read. A hybrid one has recurrent layers, too: short convolutions."""
    pick = random.Random(1)
    n_tokens = GAP + 1 + len(marks) + len(words)

    def numbers(name, dims):
        if len(dims) == 1:
            return [1.0] * dims[0]
        deviation = 1 if name.startswith("token_embd") else 2 / dims[0] ** 0.5
        return [pick.gauss(0, deviation) for _ in range(dims[0] * dims[1])]

    return write_file(path, metadata(chat, marks, words, is_hybrid), tensors(n_tokens, is_hybrid), numbers)


def write_file(path, fields, shapes, numbers):
    """Writes a file with these fields (kind and value by name) and tensors (dimensions by name), whose values `numbers` says."""
    head, data = bytearray(), bytearray()
    for name, (kind, value) in fields.items():
        head += text(name)
        if isinstance(value, list):
            head += struct.pack("<IIQ", ARRAY, kind, len(value)) + b"".join(value_of(kind, item) for item in value)
        else:
            head += struct.pack("<I", kind) + value_of(kind, value)
    for name, dims in shapes.items():
        head += text(name) + struct.pack(f"<I{len(dims)}QIQ", len(dims), *dims, 0, len(data))
        data += padded(array.array("f", numbers(name, dims)).tobytes())
    start = MAGIC + struct.pack("<IQQ", VERSION, len(shapes), len(fields))
    path.write_bytes(padded(start + head) + data)
    return path
