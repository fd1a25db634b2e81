"""Who waits for a place, for how long, and who goes first; how keys and values are kept."""

import pytest
from streams import PROMPT, Stream

from paceline import SMOLLM2, Serve, wait_until

# Tokens that take several times as long as anybody waits, and how long that is.
LONG, PATIENCE_S = 700, 2
EXACT = ("--threads", 1, "--exact")


def test_who_waits_too_long_is_told_and_who_is_urgent_need_not():
    more = ("--stages", 2, "--parallel", 1, "--ctx", 1024, "--queue-timeout", f"{PATIENCE_S}s")
    with Serve(SMOLLM2, *more, *EXACT) as serve:
        serve.wait_ready()
        long = Stream(serve, LONG)
        long.wait_events(3)
        patient = {"prompt": "The history of bread", "max_tokens": 8, "temperature": 0, "ignore_eos": True}
        refused = serve.http.post("/v1/completions", json=patient)
        assert refused.status_code == 429, refused.text
        assert refused.json()["error"]["code"] == "queue_timeout" and int(refused.headers["retry-after"]) >= 1
        assert serve.line()["sequences"], "the long answer was over before anybody had waited long enough"

        urgent = serve.text(patient["prompt"], 8, priority=-1)
        assert long.ended_at is None, "the long answer was over before the urgent one"
        wait_until(lambda: serve.line()["preempted"] == 1, 5, serve.line)
        long.wait_end(120)
        wait_until(lambda: serve.line()["sequences"] == [], 5, serve.line)
        assert serve.line()["resumed"] == 1
        # Neither hears anything of the other in what it is told.
        assert urgent == serve.text(patient["prompt"], 8)
        assert long.text() == serve.text(PROMPT, LONG)


@pytest.mark.parametrize("kv, bytes_of_32", [("q8_0", 34), ("q4_0", 18)])
def test_keys_and_values_of_fewer_bits_say_the_same_on_any_line(kv, bytes_of_32):
    prompts = ["Once upon a time", "1, 2, 3, 4, 1, 2, 3, 4, 1, 2, 3,"]
    guesses = ("--speculate", "suffix", "--width", 3, "--depth", 2)
    said = []
    for more in [("--stages", 1), ("--stages", 3, *guesses)]:
        with Serve(SMOLLM2, "--ctx", 256, "--kv-type", kv, *EXACT, *more) as serve:
            serve.wait_ready()
            said.append([serve.text(prompt, 32) for prompt in prompts])
            # Four sequences of 256 positions, keys and values of 3 heads of 64 in 30 layers.
            values = 4 * 256 * 2 * 3 * 64 * 30
            assert sum(stage["kv_bytes"] for stage in serve.line()["stages"]) == values // 32 * bytes_of_32
    assert said[0] == said[1]
