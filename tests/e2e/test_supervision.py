"""Processes that die, freeze or are told to end: the line comes back by itself, and nothing is left behind."""

import json
import os
import shutil
import signal
import threading
import time

import pytest

from paceline import BINARY, SMOLLM2, SOAK, Serve, is_gone, wait_gone, wait_until
from streams import PROMPT, Stream

# Without replay: what a client hears then.
ARGS = (SMOLLM2, "--stages", 3, "--threads", 1, "--replay-timeout", "0s")


@pytest.fixture
def serve():
    """A line of its own for a test that breaks it."""
    with Serve(*ARGS) as serve:
        serve.wait_ready()
        yield serve


def test_a_killed_stage_is_replaced_and_streams_end_with_an_error(serve):
    expected = serve.text(PROMPT)
    for turn in range(20 if SOAK else 3):
        pids = serve.stage_pids()
        victim = pids[1 + turn % 2]
        stream = Stream(serve, 1500)
        stream.wait_events(4)
        began = time.monotonic()
        os.kill(victim, signal.SIGKILL)
        stream.wait_end(10)
        assert stream.ended_at - began < 1 and not stream.cut_off, "a lost stage is told within a second"
        error = stream.error()
        assert (error["type"], error["code"]) == ("service_unavailable_error", "line_lost"), error
        # Whoever noticed first says so: the front, or a neighbour in the line.
        assert "stage" in error["message"], error
        assert serve.http.get("/health").status_code == 200
        serve.wait_ready()
        now = serve.stage_pids()
        assert victim not in now and [pid for pid in now if pid in pids] == [pid for pid in pids if pid != victim]
        assert serve.text(PROMPT) == expected


def test_both_stages_killed_at_once_are_replaced(serve):
    expected = serve.text(PROMPT)
    victims = serve.stage_pids()[1:]
    for victim in victims:
        os.kill(victim, signal.SIGKILL)
    # A line that comes back at once need not have been seen without them.
    wait_until(lambda: not set(victims) & set(serve.stage_pids()), 30, "the loss was not noticed")
    serve.wait_ready()
    assert serve.text(PROMPT) == expected


def test_a_stage_is_replaced_after_the_program_was_updated(tmp_path):
    program, update = tmp_path / "paceline", tmp_path / "update"
    shutil.copy2(BINARY, program)
    shutil.copy2(BINARY, update)
    with Serve(*ARGS, program=program) as serve:
        serve.wait_ready()
        expected = serve.text(PROMPT)
        update.rename(program)
        victim = serve.stage_pids()[2]
        os.kill(victim, signal.SIGKILL)
        wait_gone([victim], 5)
        wait_until(lambda: victim not in serve.stage_pids(), 30, "the loss was not noticed")
        serve.wait_ready()
        assert serve.text(PROMPT) == expected


@pytest.mark.parametrize("stage", [1, 2])
def test_a_frozen_stage_makes_the_line_red_and_is_replaced(serve, stage):
    expected = serve.text(PROMPT)
    victim = serve.stage_pids()[stage]
    stream = Stream(serve, 1500)
    stream.wait_events(4)
    began = time.monotonic()
    os.kill(victim, signal.SIGSTOP)
    serve.wait_reason(f"stage {stage}", 5)
    stream.wait_end(5)
    assert stream.error()["code"] == "line_lost"
    # Down after a second without a heartbeat, killed after five more.
    wait_until(lambda: is_gone(victim), 15, "the frozen process still lives")
    assert time.monotonic() - began > 3, "a short pause must not cost a process"
    serve.wait_ready()
    assert victim not in serve.stage_pids()
    assert serve.text(PROMPT) == expected


def test_a_stage_that_pauses_for_a_moment_is_kept(serve):
    pids = serve.stage_pids()
    expected = serve.text(PROMPT)
    os.kill(pids[1], signal.SIGSTOP)
    serve.wait_reason("stage 1", 5)
    os.kill(pids[1], signal.SIGCONT)
    serve.wait_ready()
    assert serve.stage_pids() == pids
    assert serve.text(PROMPT) == expected


def test_a_machine_that_was_suspended_goes_on_where_it_stopped(serve):
    expected = serve.text(PROMPT, 60)
    everyone = serve.stage_pids()
    stream = Stream(serve, 60)
    stream.wait_events(4)
    for pid in everyone:
        os.kill(pid, signal.SIGSTOP)
    # Longer than a heartbeat may be late: nobody may take the pause of all for the end of one.
    threading.Event().wait(1.5)
    for pid in everyone:
        os.kill(pid, signal.SIGCONT)
    assert stream.wait_end(60) == "[DONE]", stream.events[-2:]
    text = "".join(json.loads(event)["choices"][0]["text"] for event in stream.events[:-1])
    assert text == expected
    assert serve.stage_pids() == everyone and serve.readiness() is None


def test_children_end_with_a_front_that_is_killed(serve):
    children = serve.children()
    assert len(children) == 2
    stream = Stream(serve, 1500)
    stream.wait_events(2)
    serve.signal(signal.SIGKILL)
    wait_gone(children, 5)


def test_children_end_with_a_front_that_is_killed_while_it_starts():
    with Serve(*ARGS) as serve:
        children = wait_until(lambda: serve.children(), 30, "no child was started")
        serve.signal(signal.SIGKILL)
        wait_gone(children, 5)


def test_a_front_that_is_told_to_end_lets_answers_finish_for_a_while_and_tells_the_rest():
    with Serve(*ARGS, "--grace", "3s") as serve:
        serve.wait_ready()
        children = serve.children()
        short, long = Stream(serve, 12), Stream(serve, 1900)
        short.wait_events(2)
        long.wait_events(2)
        serve.signal(signal.SIGTERM)
        serve.wait_reason("stopping", 2)
        refused = serve.http.post("/v1/completions", json={"prompt": PROMPT, "max_tokens": 1})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "not_ready")
        assert "stopping" in refused.json()["error"]["message"]
        assert serve.http.get("/health").status_code == 200
        assert short.wait_end(10) == "[DONE]"
        assert serve.wait() == 0
        wait_gone(children, 5)
        long.wait_end(5)
        assert not long.cut_off and "stopping" in long.error()["message"], long.events[-2:]
        assert len(long.events) > len(short.events)
        assert not any("panicked" in said for said in serve.lines), serve.lines


def test_a_front_that_is_told_to_end_ends_with_its_last_answer():
    with Serve(*ARGS) as serve:
        serve.wait_ready()
        stream = Stream(serve, 150)
        stream.wait_events(2)
        # A connection that nobody uses delays nothing.
        assert serve.http.get("/health").status_code == 200
        serve.signal(signal.SIGTERM)
        stream.wait_end(20)
        ended = time.monotonic()
        assert stream.text() and serve.wait() == 0
        assert time.monotonic() - ended < 5


@pytest.mark.parametrize("turn", range(20 if SOAK else 2))
def test_a_front_that_is_told_twice_to_end_ends_well_while_it_computes(turn):
    with Serve(SMOLLM2, "--stages", 2, "--threads", 1) as serve:
        serve.wait_ready()
        children = serve.children()
        # A prompt of seconds: the engines cannot be interrupted in it.
        Stream(serve, 16, PROMPT * 200)
        wait_until(lambda: serve.line()["sequences"], 10, "the request did not start")
        serve.signal(signal.SIGTERM)
        serve.wait_line("Stopping", 5)
        serve.signal(signal.SIGTERM)
        assert serve.wait(3) == 0
        wait_gone(children, 5)


def test_a_front_that_is_told_to_end_while_it_starts_ends_well():
    with Serve(*ARGS) as serve:
        children = wait_until(lambda: serve.children(), 30, "no child was started")
        serve.signal(signal.SIGTERM)
        assert serve.wait() == 0
        wait_gone(children, 5)


def test_an_interrupt_from_the_terminal_leaves_nothing_behind(serve):
    children = serve.children()
    # The front leads a process group, as a shell would have it; its children must not be in it.
    assert all(os.getpgid(child) != serve.pid for child in children)
    os.killpg(serve.pid, signal.SIGINT)
    assert serve.wait() == 0
    wait_gone(children, 5)
