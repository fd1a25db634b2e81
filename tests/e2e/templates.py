"""Chat templates of our own, for a model that was given another one."""

import struct

# Where data begins in a model's file is a multiple of this.
ALIGNMENT = 32
KEY = b"tokenizer.chat_template"
STRING = 8

# Turns as SmolLM2 knows them, with reasoning: opened by the prompt unless that is switched off, and shown again later.
THINKING = (
    "{% if reasoning_effort %}<|im_start|>system\nReasoning: {{ reasoning_effort }}<|im_end|>\n{% endif %}"
    "{% for message in messages %}<|im_start|>{{ message.role }}\n"
    "{% if message.reasoning_content %}<think>\n{{ message.reasoning_content }}\n</think>\n\n{% endif %}"
    "{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n<think>\n"
    "{% if enable_thinking is defined and not enable_thinking %}</think>\n\n{% endif %}{% endif %}"
)


def with_template(model, target, template):
    """Writes a model's file with another template to `target`; nothing else in it changes."""
    raw = model.read_bytes()
    begin = raw.index(struct.pack("<Q", len(KEY)) + KEY + struct.pack("<I", STRING)) + 8 + len(KEY) + 4
    (length,) = struct.unpack_from("<Q", raw, begin)
    end = begin + 8 + length
    # What lies behind it moves by a multiple of the alignment.
    bare = "{##}"
    fill = -(len(template.encode()) + len(bare) - length) % ALIGNMENT
    text = f"{bare[:2]}{' ' * fill}{bare[2:]}{template}".encode()
    target.write_bytes(raw[:begin] + struct.pack("<Q", len(text)) + text + raw[end:])
    return target
