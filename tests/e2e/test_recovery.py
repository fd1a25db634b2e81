"""What cannot be made good in time is told, and everything comes back by itself: a line without spares, a front that is
killed, rows that get lost on their way."""

import signal
import time

import pytest

from chaos import Machines, chance
from machines import assert_idle
from paceline import SOAK, Serve
from streams import Stream
from toy import write

# How long requests wait for a line here, and how soon after that they must be told.
LIMIT_S, TOLD_S = 2, 2 if SOAK else 4
RESTARTS = 50 if SOAK else 4
# Slow links, so that answers take seconds, also the rest of them: four hops a token.
SLOW = ("--link", "delay=20ms")
ARGS = ("--exact", "--parallel", 4, "--ctx", 512, *SLOW)
PROMPT = "The line is broken and "
TOKENS = 100
# So that an answer goes on while others wait for a line.
LONGER = 200


@pytest.fixture
def model(tmp_path):
    folder = tmp_path / "models"
    folder.mkdir()
    return write(folder / "toy.gguf")


def undisturbed(serve, prompt=PROMPT):
    stream = Stream(serve, TOKENS, prompt)
    stream.wait_end(60)
    return stream.text()


def test_a_stage_that_stays_away_is_told_in_time_and_its_return_heals_the_line(model, tmp_path):
    struck = Machines(tmp_path, model, waits_s=LIMIT_S, args=ARGS, stage_args=SLOW)
    with struck as line, Serve(model, "--stages", 2, "--threads", 1, *ARGS) as other:
        serve = line.serve
        other.wait_ready()
        whole = Stream(other, LONGER, PROMPT)
        expected = undisturbed(serve)
        whole.wait_end(60)
        beside = Stream(other, LONGER, PROMPT)
        streams = [Stream(serve, TOKENS, PROMPT) for _ in range(3)]
        for stream in [beside, *streams]:
            stream.wait_events(5)
        (lost,) = chance("stays away").sample(line.seated(), 1)
        seat = line.seated().index(lost)
        killed = time.monotonic()
        line.kill([lost])
        for stream in streams:
            stream.wait_end(LIMIT_S + TOLD_S)
            assert stream.ended_at > killed, "over before the stage was lost"
            error = stream.error()
            assert (error["type"], error["code"]) == ("service_unavailable_error", "line_lost"), error
            assert f"stage {seat} is away" in error["message"], error
            assert LIMIT_S * 0.9 < stream.ended_at - killed, "a line is waited for"
        # Another line on this machine has seen nothing of it.
        beside.wait_end(60)
        assert beside.ended_at > killed, "over before the stage was lost"
        assert (beside.text(), other.line()["resumed"]) == (whole.text(), 0)
        assert serve.readiness() and serve.http.get("/health").status_code == 200
        refused = serve.http.post("/v1/completions", json={"prompt": PROMPT, "max_tokens": 1})
        assert (refused.status_code, refused.json()["error"]["code"]) == (503, "not_ready"), refused.text
        line.start(lost)
        serve.wait_ready()
        assert undisturbed(serve) == expected


def test_machines_that_come_and_go_stay_one_member_each(model, tmp_path):
    with Machines(tmp_path, model, args=ARGS) as line:
        serve = line.serve
        everybody = line.seated()
        addresses = lambda: [stage["address"] for stage in serve.line()["stages"]]
        before = addresses()
        for turn in range(RESTARTS):
            lost = everybody[turn % len(everybody)]
            line.kill([lost])
            serve.wait_reason(f"stage {everybody.index(lost)}")
            if turn == 0:
                assert_idle(serve.pid, *(line.running[at].pid for at in everybody if at != lost))
            line.start(lost)
            serve.wait_ready()
            assert (addresses(), line.seated(), serve.line()["spares"]) == (before, everybody, []), turn
        assert undisturbed(serve)


def test_a_front_that_is_killed_leaves_stages_to_the_next_one(model, tmp_path):
    with Machines(tmp_path, model, args=ARGS, stage_args=SLOW) as line:
        expected = undisturbed(line.serve)
        streams = [Stream(line.serve, TOKENS, PROMPT) for _ in range(3)]
        for stream in streams:
            stream.wait_events(2)
        line.serve.signal(signal.SIGKILL)
        assert line.serve.wait() == -signal.SIGKILL
        for stream in streams:
            stream.wait_end(10)
            assert stream.cut_off, "over before the front was killed"
        with Serve(*line.front) as second:
            second.wait_ready()
            assert all(running.process.poll() is None for running in line.running), "the same stages"
            assert second.line()["sequences"] == []
            # As many at once as there is memory for: nothing of the first front's is left.
            again = [Stream(second, TOKENS, PROMPT) for _ in range(4)]
            for stream in again:
                stream.wait_end(60)
            assert [stream.text() for stream in again] == [expected] * 4


def test_rows_that_get_lost_on_the_way_have_a_spare_take_over(model, tmp_path):
    with Machines(tmp_path, model, spares=1, fixed=1, wires=True, args=ARGS, stage_args=SLOW) as line:
        serve = line.serve
        serve.wait_line(r"Nothing stands by for stages 0, 2\.", 10)
        expected = undisturbed(serve)
        first, second, _ = line.seated()
        stream = Stream(serve, TOKENS, PROMPT)
        stream.wait_events(2)
        # Heartbeats have connections of their own, which the front made.
        line.wires[second].swallow(line.running[first].pid)
        assert stream.ended_at is None, "over before anything was lost"
        stream.wait_end(120)
        assert stream.text() == expected
        assert second not in line.seated(), serve.line()
