"""The API as bare HTTP: states of the line, envelopes of errors, garbage."""

import pytest
from machines import Cluster

from paceline import SMOLLM2, Serve

CHAT = "/v1/chat/completions"


def error(answer, status, code):
    """The error in an answer, which must be an OpenAI envelope."""
    assert answer.status_code == status, answer.text
    body = answer.json()["error"]
    assert set(body) >= {"message", "type", "param", "code"} and body["code"] == code, body
    assert body["message"] and "\n" not in body["message"], body
    return body


def test_health_ready_and_line_say_how_it_is(line):
    assert line.http.get("/health").json() == {"status": "ok"}
    assert line.http.get("/ready").json() == {"status": "ready"}
    status = line.line()
    assert set(status) == {
        "stages",
        "given_stages",
        "spares",
        "sequences",
        "windows_in_flight",
        "windows",
        "loop_ms",
        "ideal_ms",
        "sources",
        "agreement",
        "tokens",
        "stale_share",
        "queue",
        "preempted",
        "resumed",
        "prefixes",
        "mode",
    }
    stages = status["stages"]
    assert [stage["layers"][0] for stage in stages] == [0] + [stage["layers"][1] for stage in stages[:-1]]
    assert stages[-1]["layers"][1] == 30
    assert [stage["state"] for stage in stages] == ["ready"] * 3
    assert status["given_stages"] == 3
    assert [stage["standby"] for stage in stages] == ["none"] * 3 and status["spares"] == []
    assert stages[0]["pid"] == line.pid and stages[0]["address"] == "local"
    assert sorted(stage["pid"] for stage in stages[1:]) == sorted(line.children())
    for stage in stages:
        assert 0 <= stage["busy"] <= 1
    for stage in stages[1:]:
        assert stage["address"].startswith("127.0.0.1:") and stage["rtt_ms"] > 0


def test_timings_tell_where_the_time_went(line):
    timings = line.complete("Once upon a time", 8)["timings"]
    assert timings["predicted_n"] == 8 and timings["prompt_n"] > 0
    for name in ("prompt_ms", "prompt_per_second", "chunk_ms", "predicted_ms", "predicted_per_second", "loop_ms"):
        assert timings[name] > 0, name
    assert timings["draft_n"] == timings["draft_n_accepted"] == 0
    assert len(timings["stages"]) == 3 and all(stage["compute_ms"] > 0 for stage in timings["stages"])
    assert timings["windows"]["sent"] >= 8


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b'"text"',
        b"\xff\xfe\x00",
        b"[" * 100_000,
        b'{"messages": [' + b'{"role":' * 5000,
        b'{"messages":[{"role":"user","content":"\\ud800"}]}',
        bytes(range(256)) * 64,
    ],
    ids=lambda body: f"{len(body)}-bytes-{body[:8]!r}",
)
def test_a_body_that_is_no_json_object_is_refused(line, body):
    error(line.http.post(CHAT, content=body, headers={"content-type": "application/json"}), 400, "invalid_json")


def test_missing_fields_are_named(line):
    assert error(line.http.post(CHAT, json={}), 400, "missing_required_parameter")["param"] == "messages"
    answer = line.http.post("/v1/completions", json={})
    assert error(answer, 400, "missing_required_parameter")["param"] == "prompt"


def test_what_is_not_there_is_said_so(line):
    error(line.http.get("/v1/nothing"), 404, "unknown_url")
    error(line.http.get(CHAT), 405, "method_not_allowed")
    error(line.http.post("/v1/models", json={}), 405, "method_not_allowed")
    error(line.http.get("/v1/models/other"), 404, "model_not_found")


def test_a_body_that_is_too_large_is_refused(line):
    answer = line.http.post(CHAT, content=b" " * (17 << 20), headers={"content-type": "application/json"})
    error(answer, 413, "request_too_large")


def test_a_line_that_is_not_ready_says_what_it_waits_for(tmp_path):
    cluster = Cluster(tmp_path)
    # Nobody listens on port 1.
    with Serve(SMOLLM2, "--front-only", "--stage", "127.0.0.1:1", "--cluster", cluster.front) as serve:
        assert serve.http.get("/health").status_code == 200
        serve.wait_reason("stage 0")
        answers = [serve.http.get("/ready"), serve.http.get("/v1/models"), serve.http.post(CHAT, json={})]
        for answer in answers:
            body = error(answer, 503, "not_ready")
            assert body["type"] == "service_unavailable_error" and body["reason"] in body["message"], body
            assert 0 <= body["progress"] <= 1 and answer.headers["retry-after"]
        (stage,) = serve.line()["stages"]
        assert stage["state"] == "down" and stage["reason"] and stage["address"] == "127.0.0.1:1", stage
        assert "pid" not in stage
