"""What stages have computed outlives them on their disks, and nothing but time depends on it."""

import json
import os
import signal
import time

import pytest

from answers import cached, essence, long_text
from paceline import GEMMA, SMOLLM2, SOAK, Serve, wait_until
from prompts import SOIL, VILLAGE
from streams import Stream

MODELS = {"smollm2": SMOLLM2, "gemma3": GEMMA}
# Tokens of the shared beginning at least, and how long answers are.
SHARED, ANSWER = (2000, 24) if SOAK else (300, 8)
TAILS = ["What is soil?", "Who lives there?"] + ([f"Fix line {n} of the code." for n in range(18)] if SOAK else [])


def serve(model, folder, *more):
    """A line of two processes that keeps prefixes in a folder."""
    disk = ["--cache-disk", 1024, "--cache-dir", folder]
    return Serve(model, "--stages", 2, "--threads", 1, "--exact", "--ctx", 4096, "--parallel", 2, *disk, *more)


def prefixes(line):
    """What the line says of prefixes."""
    return line.line()["prefixes"]


def work(line, what):
    """A counter of every stage."""
    return [stage["work"][what] for stage in line.line()["stages"]]


def files(folder, ending="kv"):
    """What is kept there."""
    return sorted((folder / "prefixes").glob(f"*.{ending}"))


def ask(line, text, **more):
    """An answer that shows every bit of its logits that a client can see."""
    return line.complete(text, ANSWER, logprobs=3, **more)


def wait_work(line, what, counts):
    """Returns once each stage has told that count: counters come after the answers that they are about."""
    wait_until(lambda: work(line, what) == counts, 30, lambda: line.line())


def timed(line, text):
    """How long one token takes, in seconds."""
    start = time.monotonic()
    answer = line.complete(text, 1)
    return time.monotonic() - start, answer


def store_one(model, folder):
    """Has a line store a beginning; the beginning, its length, and what it answers to the tails without any cache."""
    with serve(model, folder) as first:
        first.wait_ready()
        shared, n_shared = long_text(first, VILLAGE + SOIL, SHARED)
        cold = [ask(first, f"{shared} {tail}", cache_prompt=False) for tail in TAILS]
        took, answer = timed(first, shared)
        assert cached(answer) == 0
        wait_until(lambda: prefixes(first)["stored"] == 1, 30, lambda: first.line())
        wait_work(first, "stored_prefixes", [1, 1])
    assert len(files(folder)) == 2, "one for each stage"
    return shared, n_shared, cold, took


@pytest.mark.parametrize("model", list(MODELS) if SOAK else ["smollm2"])
def test_a_line_that_starts_again_goes_on_from_its_disks(model, tmp_path):
    shared, n_shared, cold, cold_s = store_one(MODELS[model], tmp_path)
    for path in [tmp_path / "prefixes", *files(tmp_path), *files(tmp_path, "prompt")]:
        assert path.stat().st_mode & 0o077 == 0, "nobody else may read prompts"
    with serve(MODELS[model], tmp_path) as second:
        second.wait_ready()
        assert prefixes(second)["stored"] == 1
        warm_s, answer = timed(second, f"{shared} And?")
        assert cached(answer) >= 0.99 * n_shared, (cached(answer), n_shared)
        wait_work(second, "restored_prefixes", [1, 1])
        print(json.dumps({"cold_s": cold_s, "disk_s": warm_s, "ratio": cold_s / warm_s, "tokens": n_shared}))
        # From memory now, for everybody else.
        for tail, alone in zip(TAILS, cold):
            warm = ask(second, f"{shared} {tail}")
            assert essence(warm) == essence(alone)
            assert cached(warm) >= 0.99 * n_shared
        wait_work(second, "restored_prefixes", [1, 1])
        # A stage that is killed finds its own files again.
        second.complete("Something else.", 1)
        restored = prefixes(second)["restored_tokens"]
        victim = second.stage_pids()[1]
        os.kill(victim, signal.SIGKILL)
        wait_until(lambda: victim not in second.stage_pids(), 30, "the loss is noticed")
        second.wait_ready()
        again = ask(second, f"{shared} {TAILS[0]}")
        assert essence(again) == essence(cold[0])
        assert cached(again) >= 0.99 * n_shared
        assert prefixes(second)["restored_tokens"] > restored


def test_a_flipped_byte_costs_time_and_nothing_else(tmp_path):
    shared, n_shared, cold, _ = store_one(SMOLLM2, tmp_path)
    spoiled = files(tmp_path)[0]
    content = bytearray(spoiled.read_bytes())
    content[len(content) // 2] ^= 0x10
    spoiled.write_bytes(content)
    with serve(SMOLLM2, tmp_path) as second:
        second.wait_ready()
        answer = ask(second, f"{shared} {TAILS[0]}")
        assert essence(answer) == essence(cold[0])
        assert cached(answer) == 0, "one stage without its part is as good as none"
        wait_until(lambda: sorted(work(second, "missed_prefixes")) == [0, 1], 30, lambda: second.line())
        # What was computed again is stored again.
        wait_until(lambda: prefixes(second)["stored"] == 1, 30, lambda: second.line())
        assert spoiled not in files(tmp_path) or spoiled.read_bytes() != bytes(content)
    with serve(SMOLLM2, tmp_path) as third:
        third.wait_ready()
        answer = ask(third, f"{shared} {TAILS[1]}")
        assert essence(answer) == essence(cold[1])
        assert cached(answer) >= 0.99 * n_shared


def test_a_disk_that_takes_nothing_disables_storing_alone(tmp_path):
    folder = tmp_path / "prefixes"
    with serve(SMOLLM2, tmp_path) as line:
        line.wait_ready()
        for path in folder.iterdir():
            path.unlink()
        folder.rmdir()
        shared, n_shared = long_text(line, VILLAGE + SOIL, SHARED)
        assert cached(ask(line, shared)) == 0
        assert cached(ask(line, f"{shared} {TAILS[0]}")) >= 0.99 * n_shared, "memory serves as before"
        # Said once a stage has tried; without its part the line never counts the prefix.
        line.wait_line("nothing more is stored", 30)
        assert prefixes(line)["stored"] == 0


def test_a_prefix_that_is_gone_when_an_interrupted_answer_would_go_on_from_it_costs_time_only(tmp_path):
    shared, n_shared, _, _ = store_one(SMOLLM2, tmp_path)
    with serve(SMOLLM2, tmp_path) as second:
        second.wait_ready()
        prompt, more = f"{shared} {TAILS[0]}", {"logprobs": 3}
        # So many tokens that the answer outlasts what happens beside it.
        expected = Stream(second, 400, prompt, cache_prompt=False, **more)
        expected.wait_end(120)
        stream = Stream(second, 400, prompt, **more)
        stream.wait_text(20)
        wait_work(second, "restored_prefixes", [1, 1])
        for path in files(tmp_path):
            path.write_bytes(b"nothing of worth")
        victim = second.stage_pids()[1]
        assert stream.ended_at is None, "over before the stage was lost"
        os.kill(victim, signal.SIGKILL)
        stream.wait_end(120)
        assert stream.text() == expected.text()
        wait_until(lambda: max(work(second, "missed_prefixes")) > 0, 30, lambda: second.line())
