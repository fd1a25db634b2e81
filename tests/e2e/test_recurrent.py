"""A hybrid model: what its recurrent layers have read can hardly be taken back, and answers are what they would be anyway."""

from concurrent.futures import ThreadPoolExecutor

import pytest

import forgetful_toy
from answers import essence, warm_and_cold
from paceline import Serve, run
from streams import assert_a_kill_changes_nothing
from toy import write

TOKENS = 60
GUESSES = ("--speculate", "auto", "--depth", 4)
# Of one chunk and of several.
PROMPTS = ["rain", "copper and iron " * 8, "Once upon a time " * 60, "maps, bread, glass"]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write(tmp_path_factory.mktemp("hybrid") / "toy.gguf", is_hybrid=True)


@pytest.fixture(scope="module")
def serve(model):
    with Serve(model, "--stages", 2, "--threads", 1, "--exact", "--ctx", 2048, "--parallel", 3, *GUESSES) as serve:
        serve.wait_ready()
        yield serve


@pytest.fixture(scope="module")
def alone(model):
    """What the whole model answers to each prompt by itself."""
    with Serve(model, "--threads", 1, "--exact", "--ctx", 2048) as whole:
        whole.wait_ready()
        return [essence(whole.complete(prompt, TOKENS, logprobs=2, cache_prompt=False)) for prompt in PROMPTS]


def test_guesses_reach_into_one_window_only_and_it_is_said(serve):
    assert any("one window is under way at a time, whatever --depth says" in line for line in serve.lines), serve.lines
    answer = serve.complete("rain and copper " * 8, TOKENS, prediction={"type": "content", "content": "rain and copper " * 4})
    timings = answer["timings"]
    assert timings["draft_n"] > 0 and timings["windows"]["in_flight_max"] == 1, timings
    # Three guesses behind an anchor at most.
    assert timings["draft_n"] <= 3 * timings["windows"]["sent"], timings


def test_many_at_once_are_answered_as_by_the_whole_model(serve, alone):
    with ThreadPoolExecutor(len(PROMPTS)) as clients:
        ask = lambda prompt: essence(serve.complete(prompt, TOKENS, logprobs=2, cache_prompt=False))
        assert list(clients.map(ask, PROMPTS)) == alone


def test_a_text_that_goes_on_begins_with_what_was_computed(serve):
    warm_and_cold(serve, TOKENS)
    # Another text with half of the same beginning cannot begin in the middle of it.
    half = "Once upon a time " * 10 + "there were two"
    again = serve.complete(half, TOKENS, logprobs=2)
    assert essence(again) == essence(serve.complete(half, TOKENS, logprobs=2, cache_prompt=False))


def test_a_killed_stage_changes_nothing(serve):
    assert_a_kill_changes_nothing(serve, PROMPTS[1], TOKENS, TOKENS // 3)


def test_slices_are_what_the_whole_model_is(model):
    done = run("verify", model, "--stages", 2)
    assert done.returncode == 0, done.stdout + done.stderr


def test_a_model_that_takes_nothing_back_decodes_plainly_and_says_so(tmp_path):
    model = forgetful_toy.write(tmp_path / "toy.gguf")
    note = "decode one token after the other, without --speculate"
    ask = lambda serve, prompt: serve.complete(prompt, TOKENS, logprobs=2, cache_prompt=False)

    def answers(*guesses):
        with Serve(model, "--stages", 2, "--threads", 1, "--exact", "--ctx", 2048, "--parallel", 2, *guesses) as serve:
            serve.wait_ready()
            with ThreadPoolExecutor(2) as clients:
                found = list(clients.map(lambda prompt: ask(serve, prompt), PROMPTS))
            # A text that is foretold, and one that repeats itself: there would be much to guess.
            predicted = {"type": "content", "content": found[0]["choices"][0]["text"]}
            found.append(serve.complete(PROMPTS[0], TOKENS, logprobs=2, prediction=predicted))
            return sum(note in line for line in serve.lines), found

    said, plain = answers("--speculate", "off")
    assert said == 0
    for guesses in (GUESSES, ("--speculate", "suffix", "--depth", 3, "--width", 4)):
        said, found = answers(*guesses)
        assert said == 1, said
        assert [essence(one) for one in found] == [essence(one) for one in plain]
        for timings in (one["timings"] for one in found):
            # Each token has a window of its own.
            assert timings["draft_n"] == 0 and timings["windows"]["in_flight_max"] == 1, timings
            assert timings["windows"]["sent"] == TOKENS, timings
