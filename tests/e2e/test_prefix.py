"""What a finished answer has computed serves the prompts that begin like it, and nothing but time changes."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from answers import cached, essence, long_text
from paceline import GEMMA, SMOLLM2, SOAK, Serve
from prompts import CODE, SOIL, VILLAGE

MODELS = {"smollm2": SMOLLM2, "gemma3": GEMMA}
# Tokens of the shared beginning at least, how many prompts share it, and how long their answers are.
SHARED, TAILS, ANSWER = (2000, 20, 32) if SOAK else (300, 5, 12)
OPENINGS = ["What is soil?", "Who lives there?", "Fix the code.", "Summarise.", "A poem:"]


@pytest.mark.parametrize("model", list(MODELS) if SOAK else ["gemma3"])
@pytest.mark.parametrize("ram", [1024, 0])
def test_many_prompts_share_a_beginning_and_say_what_they_would_have_said(model, ram):
    more = ["--stages", 2, "--threads", 1, "--exact", "--ctx", 4096, "--cache-ram", ram, "--parallel", 2]
    with Serve(MODELS[model], *more) as serve:
        serve.wait_ready()
        beginning, n_shared = long_text(serve, VILLAGE + SOIL + CODE, SHARED)
        tails = [f"{beginning} {index}. {OPENINGS[index % len(OPENINGS)]}" for index in range(TAILS)]
        cold = [serve.complete(tail, ANSWER, logprobs=2, cache_prompt=False) for tail in tails]
        assert all(cached(answer) == 0 for answer in cold)
        first = serve.complete(beginning, 1)
        assert cached(first) == 0, "what was asked for without the cache is not in it"
        for tail, alone in zip(tails, cold):
            warm = serve.complete(tail, ANSWER, logprobs=2)
            assert essence(warm) == essence(alone)
            assert cached(warm) >= 0.99 * n_shared, (cached(warm), n_shared)
            assert warm["usage"]["prompt_tokens"] == alone["usage"]["prompt_tokens"]
            assert warm["timings"]["cache_n"] == cached(warm)


def test_a_conversation_goes_on_where_it_stopped():
    with Serve(SMOLLM2, "--stages", 2, "--threads", 1) as serve:
        serve.wait_ready()
        messages, before = [], 0
        for question in ("Name three colours.", "And three animals.", "And three towns."):
            messages.append({"role": "user", "content": question})
            body = {"messages": messages, "max_tokens": 24, "temperature": 0}
            answer = serve.http.post("/v1/chat/completions", json=body).json()
            messages.append(answer["choices"][0]["message"])
            # All of the turn before but its end may be written differently by the template.
            assert cached(answer) >= 0.9 * before, (cached(answer), before)
            before = answer["usage"]["prompt_tokens"]
        assert before > 100


def test_callers_do_not_see_by_timing_what_others_asked(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("one\ntwo\n")
    with Serve(SMOLLM2, "--stages", 2, "--threads", 1, "--api-key-file", keys) as serve:
        def ask(key, **more):
            headers = {"Authorization": f"Bearer {key}"}
            body = {"prompt": VILLAGE, "max_tokens": 1, "temperature": 0, **more}
            answer = serve.http.post("/v1/completions", json=body, headers=headers)
            assert answer.status_code == 200, answer.text
            return cached(answer.json())

        serve.wait_ready()
        assert ask("one") == 0
        assert ask("one") > 30
        assert ask("two") == 0, "another key"
        assert ask("two") > 30
        assert ask("one", prompt_cache_key="notes") == 0, "another name"
        assert ask("one", prompt_cache_key="notes") > 30
        assert ask("one", cache_prompt=False) == 0


def test_what_the_operator_names_serves_every_key(tmp_path):
    keys, prompt = tmp_path / "keys", tmp_path / "system.txt"
    keys.write_text("one\ntwo\nthree\n")
    village = VILLAGE.strip()
    prompt.write_text(village + "\n")
    with Serve(SMOLLM2, "--stages", 2, "--threads", 1, "--api-key-file", keys, "--shared-prompt", prompt) as serve:
        def ask(key, system, user):
            headers = {"Authorization": f"Bearer {key}"}
            messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
            body = {"messages": messages, "max_tokens": 8, "temperature": 0}
            answer = serve.http.post("/v1/chat/completions", json=body, headers=headers)
            assert answer.status_code == 200, answer.text
            return cached(answer.json()), answer.json()["choices"][0]["message"]["content"]

        serve.wait_ready()
        shared = [ask(key, village, "Who lives there?") for key in ("one", "two", "three")]
        assert all(tokens > 30 for tokens, _ in shared), shared
        # What comes behind it stays everybody's own. The first one waited for all of it but the last token.
        assert [tokens - shared[0][0] for tokens, _ in shared] == [0, 1, 1], shared
        assert len({text for _, text in shared}) == 1, shared
        assert ask("one", SOIL, "What is it?")[0] < 16
        assert ask("two", SOIL, "What is it?")[0] < 16, "not named, so not shared"


@pytest.mark.parametrize("model", list(MODELS) if SOAK else ["smollm2"])
def test_clients_beside_each_other_say_what_each_would_say_alone(model):
    # Pinned, since left to itself a line that several requests fill would guess nothing.
    guessing = ["--speculate", "suffix", "--width", 2, "--depth", 4, "--link", "delay=2ms"]
    more = ["--stages", 2, "--threads", 1, "--exact", *guessing, "--ctx", 1024, "--parallel", 8]
    accepted = []
    prompts = [f"{beginning} {opening}" for beginning in (VILLAGE * 3, SOIL * 2) for opening in OPENINGS[:4]]
    with Serve(MODELS[model], *more) as serve:
        serve.wait_ready()

        def ask(prompt, **body):
            answer = serve.complete(prompt, 2 * ANSWER, logprobs=1, **body)
            accepted.append(answer["timings"]["draft_n_accepted"])
            return essence(answer)

        alone = [ask(prompt, cache_prompt=False) for prompt in prompts]
        assert sum(accepted) > 0, "nothing was guessed"
        accepted.clear()
        with ThreadPoolExecutor(len(prompts)) as clients:
            # Cold, then partly and wholly warm.
            for _ in range(3):
                assert list(clients.map(ask, prompts)) == alone
        assert sum(accepted) > 0, "nothing was guessed"
