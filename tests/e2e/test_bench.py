"""`paceline bench`: it serves, asks, and says what came of it."""

import hashlib
import json

from paceline import SMOLLM2, complaint, run

ROW = [
    "workload", "stages", "link", "speculate", "width", "depth", "exact", "concurrency", "requests", "ttft_ms",
    "tpot_ms", "decode_tok_s", "total_tok_s", "accepted_per_window", "windows_in_flight", "stale_share", "stage_busy",
    "text_sha256",
]


def test_a_benchmark_compares_ways_to_guess_and_their_texts(tmp_path):
    out = tmp_path / "out.json"
    done = run(
        "bench", SMOLLM2, "--stages", 2, "--threads", 1, "--workload", "copy", "--requests", 2, "--max-tokens", 32,
        "--speculate", "off,auto", "--exact", "--link", "delay=2ms", "--json", out, "--plot", tmp_path,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads(out.read_text())
    off, auto = result["rows"]
    for row, speculate in ((off, "off"), (auto, "auto")):
        assert list(row)[: len(ROW)] == ROW
        assert (row["workload"], row["stages"], row["link"], row["speculate"]) == ("copy", 2, "delay=2ms", speculate)
        assert (row["exact"], row["concurrency"], row["requests"], row["tokens"]) == (True, 1, 2, 32)
        assert len(row["stage_busy"]) == 2 and row["ttft_ms"] > 0 and row["decode_tok_s"] > 0
        assert row["text_sha256"] != hashlib.sha256(b"").hexdigest()
    assert off["text_sha256"] == auto["text_sha256"]
    assert off["accepted_per_window"] == 0 and auto["accepted_per_window"] > 0
    (comparison,) = result["comparisons"]
    assert (comparison["same_texts"], comparison["speed"]["n"]) == (2, 2)
    assert "copy" in done.stdout and "interval" in done.stdout
    picture = (tmp_path / "tok_s-2-stages.svg").read_text()
    assert picture.startswith("<svg") and "auto" in picture


def test_a_server_that_runs_is_measured_too(line, tmp_path):
    out = tmp_path / "out.json"
    done = run("bench", "--url", line.url, "--workload", "chat", "--requests", 2, "--concurrency", 2,
               "--max-tokens", 16, "--json", out)
    assert done.returncode == 0, done.stderr
    (row,) = json.loads(out.read_text())["rows"]
    assert (row["speculate"], row["stages"], row["concurrency"], row["requests"]) == ("server", None, 2, 2)
    assert row["total_tok_s"] > 0


def test_what_cannot_be_measured_is_said_in_a_sentence(tmp_path):
    assert "could not reach 127.0.0.1:1" in complaint(run("bench", "--url", "http://127.0.0.1:1"), 1)
    nothing = run("bench", tmp_path / "none.gguf", "--requests", 1)
    assert "none.gguf" in complaint(nothing, 1)
    assert "name a model" in complaint(run("bench"), 2)
