"""Slow is not dead, and what is alive may hang: an engine stands still while its process answers heartbeats all the while."""

import time
import types

import pytest

from paceline import SMOLLM2, SOAK, Serve, wait_until
from streams import Stream
from threads import Halted

ARGS = ("--threads", 1, "--exact", "--ctx", 512)
TOKENS = 80
# How long a stage may compute and must not be given up.
SLOW_S = 30 if SOAK else 20
# `/ready` tells within this what an idle line's stages have come to.
RED_S = GREEN_S = 5
# How long a line may be silent here, and until that is noticed on a machine that is busy with other things.
SILENT_S, NOTICED_S = 3, 10


def undisturbed(serve):
    stream = Stream(serve, TOKENS)
    stream.wait_end(60)
    return stream.text()


@pytest.fixture(scope="module", autouse=True)
def slow():
    """A line one of whose stages stands still in the middle of an answer while other things are tested; since when."""
    with Serve(SMOLLM2, "--stages", 2, *ARGS) as serve:
        serve.wait_ready()
        expected, stages = undisturbed(serve), serve.stage_pids()
        stream = Stream(serve, TOKENS)
        stream.wait_events(4)
        with Halted(stages[1]) as halted:
            yield types.SimpleNamespace(
                serve=serve, expected=expected, stages=stages, stream=stream, halted=halted, since=time.monotonic()
            )


def assert_noticed(serve, stream, halted_at):
    """The line is given up once it was silent for as long as it may be, and is not ready then."""
    lost = lambda: next((at for said, at in zip(serve.lines, serve.times) if "the line is lost" in said), None)
    at = wait_until(lost, SILENT_S + NOTICED_S, lambda: serve.lines)
    assert SILENT_S - 1 < at - halted_at < SILENT_S + NOTICED_S / 2, at - halted_at
    assert serve.readiness() is not None and stream.ended_at is None


def test_a_stage_that_finishes_nothing_is_replaced_by_a_spare_and_the_answer_goes_on():
    more = ("--stages", 2, "--spares", 1, "--progress-timeout", f"{SILENT_S}s")
    with Serve(SMOLLM2, *more, *ARGS) as serve:
        serve.wait_ready()
        wait_until(lambda: serve.line()["stages"][1]["standby"] == "warm", 60, serve.line)
        expected, spare = undisturbed(serve), serve.line()["spares"][0]["pid"]
        stream = Stream(serve, TOKENS)
        stream.wait_events(4)
        with Halted(serve.stage_pids()[1]):
            assert_noticed(serve, stream, time.monotonic())
            stream.wait_end(60)
            assert stream.text() == expected
            assert serve.stage_pids()[1] == spare and serve.line()["resumed"] == 1
            serve.wait_ready()


def test_a_stage_that_finishes_nothing_is_started_again_where_nothing_stands_by():
    with Serve(SMOLLM2, "--stages", 2, "--progress-timeout", f"{SILENT_S}s", *ARGS) as serve:
        serve.wait_ready()
        expected, halted = undisturbed(serve), serve.stage_pids()[1]
        stream = Stream(serve, TOKENS)
        stream.wait_events(4)
        with Halted(halted):
            assert_noticed(serve, stream, time.monotonic())
            stream.wait_end(60)
            assert stream.text() == expected
            assert halted not in serve.stage_pids()
            serve.wait_ready()


def test_an_idle_line_is_red_within_five_seconds_of_a_stage_that_hangs_and_green_again_as_soon():
    with Serve(SMOLLM2, "--stages", 2, *ARGS) as serve:
        serve.wait_ready()
        expected, pids = undisturbed(serve), serve.stage_pids()
        for stage in (1, 0) if SOAK else (1,):
            with Halted(pids[stage]):
                halted = time.monotonic()
                serve.wait_reason("no token has passed", RED_S)
                print(f"stage {stage}: red after {time.monotonic() - halted:.2f} s")
            serve.wait_ready(GREEN_S)
        assert serve.stage_pids() == pids and undisturbed(serve) == expected


def test_a_stage_that_computes_for_long_is_waited_for(slow):
    """The last one: the others have run meanwhile."""
    assert slow.serve.readiness() is None, "slow is not dead"
    wait_until(lambda: time.monotonic() - slow.since > SLOW_S, SLOW_S, "time stands still")
    assert slow.serve.readiness() is None and slow.stream.ended_at is None
    slow.halted.go_on()
    slow.stream.wait_end(60)
    assert slow.stream.text() == slow.expected and slow.stream.longest_pause() > SLOW_S - 1
    assert (slow.serve.line()["resumed"], slow.serve.stage_pids()) == (0, slow.stages)
    assert not any("the line is lost" in said for said in slow.serve.lines), slow.serve.lines
