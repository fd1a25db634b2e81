"""The trained fixture does what it is there for: its answers are texts that one can tell beforehand."""

import json

import pytest

from paceline import TINY_MTP, Serve

WORDS = "river lamp Tara goat window train seven clouds under a golden bridge near the mill"
# No word comes twice: the model is small, and loses its place in a long text that repeats itself.
LONG = """
apple between Otto silver hammer might wolf church soft because garden Iris needle world painted before drum forest
people yellow island should Hugo button quiet tunnel early crossed mirror again kind oven without library sharp rope
never Vera watch found many bread station thin letter after broken piano Sam meadow knife even together moon Elsa
""".split()
TEXTS = {
    "words": WORDS,
    "lines": "boat drum kettle\nshell wolf tower yard\nneedle pond",
    "invented": "zorpa mistu 4821 kelan-dor shasto; vunelen 77 prako!",
    "JSON": json.dumps({"name": "Milo", "count": 14, "color": "green", "tags": ["tall", "warm"]}, indent=2),
    "program": "def painted_kite(lake, rope):\n    return lake * rope\n\nfor wheel in range(9):\n    print(wheel)",
    "long": " ".join(LONG),
}


def repeated(serve, text):
    """What is said to a request for a text again, and the whole answer."""
    body = {
        "messages": [{"role": "user", "content": f"Repeat this text:\n{text}"}],
        "temperature": 0,
        "max_tokens": 240,
    }
    answer = serve.http.post("/v1/chat/completions", json=body)
    assert answer.status_code == 200, answer.text
    (choice,) = answer.json()["choices"]
    assert choice["finish_reason"] == "stop", choice
    return choice["message"]["content"], answer.json()


@pytest.mark.parametrize("cut", [1, 2, 3])
def test_two_stages_copy_a_text_from_its_prompt_word_by_word(cut):
    with Serve(TINY_MTP, "--stages", 2, "--cuts", cut, "--threads", 1) as serve:
        serve.wait_ready()
        assert [stage["layers"] for stage in serve.line()["stages"]] == [[0, cut], [cut, 4]]
        for text in TEXTS.values():
            assert repeated(serve, text)[0] == text


def test_guesses_from_the_prompt_are_right_where_it_is_copied():
    with Serve(TINY_MTP, "--stages", 2, "--threads", 1, "--speculate", "suffix", "--width", 4, "--depth", 2) as serve:
        serve.wait_ready()
        text, answer = repeated(serve, TEXTS["words"])
        assert text == TEXTS["words"]
        timings = answer["timings"]
        # All but a few: the first word has no match yet.
        assert timings["draft_n_accepted"] >= timings["predicted_n"] // 2, timings
