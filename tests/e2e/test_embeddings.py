"""What a prompt itself gives, through the official client: embeddings, and log-probabilities of an echoed prompt."""

import base64
import math
import os
import signal
import struct
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest
from conftest import CONTEXT

from paceline import SMOLLM2, SOAK, Serve, wait_until

MODEL = SMOLLM2.stem
WIDTH = 576
TEXTS = ["Once upon a time there was a river.", "Water", "Ünïcödé 数字 🙂"]
# With results that do not depend on how rows share calls, so that they can be compared to the bit.
EXACT = ("--threads", 1, "--ctx", 2048, "--exact")


def embed(serve, texts, **more):
    """The embeddings of some texts, as they came."""
    answer = serve.http.post("/v1/embeddings", json={"input": texts, **more})
    assert answer.status_code == 200, answer.text
    return [entry["embedding"] for entry in answer.json()["data"]]


def dot(a, b):
    return sum(x * y for x, y in zip(a, b, strict=True))


@pytest.fixture(scope="module")
def exact(binary):
    """A line of three processes."""
    with Serve(SMOLLM2, "--stages", 3, *EXACT) as serve:
        serve.wait_ready()
        yield serve


def test_the_client_gets_embeddings_of_unit_length(client):
    answer = client.embeddings.create(model=MODEL, input=TEXTS)
    assert (answer.object, answer.model) == ("list", MODEL)
    assert [entry.index for entry in answer.data] == [0, 1, 2]
    for entry in answer.data:
        assert len(entry.embedding) == WIDTH and abs(dot(entry.embedding, entry.embedding) - 1) < 1e-4
    assert answer.usage.prompt_tokens == answer.usage.total_tokens > len(TEXTS)
    alone = client.embeddings.create(model="default", input=TEXTS[1])
    assert dot(alone.data[0].embedding, answer.data[1].embedding) > 0.999


def test_floats_and_base64_are_the_same_numbers(line, client):
    (floats,) = embed(line, TEXTS[1], encoding_format="float")
    (coded,) = embed(line, TEXTS[1], encoding_format="base64")
    decoded = struct.unpack(f"<{WIDTH}f", base64.b64decode(coded))
    assert dot(floats, decoded) > 0.9999
    as_floats = client.embeddings.create(model=MODEL, input=TEXTS[1], encoding_format="float")
    assert dot(as_floats.data[0].embedding, floats) > 0.9999


def test_fewer_dimensions_are_the_first_ones_brought_to_unit_length(client):
    whole = client.embeddings.create(model=MODEL, input=TEXTS[0]).data[0].embedding
    answer = client.embeddings.create(model=MODEL, input=TEXTS[0], dimensions=64)
    cut = answer.data[0].embedding
    assert len(cut) == 64 and abs(dot(cut, cut) - 1) < 1e-4
    length = math.sqrt(dot(whole[:64], whole[:64]))
    assert all(abs(x - y / length) < 1e-3 for x, y in zip(cut, whole))
    assert "576 to 64" in answer.model_extra["notice"]
    with pytest.raises(openai.BadRequestError) as refused:
        client.embeddings.create(model=MODEL, input=TEXTS[0], dimensions=WIDTH + 1)
    assert refused.value.param == "dimensions"


def test_sentences_that_say_alike_are_nearer_than_others(client):
    pairs = [
        ("The cat sleeps on the sofa.", "A cat is sleeping on a couch."),
        ("The stock market fell sharply today.", "Share prices dropped a lot this afternoon."),
        ("Boil the pasta in salted water.", "Cook the noodles in water with salt."),
    ]
    texts = [text for pair in pairs for text in pair]
    vectors = [entry.embedding for entry in client.embeddings.create(model=MODEL, input=texts).data]
    for at in range(0, len(texts), 2):
        others = [dot(vectors[at], vectors[other]) for other in range(len(texts)) if other // 2 != at // 2]
        assert dot(vectors[at], vectors[at + 1]) > max(others), texts[at]


def test_tokens_are_embedded_as_the_text_that_they_are_of(line):
    tokens = line.http.post("/tokenize", json={"prompt": TEXTS[0]}).json()["tokens"]
    text, listed, lists = embed(line, TEXTS[0])[0], embed(line, tokens)[0], embed(line, [tokens, tokens])
    assert dot(text, listed) > 0.9999 and all(dot(text, one) > 0.9999 for one in lists)


def test_every_cut_of_the_model_gives_the_same_embeddings(exact):
    with Serve(SMOLLM2, "--stages", 1, *EXACT) as whole:
        whole.wait_ready()
        # More than one chunk.
        texts = [*TEXTS, " ".join(TEXTS) * (20 if SOAK else 6)]
        for pooling in ("mean", "last", "cls", "none"):
            assert embed(whole, texts, pooling=pooling) == embed(exact, texts, pooling=pooling), pooling


def test_rows_that_are_not_pooled_are_one_for_each_token(exact):
    (rows,) = embed(exact, TEXTS[0], pooling="none")
    tokens = exact.http.post("/tokenize", json={"prompt": TEXTS[0]}).json()["tokens"]
    assert len(rows) == len(tokens) and {len(row) for row in rows} == {WIDTH}
    (last,) = embed(exact, TEXTS[0], pooling="last", embd_normalize=-1)
    assert rows[-1] == last
    (mean,) = embed(exact, TEXTS[0], embd_normalize=-1)
    means = [sum(column) / len(rows) for column in zip(*rows)]
    assert all(abs(x - y) <= 1e-4 * max(1, abs(y)) for x, y in zip(mean, means))


def test_what_cannot_be_embedded_is_said(client):
    def refused(error, **asked):
        with pytest.raises(error) as raised:
            client.embeddings.create(**{"model": MODEL, **asked})
        return raised.value

    assert refused(openai.BadRequestError, input="").param == "input"
    assert refused(openai.BadRequestError, input=["a", ""]).param == "input[1]"
    long = refused(openai.BadRequestError, input=["a", "word " * (CONTEXT + 1)])
    assert (long.code, long.param) == ("context_length_exceeded", "input")
    assert refused(openai.NotFoundError, model="gpt-9", input="a").code == "model_not_found"
    assert refused(openai.BadRequestError, input=["a"] * 2049).param == "input"


def test_many_texts_beside_answers(exact):
    count = 300 if SOAK else 100
    texts = [f"{n} {'green ' * (n % 7)}bottles" for n in range(count)]
    expected = exact.text("One, two, three,", 40)
    with ThreadPoolExecutor(3) as pool:
        many = pool.submit(embed, exact, texts)
        answers = [pool.submit(exact.text, "One, two, three,", 40) for _ in range(2)]
        assert [answer.result() for answer in answers] == [expected] * 2
        together = many.result()
    for n in (0, 6, count // 2, count - 1):
        assert embed(exact, texts[n]) == [together[n]], texts[n]


def test_a_killed_stage_costs_time_and_nothing_else(exact):
    long = "The river runs to the sea. " * (150 if SOAK else 60)
    expected = embed(exact, [long, "Water"], pooling="mean")
    scored = exact.complete(long, 0, echo=True, logprobs=1)["choices"][0]["logprobs"]
    sequences = lambda: exact.line()["sequences"]
    for ask in (
        lambda: embed(exact, [long, "Water"], pooling="mean") == expected,
        lambda: exact.complete(long, 0, echo=True, logprobs=1)["choices"][0]["logprobs"] == scored,
    ):
        exact.wait_ready()
        with ThreadPoolExecutor(1) as pool:
            answer = pool.submit(ask)
            wait_until(sequences, 20, "nothing began")
            os.kill(exact.stage_pids()[2], signal.SIGKILL)
            assert answer.result()
    exact.wait_ready()


def test_an_answer_that_is_fed_back_has_the_log_probabilities_with_which_it_was_generated(exact):
    for prompt in ("The capital of France is", "def add(a, b):\n    return"):
        answer = exact.complete(prompt, 24, logprobs=3)["choices"][0]
        back = exact.complete(prompt + answer["text"], 0, echo=True, logprobs=3)
        choice, usage = back["choices"][0], back["usage"]
        assert (choice["text"], choice["finish_reason"]) == (prompt + answer["text"], "length")
        assert usage["completion_tokens"] == 0 and usage["prompt_tokens_details"]["cached_tokens"] == 0
        echoed, generated = choice["logprobs"], answer["logprobs"]
        at = len(echoed["tokens"]) - len(generated["tokens"])
        for field in ("tokens", "token_logprobs", "top_logprobs"):
            assert echoed[field][at:] == generated[field], field
        assert echoed["token_logprobs"][0] is None and echoed["top_logprobs"][0] is None
        assert all(logprob <= 0 for logprob in echoed["token_logprobs"][1:])
        text = choice["text"]
        for token, offset in zip(echoed["tokens"], echoed["text_offset"]):
            assert text[offset:].startswith(token), (token, offset)


def test_a_prompt_is_echoed_before_its_answer_whole_and_streamed(exact):
    asked = {"echo": True, "logprobs": 1, "n": 2, "temperature": 0.8, "seed": 1}
    whole = exact.complete("Hello, my name", 6, **asked)
    plain = exact.complete("Hello, my name", 6, **{**asked, "echo": False})
    for echoed, answer in zip(whole["choices"], plain["choices"], strict=True):
        assert echoed["text"] == "Hello, my name" + answer["text"]
        n = len(answer["logprobs"]["tokens"])
        assert echoed["logprobs"]["token_logprobs"][-n:] == answer["logprobs"]["token_logprobs"]
    client = openai.OpenAI(base_url=f"{exact.url}/v1", api_key="none", max_retries=0, timeout=90)
    stream = client.completions.create(
        model=MODEL, prompt="Hello, my name", max_tokens=6, stream=True, extra_body={"ignore_eos": True}, **asked
    )
    texts, logprobs = {0: "", 1: ""}, {0: [], 1: []}
    for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] += choice.text
            logprobs[choice.index] += choice.logprobs.token_logprobs if choice.logprobs else []
    assert [texts[0], texts[1]] == [choice["text"] for choice in whole["choices"]]
    assert [logprobs[0], logprobs[1]] == [choice["logprobs"]["token_logprobs"] for choice in whole["choices"]]
