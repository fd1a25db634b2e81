"""A model that drafts for itself: whatever it drafts, answers are what the whole model gives token by token."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from drafting_toy import write

import toy
from answers import essence, warm_and_cold
from paceline import Serve, complaint, run
from streams import assert_a_kill_changes_nothing

TOKENS = 60
# Of one chunk and of several.
PROMPTS = ["rain", "copper and iron " * 8, "Once upon a time " * 60]
WARM = {"temperature": 0.8, "seed": 5, "top_p": 0.95}
SAMPLERS = [{}, WARM, {**WARM, "repeat_penalty": 1.1, "frequency_penalty": 0.2}]
# Sources, windows under way and tokens of a draft. Hybrid models have one window under way, whatever is asked for.
GUESSES = [
    ("mtp", 1, 1),
    ("mtp", 2, 2),
    ("mtp,suffix", 8, 3),
    ("mtp,suffix", 1, 4),
]
KINDS = ["plain", "hybrid"]


@pytest.fixture(scope="module", params=KINDS)
def model(request, tmp_path_factory):
    return write(tmp_path_factory.mktemp(request.param) / "toy.gguf", is_hybrid=request.param == "hybrid")


def common(model):
    return (model, "--threads", 1, "--exact", "--ctx", 2048)


def guessing(model, sources, depth, length, *more):
    """A line of two stages that guesses in any case: the width is pinned, so that nothing is left to the controller."""
    guesses = ("--speculate", sources, "--depth", depth, "--draft-len", length, "--width", length + 1)
    return Serve(*common(model), "--stages", 2, "--parallel", 3, *guesses, *more)


def answers(serve):
    """Every prompt with every sampler, several at once; and the guesses sent and right."""
    jobs = [(prompt, sampler) for prompt in PROMPTS for sampler in SAMPLERS]
    ask = lambda job: serve.complete(job[0], TOKENS, logprobs=2, cache_prompt=False, **job[1])
    with ThreadPoolExecutor(3) as clients:
        done = list(clients.map(ask, jobs))
    count = lambda name: sum(answer["timings"][name] for answer in done)
    return [essence(answer) for answer in done], (count("draft_n"), count("draft_n_accepted"))


@pytest.fixture(scope="module")
def alone(model):
    """What the whole model answers without a guess."""
    with Serve(*common(model)) as whole:
        whole.wait_ready()
        return answers(whole)[0]


@pytest.mark.parametrize("sources, depth, length", GUESSES)
def test_drafts_never_change_the_answer(model, alone, sources, depth, length):
    with guessing(model, sources, depth, length) as serve:
        serve.wait_ready()
        found, (sent, right) = answers(serve)
        assert found == alone
        assert sent > right > TOKENS, (sent, right)
        if sources == "mtp":
            # Some drafts are right and some are not: a token of the model's own is worth more than chance.
            assert right > sent * 0.2, (sent, right)


def test_one_process_drafts_too(model, alone):
    guesses = ("--speculate", "mtp", "--draft-len", 3, "--width", 4, "--depth", 1)
    with Serve(*common(model), *guesses) as serve:
        serve.wait_ready()
        found, (sent, right) = answers(serve)
        assert found == alone
        assert sent > right > TOKENS, (sent, right)


def test_left_to_itself_it_drafts_as_far_as_pays(model, alone):
    with Serve(*common(model), "--stages", 2, "--parallel", 3, "--speculate", "mtp,suffix", "--link", "delay=2ms") as serve:
        serve.wait_ready()
        assert answers(serve)[0] == alone


def test_a_text_that_goes_on_drafts_behind_what_was_computed(model):
    with guessing(model, "mtp", 2, 3) as serve:
        serve.wait_ready()
        warm, cold = warm_and_cold(serve, TOKENS)
        assert warm["timings"]["draft_n_accepted"] > 0 and cold["timings"]["draft_n_accepted"] > 0


def test_a_killed_tail_changes_nothing(model):
    # An event tells all tokens of a verdict; slow enough that the tail is lost half way.
    with guessing(model, "mtp,suffix", 2, 3, "--link", "delay=2ms") as serve:
        serve.wait_ready()
        assert_a_kill_changes_nothing(serve, PROMPTS[1], 8 * TOKENS, TOKENS // 3)


def test_a_model_that_cannot_draft_is_refused_at_once(tmp_path):
    path = toy.write(tmp_path / "toy.gguf")
    said = complaint(run("serve", path, "--listen", "127.0.0.1:0", "--speculate", "mtp", within=20), 1)
    assert "cannot draft for itself" in said and "no block that drafts" in said, said
    said = complaint(run("serve", path, "--speculate", "suffix", "--draft-len", 2, within=20), 2)
    assert "add --speculate mtp" in said, said
