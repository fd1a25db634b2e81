"""The choices of one request compute its prompt once, and each says what it would have said alone."""

from concurrent.futures import ThreadPoolExecutor

from paceline import SMOLLM2, Serve, wait_until
from prompts import SOIL, VILLAGE

N, ANSWER = 3, 8
PROMPT = VILLAGE + SOIL
SAMPLING = {"temperature": 0.9, "seed": 7, "logprobs": 2}


def rows(line, more_than=0):
    """Rows that every stage has computed, once all have told of the same and of more than so many."""
    told = lambda: [stage["work"]["rows"] for stage in line.line()["stages"]]
    wait_until(lambda: min(told()) > more_than and len(set(told())) == 1, 30, told)
    return told()[0]


def essence(choice):
    return choice["text"], choice["logprobs"], choice["finish_reason"]


def lines(*more):
    return Serve(SMOLLM2, "--stages", 2, "--threads", 1, "--exact", "--ctx", 1024, *more)


def test_choices_share_their_prompt():
    with lines("--parallel", N) as line:
        line.wait_ready()
        before = rows(line)
        together = line.complete(PROMPT, ANSWER, n=N, **SAMPLING)
        n_prompt = together["usage"]["prompt_tokens"]
        assert n_prompt > 80
        # The line may look meanwhile whether a token still passes.
        assert rows(line, before + n_prompt - 1) <= before + n_prompt + N * ANSWER + 8, "the prompt once, and a row for each token"
        assert line.line()["prefixes"]["shared_tokens"] == (N - 1) * (n_prompt - 1)
        usage = together["usage"]
        assert usage["completion_tokens"] == N * ANSWER
        assert usage["prompt_tokens_details"]["cached_tokens"] == 0, "it was computed for this request"
        # Each alone: a choice's noise is keyed by its index, so more choices only add to fewer.
        for n in (1, N):
            alone = line.complete(PROMPT, ANSWER, n=n, cache_prompt=False, **SAMPLING)
            said = [essence(choice) for choice in together["choices"][:n]]
            assert [essence(choice) for choice in alone["choices"]] == said
        assert len({choice["text"] for choice in together["choices"]}) == N


def test_with_one_slot_choices_take_turns():
    with lines("--parallel", 1) as line:
        line.wait_ready()
        before = rows(line)
        together = line.complete(PROMPT, ANSWER, n=N, **SAMPLING)
        n_prompt = together["usage"]["prompt_tokens"]
        assert rows(line, before + n_prompt - 1) <= before + n_prompt + N * (ANSWER + 1)
        alone = line.complete(PROMPT, ANSWER, n=N, cache_prompt=False, **SAMPLING)
        assert [essence(choice) for choice in alone["choices"]] == [essence(c) for c in together["choices"]]


def test_clients_that_ask_at_once_compute_what_they_share_once():
    tails = [f"{PROMPT} {index}: and then?" for index in range(4)]
    ask = lambda prompt, **more: essence(line.complete(prompt, ANSWER, logprobs=2, **more)["choices"][0])
    with lines("--parallel", len(tails)) as line:
        line.wait_ready()
        with ThreadPoolExecutor(len(tails)) as clients:
            together = list(clients.map(ask, tails))
        assert line.line()["prefixes"]["reused_tokens"] >= 3 * 80
        assert together == [ask(tail, cache_prompt=False) for tail in tails]
