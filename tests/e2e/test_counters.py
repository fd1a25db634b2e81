"""The counters of a line that guesses: in an answer, in `/v1/line` and in `/metrics`, and that they add up."""

import re

from paceline import SMOLLM2, Serve, wait_until

CAT = "The cat sat on the mat. " * 8
STAGES = 3


def settled(serve):
    """`/v1/line` once every stage has told what it counted: a stage tells when its last sequence has ended."""

    def quiet():
        status = serve.line()
        work = [stage["work"] for stage in status["stages"]]
        # What the tail judged, every stage has computed; and rows that were not for nothing, all of them have computed.
        is_judged = min(stage["windows"] for stage in work) >= max(status["windows"]["live"], 1)
        useful = {stage["rows"] - stage["wasted_rows"] for stage in work}
        return status if not status["sequences"] and is_judged and len(useful) == 1 else None

    return wait_until(quiet, 20, lambda: f"the counters do not settle: {serve.line()}")


def check_sources(sources, n_proposed, n_accepted):
    """What the sources say adds up, over all of them and over the distances of each."""
    for source in sources.values():
        for kind in ("proposed", "accepted"):
            assert source[kind] == sum(depth[kind] for depth in source["by_depth"]), source
        assert all(depth["accepted"] <= depth["proposed"] for depth in source["by_depth"]), source
    assert sum(source["proposed"] for source in sources.values()) == n_proposed
    assert sum(source["accepted"] for source in sources.values()) == n_accepted


def check_windows(windows, n_in_flight):
    """Every window that was sent was answered, made stale, or is under way."""
    assert windows["sent"] == windows["live"] + windows["stale"] + n_in_flight, windows
    assert 0 < windows["in_flight_mean"] <= windows["in_flight_max"], windows
    assert windows["epochs"] <= windows["live"], windows


def metrics(serve):
    """Every sample by name and labels."""
    text = serve.http.get("/metrics").text
    return {name: float(value) for name, value in re.findall(r"^([^#\s]\S*) (\S+)$", text, re.MULTILINE)}


def test_counters_of_a_speculating_line_add_up():
    guessing = ("--link", "delay=2ms", "--speculate", "suffix,predicted", "--width", 2, "--depth", 4)
    with Serve(SMOLLM2, "--stages", STAGES, "--threads", 1, *guessing) as serve:
        serve.wait_ready()
        assert serve.line()["windows"]["sent"] == 0, "the front's own probes are no guesses"
        timings = serve.complete(CAT, 48)["timings"]
        assert timings["draft_n"] >= timings["draft_n_accepted"] > 0, timings
        check_windows(timings["windows"], 0)
        check_sources(timings["sources"], timings["draft_n"], timings["draft_n_accepted"])
        assert timings["windows"]["in_flight_max"] > 1, timings
        assert 0 < timings["ideal_ms"] <= timings["loop_ms"], timings
        # What a client expects is a source too, and one that stops in the middle leaves windows under way.
        expected = {"type": "content", "content": " The dog lay on the rug. The cat sat on the mat."}
        serve.complete("A short story.", 24, prediction=expected)
        stopped = serve.complete(CAT, 48, stop=["mat"])["timings"]
        check_windows(stopped["windows"], 0)

        status = settled(serve)
        check_windows(status["windows"], status["windows_in_flight"])
        assert status["windows_in_flight"] == 0 and status["windows"]["sent"] > 0, status
        assert status["windows"]["stale"] > 0 and 0 < status["stale_share"] < 1, status
        assert {"suffix", "predicted"} <= set(status["sources"]), status
        assert all(0 <= share <= 1 for share in status["agreement"].values()) and status["agreement"], status
        for source in status["sources"].values():
            assert source["accepted"] <= source["proposed"], source
        for stage in status["stages"]:
            work = stage["work"]
            assert work["calls"] > 0 and work["windows"] > 0 and work["chunks"] > 0, stage
            assert 0 < work["wasted_rows"] < work["rows"] and 0 < work["wasted_share"] < 1, stage
            assert status["windows"]["live"] <= work["windows"], status
            assert work["dropped_windows"] <= status["windows"]["stale"], status
        # The front's own probes are windows too, for the stages. What one of them drops, the next never sees.
        for stage, after in zip(status["stages"], status["stages"][1:]):
            assert after["work"]["windows"] + after["work"]["dropped_windows"] <= stage["work"]["windows"], status

        seen = metrics(serve)
        label = lambda at: f'stage="{at}",address="{status["stages"][at]["address"]}"'
        for at, stage in enumerate(status["stages"]):
            for name in ("rows", "wasted_rows", "windows", "dropped_windows", "dropped_chunks"):
                assert seen[f"paceline_stage_{name}_total{{{label(at)}}}"] == stage["work"][name], (name, seen)
            assert seen[f"paceline_stage_batch_rows{{{label(at)}}}"] >= 1
        assert seen["paceline_windows_total"] == seen["paceline_live_windows_total"] + seen["paceline_stale_windows_total"]
        assert 0 <= seen['paceline_agreement{source="suffix"}'] <= 1
        assert seen['paceline_source_guesses_total{source="suffix"}'] == status["sources"]["suffix"]["proposed"]


def test_an_idle_line_keeps_its_counters_still():
    with Serve(SMOLLM2, "--stages", 2, "--threads", 1) as serve:
        serve.wait_ready()
        serve.complete("A", 4)
        status = settled(serve)
        work = [stage["work"] for stage in status["stages"]]
        # Nothing was guessed, so nothing was for nothing.
        assert [stage["wasted_rows"] for stage in work] == [0, 0], work
        assert status["windows"]["stale"] == 0 and status["sources"] == {}, status
        assert status["windows"]["in_flight_max"] == 1 and status["windows"]["in_flight_mean"] == 1, status
