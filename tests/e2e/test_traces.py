"""Traces and logs for programs: one trace per request in which every stage's time adds up, and what must not be in it."""

import json
import os

import pytest

from collector import Collector
from machines import Cluster, stage
from paceline import SMOLLM2, Serve, free_port, wait_until

STAGES = 3
# Every link takes so long, one way: two between stages, and the way back.
DELAY_S = 0.005
# A word that nothing else says.
SECRET = "zebra"
# Long enough for two pieces, and easy to guess on.
PROMPT = f"The {SECRET} sat on the mat. " * 90
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"


def near(a, b):
    """Within 5 %."""
    return abs(a - b) <= 0.05 * max(a, b)


def covered(spans):
    """Seconds in which at least one of the spans was under way."""
    total, until = 0, 0
    for start, end in sorted((span.start, span.end) for span in spans):
        total += max(end - max(start, until), 0)
        until = max(until, end)
    return total / 1e9


def check_way_round(piece, legs):
    """What a piece of work took is what its links and stages took, each of them once."""
    assert [leg.name for leg in legs if leg.name.startswith("stage")] == [f"stage {at}" for at in range(STAGES)], legs
    for leg in legs:
        if leg.name.startswith("stage"):
            at = leg.name.split()[1]
            assert leg.resource["service.name"] == "paceline-stage", leg.resource
            assert leg.resource["service.instance.id"] == f"stage-{at}" and leg.resource["paceline.stage.layers"], leg.resource
            inside = leg.attributes["paceline.queue_us"] + leg.attributes["paceline.compute_us"]
            assert near(leg.took, inside / 1e6) and leg.attributes["paceline.batch_rows"] >= 1, leg
        assert piece.start <= leg.start <= leg.end <= piece.end, (piece, leg)
    assert near(sum(leg.took for leg in legs), piece.took), (piece, legs)
    links = [leg for leg in legs if leg.name.startswith("link")]
    assert [link.name for link in links] == ["link to stage 1", "link to stage 2", "link to front"], links
    assert sum(link.took for link in links) >= 0.95 * len(links) * DELAY_S, links


def check_trace(spans, timings):
    """One root with all that belongs to it, and durations that add up: among themselves and with the answer's own figures."""
    inside = lambda parent: [span for span in spans if span.parent == parent.id]
    named = lambda parent, *names: [span for span in inside(parent) if span.name in names]
    took = lambda parent, *names: sum(span.took for span in named(parent, *names))
    root, = [span for span in spans if not span.parent]
    ids = {span.id for span in spans}
    assert len(ids) == len(spans) and all(span.parent in ids for span in spans if span is not root)
    assert all(root.start <= span.start <= span.end <= root.end for span in spans)
    assert near(took(root, "prepare", "generate", "deliver"), root.took), inside(root)
    generate, = named(root, "generate")
    assert near(took(generate, "queue", "prefill", "decode"), generate.took), inside(generate)
    (prefill,), (decode,) = named(generate, "prefill"), named(generate, "decode")
    assert near(prefill.took, timings["prompt_ms"] / 1e3) and near(decode.took, timings["predicted_ms"] / 1e3), timings
    windows = named(prefill, "window") + named(decode, "window")
    chunks = named(prefill, "chunk")
    assert prefill.attributes["paceline.cached_tokens"] == timings["cache_n"], (prefill, timings)
    assert len(chunks) >= (1 if timings["cache_n"] else 2) and near(covered(chunks + named(prefill, "window")), prefill.took), (chunks, prefill)
    late = [window for window in windows if window.end > decode.start]
    assert covered(late) >= 0.95 * decode.took, (covered(late), decode)
    answered = [window for window in windows if window.attributes["paceline.outcome"] == "answered"]
    stale = [window for window in windows if window.attributes["paceline.outcome"] == "stale"]
    assert len(answered) == timings["windows"]["live"] and len(stale) == timings["windows"]["stale"], timings
    assert len(answered) + len(stale) == len(windows) == timings["windows"]["sent"], timings
    for piece in chunks + answered:
        check_way_round(piece, sorted(inside(piece), key=lambda leg: leg.start))
    assert not any(inside(window) for window in stale)
    for at in range(STAGES):
        computed = [took(leg, "compute") for window in answered for leg in named(window, f"stage {at}")]
        assert near(sum(computed), timings["stages"][at]["compute_ms"] / 1e3), (at, timings["stages"])
    assert generate.attributes["gen_ai.usage.output_tokens"] == sum(w.attributes["paceline.tokens"] for w in answered)
    return root


@pytest.mark.parametrize("protocol", ["http/protobuf", "http/json"])
def test_a_trace_has_every_stage_in_it_and_adds_up(protocol):
    guessing = ("--link", f"delay={DELAY_S * 1e3:.0f}ms", "--speculate", "suffix", "--width", 2, "--depth", 4)
    logging = ("--log-format", "json", "--log", "debug")
    with Collector() as collector:
        env = {**os.environ, "OTEL_EXPORTER_OTLP_PROTOCOL": protocol}
        args = ("--stages", STAGES, "--threads", 1, "--otlp", collector.url, *guessing, *logging)
        with Serve(SMOLLM2, *args, env=env) as serve:
            serve.wait_ready()
            answers = [serve.complete(PROMPT, 48), serve.complete(PROMPT + "And then", 24)]
            collector.wait_roots(2)
        assert all(("json" in headers["content-type"]) == ("json" in protocol) for headers in collector.headers)
        for answer, trace in zip(answers, [root.trace for root in collector.roots()], strict=True):
            spans = [span for span in collector.spans if span.trace == trace]
            root = check_trace(spans, answer["timings"])
            assert root.name == "POST /v1/completions" and root.status == {} and root.flags & 1
            assert root.attributes["http.response.status_code"] == 200
            assert root.resource["service.name"] == "paceline" and root.attributes["gen_ai.request.model"]
        # Nothing of what was said: in no trace, and in no line of the front or its children.
        assert not any(SECRET.encode() in body for body in collector.bodies)
        said = [json.loads(line) for line in serve.lines]
        assert not any(SECRET in line for line in serve.lines)
        assert any("is starting on" in line.get("message", "") for line in said), said[:3]
        traced = {line["span"].get("trace_id") for line in said if line.get("span", {}).get("name") == "http"}
        assert {root.trace for root in collector.roots()} <= traced, traced


def test_a_stage_logs_objects_too(tmp_path):
    cluster = Cluster(tmp_path)
    with stage(cluster.enroll("b"), free_port(), "--log-format", "json", "-vv") as process:
        pass
    said = [json.loads(line) for line in process.lines]
    assert said and all({"timestamp", "level", "target"} <= set(line) for line in said), said


def traceparent(flags):
    """A caller's header."""
    return {"traceparent": f"00-{TRACE}-{PARENT}-{flags}", "tracestate": "vendor=1"}


def ask(serve, **headers):
    """Four tokens."""
    body = {"prompt": "A", "max_tokens": 4, "ignore_eos": True}
    answer = serve.http.post("/v1/completions", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    return answer


def test_callers_are_joined_and_what_is_not_sampled_is_not_sent():
    with Collector() as collector:
        standard = {
            "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
            "OTEL_EXPORTER_OTLP_PROTOCOL": "http/json",
            "OTEL_EXPORTER_OTLP_HEADERS": "authorization=Bearer%20secret",
            "OTEL_TRACES_SAMPLER": "parentbased_always_off",
            "OTEL_SERVICE_NAME": "llm",
            "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=lab",
        }
        with Serve(SMOLLM2, "--threads", 1, env={**os.environ, **standard}) as serve:
            serve.wait_ready()
            ask(serve)
            ask(serve, **traceparent("00"))
            ask(serve, traceparent="00-nonsense")
            ask(serve, **traceparent("01"))
            serve.signal(15)
            assert serve.wait() == 0
        # What is left is sent at the end, so nothing else is to come.
        root, = collector.roots()
        assert (root.trace, root.parent, root.state) == (TRACE, PARENT, "vendor=1") and root.flags == 0x301, root
        assert {span.trace for span in collector.spans} == {TRACE}
        assert root.resource["service.name"] == "llm" and root.resource["deployment.environment.name"] == "lab"
        headers, = collector.headers
        assert headers["content-type"] == "application/json" and headers["authorization"] == "Bearer secret"


@pytest.mark.parametrize("share", ["0", "1"])
def test_a_share_of_requests_is_traced(share):
    with Collector() as collector, Serve(
        SMOLLM2, "--threads", 1, "--otlp", collector.url, "--otlp-sample", share, "--otlp-content"
    ) as serve:
        serve.wait_ready()
        serve.complete(f"A {SECRET}", 4)
        serve.signal(15)
        assert serve.wait() == 0
        assert len(collector.roots()) == int(share)
        assert all(f"A {SECRET}" in root.attributes["paceline.prompts"][0] for root in collector.roots())


def test_a_collector_that_is_away_costs_nobody_an_answer():
    port = free_port()
    with Serve(SMOLLM2, "--threads", 1, "-v", "--otlp", f"http://127.0.0.1:{port}") as serve:
        serve.wait_ready()
        for _ in range(3):
            ask(serve)
        serve.wait_line("traces do not reach", 20)
        ask(serve)
        with Collector(port) as collector:
            # Some were given up in the meantime, and those are not missed by anybody.
            wait_until(lambda: ask(serve) and collector.roots(), 30, "no trace reaches a collector that came later")
            serve.wait_line("traces reach .* again", 20)
            # Asked while it is still there: once it is gone, what is on its way fails again and is told again.
            assert sum("traces do not reach" in line for line in serve.lines) == 1, serve.lines
