"""A stage is lost and no request is: each goes on at the very next token of its text."""

import os
import random
import signal

import pytest

from paceline import SMOLLM2, SOAK, Serve, wait_gone, wait_until
from streams import Stream
from toy import write

# With results that do not depend on the shape of a batch, what is computed again is what was computed before.
ARGS = (SMOLLM2, "--stages", 3, "--threads", 1, "--exact", "--parallel", 3)
TOKENS = 200 if SOAK else 80
# Of an answer that is struck late: beyond the latest kill.
LONG = 300
PROMPTS = ["Once upon a time there was a", "Q: What is rain?\nA:", "1. copper\n2. iron\n3."]


@pytest.fixture(scope="module", params=["off", "auto"])
def serve(request):
    with Serve(*ARGS, "--speculate", request.param) as serve:
        serve.wait_ready()
        yield serve


def alone(serve, prompt, **more):
    """The text of a request that nothing disturbs."""
    stream = Stream(serve, TOKENS, prompt, **more)
    stream.wait_end(60)
    return stream.text()


@pytest.mark.parametrize("seed", range(50 if SOAK else 2))
def test_a_killed_stage_costs_time_and_nothing_else(serve, seed):
    chance = random.Random(seed)
    more = {"temperature": 0.8, "seed": 7, "frequency_penalty": 0.3} if seed % 2 else {}
    expected = [alone(serve, prompt, **more) for prompt in PROMPTS]
    streams = [Stream(serve, TOKENS, prompt, **more) for prompt in PROMPTS]
    for stream in streams:
        stream.wait_events(chance.randrange(2, TOKENS // 4))
    victim = chance.choice(serve.stage_pids()[1:])
    os.kill(victim, signal.SIGKILL)
    for stream in streams:
        stream.wait_end(60)
    assert [stream.text() for stream in streams] == expected
    wait_gone([victim], 5)
    assert victim not in serve.stage_pids()


def test_a_kill_while_prompts_are_read_is_not_seen_either(serve):
    prompt = " ".join(PROMPTS) * 12
    expected = alone(serve, prompt)
    victim, resumed = serve.stage_pids()[2], serve.line()["resumed"]
    stream = Stream(serve, TOKENS, prompt, cache_prompt=False)
    wait_until(lambda: serve.line()["sequences"], 60, "it never comes on the line")
    os.kill(victim, signal.SIGKILL)
    assert not stream.events, "the prompt was read before the stage was killed"
    stream.wait_end(60)
    assert stream.text() == expected
    assert serve.line()["resumed"] == resumed + 1


@pytest.fixture(scope="module")
def slow(tmp_path_factory):
    """A line with an answer that takes its time: every token is on its way for three delays."""
    model = write(tmp_path_factory.mktemp("models") / "toy.gguf")
    with Serve(model, *ARGS[1:], "--ctx", 512, "--link", "delay=2ms") as serve:
        serve.wait_ready()
        stream = of_letters(serve)
        stream.wait_end(60)
        serve.undisturbed = stream.essence()
        assert len(stream.parts()) > LONG, "a token is an event"
        yield serve


def of_letters(serve):
    """An answer whose tokens are letters, so that each of them comes as soon as it is known."""
    return Stream(serve, LONG, PROMPTS[0], logprobs=2, guided_regex=f"[a-z]{{{LONG}}}", ignore_eos=False)


@pytest.mark.parametrize("count", [1, 17, 255])
def test_a_stage_that_is_killed_at_an_exact_token_is_not_seen(slow, count):
    resumed = slow.line()["resumed"]
    # Where the machine is busy with other things the next token may be faster than the kill: then once more.
    for n_kills in range(1, 6):
        victim = slow.stage_pids()[1 + n_kills % 2]
        stream = of_letters(slow)
        stream.wait_events(count)
        os.kill(victim, signal.SIGKILL)
        came = len(stream.events)
        stream.wait_end(60)
        assert stream.essence() == slow.undisturbed
        assert slow.line()["resumed"] == resumed + n_kills, "over before the stage was killed"
        if came == count:
            return
    raise AssertionError(f"no kill met token {count}: the last one came at {came}")


def test_an_answer_in_a_given_form_goes_on_in_it(serve):
    person = {"name": {"type": "string", "minLength": 20, "maxLength": 60}, "city": {"type": "string", "minLength": 20}}
    schema = {"type": "object", "properties": person, "required": ["name", "city"], "additionalProperties": False}
    more = {"guided_json": schema, "ignore_eos": False, "frequency_penalty": 0.5}
    expected = alone(serve, PROMPTS[1], **more)
    stream = Stream(serve, TOKENS, PROMPTS[1], **more)
    stream.wait_events(8)
    os.kill(serve.stage_pids()[1], signal.SIGKILL)
    stream.wait_end(60)
    assert stream.text() == expected
    assert expected.startswith('{"name":"') and (len(expected) < 40 or "\n" not in expected)


def test_a_stop_string_over_several_tokens_ends_an_answer_after_a_kill(serve):
    undisturbed = Stream(serve, TOKENS, PROMPTS[0], logprobs=1)
    undisturbed.wait_end(60)
    text, tokens = undisturbed.text(), undisturbed.essence().logprobs["tokens"]
    assert "".join(tokens) == text, tokens
    stop, at = stop_within(tokens, TOKENS // 2)
    ended = Stream(serve, TOKENS, PROMPTS[0], stop=stop)
    ended.wait_end(60)
    assert (ended.text(), ended.essence().finish) == (text[:at], ["stop"]), stop
    resumed = serve.line()["resumed"]
    stream = Stream(serve, TOKENS, PROMPTS[0], stop=stop)
    stream.wait_events(3)
    os.kill(serve.stage_pids()[1], signal.SIGKILL)
    stream.wait_end(60)
    assert stream.essence() == ended.essence(), stop
    assert serve.line()["resumed"] == resumed + 1, "over before the stage was killed"


def stop_within(tokens, least):
    """A string that begins within a token and ends within the next but one, after at least so many, and where it comes first."""
    text = "".join(tokens)
    for first in range(least, len(tokens) - 2):
        begin, middle, end = tokens[first : first + 3]
        if len(begin) > 1 and len(end) > 1:
            stop, at = begin[1:] + middle + end[:-1], len("".join(tokens[:first])) + 1
            if text.find(stop) == at:
                return stop, at
    raise AssertionError(f"nothing of this comes once only: {tokens}")


def test_a_frozen_stage_is_replaced_and_the_answer_goes_on(serve):
    expected = alone(serve, PROMPTS[0])
    stream = Stream(serve, TOKENS, PROMPTS[0])
    stream.wait_events(3)
    victim = serve.stage_pids()[1]
    os.kill(victim, signal.SIGSTOP)
    stream.wait_end(60)
    assert stream.text() == expected
    wait_gone([victim], 15)


def test_a_line_that_does_not_come_back_is_told():
    with Serve(*ARGS, "--replay-timeout", "300ms") as serve:
        serve.wait_ready()
        stream = Stream(serve, 2000)
        stream.wait_events(3)
        os.kill(serve.stage_pids()[1], signal.SIGSTOP)
        stream.wait_end(10)
        assert stream.error()["code"] == "line_lost"
