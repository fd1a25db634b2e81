"""Gaps in a text, which a model with tokens for it fills."""

import toy

from paceline import Serve

BEFORE, BEHIND = "def add(a, b):\n    return ", "\n\nprint(add(1, 2))<|fim_middle|>"


def test_a_gap_is_filled_from_what_is_before_and_behind_it(tmp_path):
    with Serve(toy.write(tmp_path / "toy.gguf"), "--stages", 2, "--threads", 1, "--ctx", 256, "--exact") as serve:
        serve.wait_ready()
        begin = serve.http.post("/tokenize", json={"content": "", "add_special": True}).json()["tokens"]
        # What looks like a token of its own in a text is text.
        tokens = [*begin, toy.BEFORE, *BEFORE.encode(), toy.BEHIND, *BEHIND.encode(), toy.GAP]
        filled = serve.complete(BEFORE, 8, suffix=BEHIND, logprobs=1)
        plain = serve.complete(tokens, 8, logprobs=1)
        assert filled["usage"]["prompt_tokens"] == plain["usage"]["prompt_tokens"] == len(tokens)
        assert filled["choices"] == plain["choices"]
        assert filled["choices"][0]["text"] != serve.text(BEFORE, 8)
