"""The trained fixture does what it is there for: its answers are texts that one can tell beforehand."""

import json
import re

import pytest

from paceline import TINY_MTP, Serve
from test_counters import metrics

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


def test_its_drafts_are_right_and_the_line_counts_by_their_place_how_often():
    guesses = ("--speculate", "mtp", "--draft-len", 4, "--width", 5, "--depth", 1)
    with Serve(TINY_MTP, "--stages", 2, "--threads", 1, *guesses) as serve:
        serve.wait_ready()
        for text in TEXTS.values():
            assert repeated(serve, text)[0] == text
        source = serve.line()["sources"]["mtp"]
        drafts = source["drafts"]
        assert drafts["made"] == drafts["used"] + drafts["unused"] and drafts["ms"] > 0, drafts
        # The width is pinned: what is drafted is sent, but for a draft that its answer's end has overtaken.
        assert drafts["used"] > 0 and drafts["unused"] <= len(TEXTS), drafts
        shares = [place["right"] / place["judged"] for place in drafts["by_position"]]
        assert len(shares) == 4 and shares[0] >= 0.9, shares
        assert shares == sorted(shares, reverse=True), f"a token behind a wrong one counts as right: {shares}"
        # What was sent and judged was judged by its place too.
        assert drafts["by_position"][0]["right"] <= source["accepted"] <= sum(p["right"] for p in drafts["by_position"])
        seen = metrics(serve)
        assert seen['paceline_drafts_total{source="mtp"}'] == drafts["made"], seen
        assert seen['paceline_used_drafts_total{source="mtp"}'] == drafts["used"], seen
        for number, place in enumerate(drafts["by_position"], 1):
            labels = f'{{source="mtp",position="{number}"}}'
            assert seen[f"paceline_draft_tokens_total{labels}"] == place["judged"], seen
            assert seen[f"paceline_right_draft_tokens_total{labels}"] == place["right"], seen


def test_what_knows_the_prompt_goes_on_behind_its_drafts():
    guesses = ("--speculate", "mtp,suffix", "--draft-len", 2, "--width", 8, "--depth", 1)
    with Serve(TINY_MTP, "--stages", 2, "--threads", 1, *guesses) as serve:
        serve.wait_ready()
        text, answer = repeated(serve, TEXTS["words"])
        assert text == TEXTS["words"]
        drafted, looked_up = (serve.line()["sources"][name] for name in ["mtp", "suffix"])
        timings = answer["timings"]
        assert drafted["proposed"] + looked_up["proposed"] == timings["draft_n"], timings
        assert drafted["accepted"] + looked_up["accepted"] == timings["draft_n_accepted"], timings
        # A window has two of its own and up to five that it finds behind them.
        assert drafted["accepted"] > 0 and looked_up["accepted"] > drafted["accepted"], (drafted, looked_up)
        assert [depth["proposed"] > 0 for depth in drafted["by_depth"]] == [True, True], drafted
        assert sum(depth["accepted"] for depth in looked_up["by_depth"][2:]) > drafted["accepted"], looked_up


@pytest.mark.parametrize("temperature", [0, 0.8])
def test_its_drafts_are_cut_where_the_form_of_the_answer_forbids_them(temperature):
    """The form forbids some of what it would copy: names, and what is no letter."""
    texts = {}
    for sources in ["off", "mtp", "mtp,suffix"]:
        guesses = ("--speculate", sources) if sources == "off" else ("--speculate", sources, "--width", 5)
        with Serve(TINY_MTP, "--stages", 2, "--threads", 1, "--exact", *guesses) as serve:
            serve.wait_ready()
            body = {
                "messages": [{"role": "user", "content": f"Repeat this text:\n{WORDS} 27 Vera"}],
                "temperature": temperature,
                "seed": 3,
                "max_tokens": 60,
                "guided_regex": "[a-z ]{60,100}[.]",
            }
            answer = serve.http.post("/v1/chat/completions", json=body)
            assert answer.status_code == 200, answer.text
            texts[sources] = answer.json()["choices"][0]["message"]["content"]
            assert "river lamp" in texts[sources] and re.fullmatch(r"[a-z ]+[.]?", texts[sources]), texts
            if sources != "off":
                assert serve.line()["sources"]["mtp"]["accepted"] > 0, serve.line()["sources"]
    assert texts["off"] == texts["mtp"] == texts["mtp,suffix"], texts


def test_auto_has_it_draft_and_says_so():
    with Serve(TINY_MTP, "--stages", 2, "--threads", 1, "--speculate", "auto", "--link", "delay=2ms") as serve:
        serve.wait_ready()
        serve.wait_line("guesses come from predicted,mtp,suffix,unigram", 5)
        assert repeated(serve, TEXTS["words"])[0] == TEXTS["words"]
        assert serve.line()["sources"]["mtp"]["drafts"]["used"] > 0
