"""What programs that use the official `openai` client see."""

import json
import math
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import httpx
import openai
import pytest
from conftest import CONTEXT
from openai import OpenAI

from chaos import chance
from paceline import SMOLLM2, Serve, wait_until
from streams import PROMPT, Stream

MODEL = SMOLLM2.stem
QUESTION = [{"role": "user", "content": "What is the capital of France? Answer in one sentence."}]
STORY = PROMPT
# Greedy, and not ended by the model.
FIXED = {"temperature": 0, "extra_body": {"ignore_eos": True}}


def test_the_list_of_models_has_the_one_that_is_served(client):
    assert [model.id for model in client.models.list()] == [MODEL]
    model = client.models.retrieve(MODEL)
    assert (model.id, model.object, model.owned_by) == (MODEL, "model", "paceline")
    assert model.created > 0
    meta = model.model_extra["meta"]
    assert (meta["architecture"], meta["n_ctx"], meta["n_ctx_train"]) == ("llama", CONTEXT, 8192)
    assert client.models.retrieve("default").id == MODEL


def test_a_chat_is_answered(client):
    answer = client.chat.completions.create(model="default", messages=QUESTION, temperature=0, max_tokens=32)
    assert answer.object == "chat.completion" and answer.model == MODEL and answer.id.startswith("chatcmpl-")
    choice = answer.choices[0]
    assert choice.message.role == "assistant" and "Paris" in choice.message.content
    assert choice.finish_reason == "stop"
    usage = answer.usage
    assert usage.prompt_tokens > 0 and usage.completion_tokens > 0
    assert usage.total_tokens == usage.prompt_tokens + usage.completion_tokens
    assert 0 <= usage.prompt_tokens_details.cached_tokens < usage.prompt_tokens


def test_a_streamed_chat_is_the_whole_answer_in_pieces(client):
    asked = {"model": MODEL, "messages": QUESTION, "temperature": 0, "max_tokens": 32}
    whole = client.chat.completions.create(**asked)
    chunks = list(client.chat.completions.create(**asked, stream=True))
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk.id for chunk in chunks}) == 1 and chunks[0].id != whole.id
    assert chunks[0].choices[0].delta.role == "assistant"
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks)
    assert text == whole.choices[0].message.content
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None] * (len(chunks) - 1) + ["stop"]
    # Not one lump at the end: about a token per chunk.
    assert len(chunks) > whole.usage.completion_tokens / 2


def test_a_streamed_completion_is_the_whole_answer_in_pieces(client):
    asked = {"model": MODEL, "prompt": STORY, "max_tokens": 20, **FIXED}
    whole = client.completions.create(**asked)
    assert whole.object == "text_completion" and whole.choices[0].finish_reason == "length"
    chunks = list(client.completions.create(**asked, stream=True))
    assert "".join(chunk.choices[0].text for chunk in chunks) == whole.choices[0].text
    assert chunks[-1].choices[0].finish_reason == "length"


def test_usage_comes_last_in_a_stream_that_asks_for_it(client):
    stream = client.chat.completions.create(
        model=MODEL, messages=QUESTION, max_tokens=5, stream=True, stream_options={"include_usage": True}, **FIXED
    )
    *others, last = list(stream)
    assert last.choices == [] and last.usage.completion_tokens == 5
    assert last.usage.total_tokens == last.usage.prompt_tokens + 5
    assert all(chunk.usage is None for chunk in others)


def test_a_stream_says_how_far_its_prompt_is_if_it_is_asked(client):
    asked = {"model": MODEL, "prompt": "The owl counts the stars. " * 60, "max_tokens": 2, "temperature": 0}
    stream = client.completions.create(**asked, stream=True, extra_body={"return_progress": True, "cache_prompt": False})
    told = [(chunk.model_extra.get("prompt_progress"), chunk.choices[0].text) for chunk in stream]
    steps = [progress for progress, _ in told if progress]
    whole = client.completions.create(**asked)
    assert all(not text for progress, text in told if progress) and "".join(text for _, text in told) == whole.choices[0].text
    assert {step["total"] for step in steps} == {whole.usage.prompt_tokens} and {step["cache"] for step in steps} == {0}
    done = [step["processed"] for step in steps]
    assert done[0] == 0 < done[-1] <= whole.usage.prompt_tokens and done == sorted(set(done)), steps
    assert [step["time_ms"] for step in steps] == sorted(step["time_ms"] for step in steps), steps
    assert all(progress for progress, _ in told[: len(steps)]), told


def test_an_unknown_model_is_not_found(client):
    for ask in (
        lambda: client.chat.completions.create(model="gpt-9", messages=QUESTION),
        lambda: client.completions.create(model="gpt-9", prompt="A"),
        lambda: client.models.retrieve("gpt-9"),
    ):
        with pytest.raises(openai.NotFoundError) as refused:
            ask()
        error = refused.value
        assert (error.code, error.param, error.type) == ("model_not_found", "model", "invalid_request_error")
        assert "gpt-9" in error.message and MODEL in error.message


def read_some(stream, count):
    """Reads so many pieces of text."""
    for chunk in stream:
        count -= bool(chunk.choices and chunk.choices[0].text)
        if count == 0:
            return
    raise AssertionError("the stream ended early")


def is_free(line):
    """Whether no stage holds anything for a client."""
    status = line.line()
    return status["sequences"] == [] and status["windows_in_flight"] == 0 and status["queue"] == 0


def frees_within_200_ms(line, ask):
    """Whether the line is free again so soon after a client has gone: `ask` makes a request that is running and gives what
    ends its connection."""
    wait_until(lambda: is_free(line), 10, "the line is busy before the test")
    took = []
    # More often than there are places on the line: one that stayed taken would block the last ones. The machine may be
    # busy with other things, so the best time counts, and none may be long.
    for _ in range(6):
        leave = ask()
        assert len(line.line()["sequences"]) == 1
        began = time.monotonic()
        leave()
        wait_until(lambda: is_free(line), 3, lambda: f"still there: {line.line()}")
        took.append(time.monotonic() - began)
    assert min(took) < 0.2, took


def test_a_client_that_goes_away_frees_its_sequence_within_200_ms(line, client):
    def ask():
        stream = client.completions.create(model=MODEL, prompt=STORY, max_tokens=450, stream=True, **FIXED)
        read_some(stream, 3)
        return stream.close

    frees_within_200_ms(line, ask)


def test_a_client_that_goes_away_before_its_whole_answer_frees_its_sequence_within_200_ms(line):
    def ask():
        generated = line.line()["tokens"]["generated"]
        connection = ask_for(line, {"prompt": STORY, "max_tokens": 450, "temperature": 0, "ignore_eos": True})
        wait_until(lambda: line.line()["tokens"]["generated"] > generated + 3, 30, "it is not answered")
        return connection.close

    frees_within_200_ms(line, ask)


def ask_for(line, body):
    """Asks for a completion; the connection, from which nothing was read."""
    url, raw = httpx.URL(line.url), json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: {url.host}\r\ncontent-length: {len(raw)}\r\n\r\n"
    connection = socket.create_connection((url.host, url.port), timeout=60)
    connection.sendall(head.encode() + raw)
    return connection


def test_the_place_of_a_client_that_went_away_during_its_prompt_is_free_again(line):
    for _ in range(5):
        # All of the prompt is computed, every time, and as many tokens as there is room for: it is seen on the line.
        body = {"prompt": STORY * 60, "max_tokens": -1, "cache_prompt": False, "ignore_eos": True}
        with ask_for(line, body):
            wait_until(lambda: line.line()["sequences"], 30, "it never comes on the line")
        wait_until(lambda: is_free(line), 10, lambda: f"still there: {line.line()}")
    assert line.text("The capital of France is", 1) == " Paris"


def test_clients_that_go_away_at_any_moment_spoil_no_answer_beside_them_or_behind_them(line):
    wait_until(lambda: is_free(line), 10, "the line is busy before the test")
    pick, places = chance("clients that go away"), line.http.get("/props").json()["total_slots"]
    prompts = [f"{n}. {STORY}" for n in range(places)]
    expected = [line.text(prompt) for prompt in prompts]
    whole = line.text(STORY, 100)
    beside = [Stream(line, 100)]
    for n in range(20):
        if beside[-1].ended_at:
            beside.append(Stream(line, 100))
        # Every second one would get its answer piece by piece.
        body = {"prompt": pick.choice(prompts), "max_tokens": 400, "ignore_eos": True, "stream": n % 2 == 0}
        with ask_for(line, body):
            # Before it is on the line, while its prompt is read, or within its answer.
            threading.Event().wait(pick.random() * 0.1)
    for stream in beside:
        stream.wait_end(60)
        assert stream.text() == whole
    wait_until(lambda: is_free(line), 10, lambda: f"still there: {line.line()}")
    # Whoever has left something behind has left it to one of these.
    with ThreadPoolExecutor(places) as pool:
        assert list(pool.map(line.text, prompts)) == expected


def test_n_choices_are_drawn_each_for_itself(client):
    asked = {"model": MODEL, "messages": QUESTION, "max_tokens": 16, "n": 2, "seed": 7, "temperature": 1.2}
    answer = client.chat.completions.create(**asked, extra_body={"ignore_eos": True})
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert answer.choices[0].message.content != answer.choices[1].message.content
    assert answer.usage.completion_tokens == 32
    texts = ["", ""]
    for chunk in client.chat.completions.create(**asked, extra_body={"ignore_eos": True}, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.delta.content or ""
    assert all(texts) and texts[0] != texts[1]


def test_several_prompts_are_answered_in_order(client):
    prompts = ["The capital of France is", "1, 2, 3, 4, 5,"]
    answer = client.completions.create(model=MODEL, prompt=prompts, max_tokens=4, **FIXED)
    assert [choice.index for choice in answer.choices] == [0, 1]
    assert "Paris" in answer.choices[0].text and "6" in answer.choices[1].text


def test_an_answer_ends_before_a_stop_string_wherever_tokens_end(client):
    asked = {"model": MODEL, "prompt": STORY, "max_tokens": 24, **FIXED}
    text = client.completions.create(**asked).choices[0].text
    for begin in range(3, 24, 7):
        stop = text[begin : begin + 9]
        expected = text[: text.index(stop)]
        answer = client.completions.create(**asked, stop=[stop, "no such text"])
        assert (answer.choices[0].text, answer.choices[0].finish_reason) == (expected, "stop"), stop
        chunks = list(client.completions.create(**asked, stop=stop, stream=True))
        assert "".join(chunk.choices[0].text for chunk in chunks) == expected, stop
        assert chunks[-1].choices[0].finish_reason == "stop"


def test_log_probabilities_belong_to_the_tokens_of_the_text(client):
    answer = client.chat.completions.create(
        model=MODEL, messages=QUESTION, temperature=0, max_tokens=32, logprobs=True, top_logprobs=3
    )
    assert answer.choices[0].finish_reason == "stop"
    tokens = answer.choices[0].logprobs.content
    assert b"".join(bytes(token.bytes) for token in tokens).decode() == answer.choices[0].message.content
    for token in tokens:
        others = [other.logprob for other in token.top_logprobs]
        assert len(others) == 3 and others == sorted(others, reverse=True)
        # Greedy: the best one was taken.
        assert token.logprob == others[0] and token.token == token.top_logprobs[0].token
        assert 0 < sum(map(math.exp, others)) <= 1.0001
    legacy = client.completions.create(model=MODEL, prompt=STORY, max_tokens=6, logprobs=2, **FIXED)
    figures = legacy.choices[0].logprobs
    assert "".join(figures.tokens) == legacy.choices[0].text
    assert len(figures.token_logprobs) == len(figures.top_logprobs) == len(figures.text_offset) == 6


def test_a_seed_repeats_an_answer_and_another_seed_gives_another(client):
    def answer(seed):
        asked = {"model": MODEL, "messages": QUESTION, "max_tokens": 16, "temperature": 0.8, "seed": seed}
        return client.chat.completions.create(**asked, extra_body={"ignore_eos": True}).choices[0].message.content

    texts = [answer(seed) for seed in (1, 2, 3)]
    assert [answer(seed) for seed in (1, 2, 3)] == texts
    assert len(set(texts)) > 1


def test_the_answer_ends_at_the_token_limit(client):
    for limit in ({"max_tokens": 3}, {"max_completion_tokens": 3}):
        answer = client.chat.completions.create(model=MODEL, messages=QUESTION, **limit, **FIXED)
        assert (answer.choices[0].finish_reason, answer.usage.completion_tokens) == ("length", 3)
    assert client.completions.create(model=MODEL, prompt=STORY, **FIXED).usage.completion_tokens == 16


def test_the_answer_ends_where_the_context_ends(client):
    answer = client.completions.create(model=MODEL, prompt=[504] * (CONTEXT - 5), max_tokens=-1, **FIXED)
    assert answer.choices[0].finish_reason == "length"
    # The last token is known without a place for its own row.
    assert answer.usage.total_tokens in (CONTEXT, CONTEXT + 1), answer.usage


def test_a_prompt_beyond_the_context_is_refused_with_both_numbers(client):
    with pytest.raises(openai.BadRequestError) as refused:
        client.completions.create(model=MODEL, prompt=[504] * 1100)
    assert (refused.value.code, refused.value.param) == ("context_length_exceeded", "prompt")
    assert str(CONTEXT) in refused.value.message and "1100" in refused.value.message
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model=MODEL, messages=[{"role": "user", "content": STORY * 200}])
    assert (refused.value.code, refused.value.param) == ("context_length_exceeded", "messages")


@pytest.mark.parametrize(
    "field, value",
    [
        ("messages", "hello"),
        ("messages", []),
        ("messages", [{"role": "user", "content": 5}]),
        ("temperature", "hot"),
        ("temperature", -1),
        ("top_p", 7),
        ("max_tokens", "many"),
        ("max_tokens", 2.5),
        ("n", 0),
        ("stop", 5),
        ("seed", "x"),
        ("stream", "yes"),
        ("logprobs", 3),
        ("logit_bias", [1]),
        ("model", 5),
        ("tools", [{"type": "function"}]),
        ("response_format", {"type": "xml"}),
        ("prediction", {"type": "content", "content": 5}),
    ],
)
def test_a_wrong_field_is_refused_by_its_name(client, field, value):
    asked = {"model": MODEL, "messages": QUESTION}
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(**asked, extra_body={field: value})
    error = refused.value
    assert error.type == "invalid_request_error" and error.code
    assert error.param and error.param.split("[")[0].split(".")[0] == field, error.body
    assert field in error.message


def test_every_answer_carries_a_request_id(line, client):
    raw = client.chat.completions.with_raw_response
    ids = {raw.create(model=MODEL, messages=QUESTION, max_tokens=1).headers["x-request-id"] for _ in range(3)}
    assert len(ids) == 3
    own = raw.create(model=MODEL, messages=QUESTION, max_tokens=1, extra_headers={"x-request-id": "mine-1"})
    assert own.headers["x-request-id"] == "mine-1"
    assert line.http.get("/nowhere").headers["x-request-id"]


def test_requests_at_the_same_time_share_the_line(line, client):
    asked = {"model": MODEL, "prompt": STORY, "max_tokens": 450, "stream": True, **FIXED}
    streams = [client.completions.create(**asked) for _ in range(3)]
    for stream in streams:
        read_some(stream, 2)
    sequences = line.line()["sequences"]
    assert len(sequences) == 3 and len({sequence["request"] for sequence in sequences}) == 3
    for sequence in sequences:
        assert sequence["prompt_tokens"] > 0 and sequence["phase"] in ("prefill", "decode")
    for stream in streams:
        stream.close()
    wait_until(lambda: is_free(line), 5, lambda: f"still there: {line.line()}")


def test_the_raw_stream_is_server_sent_events_that_end_with_done(line):
    body = {"prompt": STORY, "max_tokens": 3, "temperature": 0, "stream": True}
    with line.http.stream("POST", "/v1/completions", json=body) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        events = [text[6:] for text in answer.iter_lines() if text.startswith("data: ")]
    assert events[-1] == "[DONE]"
    assert all(json.loads(event)["object"] == "text_completion" for event in events[:-1])


def test_the_client_of_a_line_with_keys_needs_one_of_them(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("# ours\nsecret-1\nsecret-2\n")
    with Serve(SMOLLM2, "--threads", 1, "--api-key-file", keys) as serve:
        wait_until(lambda: serve.http.get("/health").status_code == 200, 10, "no health without a key")
        wait_until(lambda: any("Ready" in said for said in serve.lines), 60, "never ready")
        for key, code in [("secret-2", 200), ("secret-3", 401)]:
            answer = serve.http.get("/v1/models", headers={"authorization": f"Bearer {key}"})
            assert answer.status_code == code, answer.text
        with OpenAI(base_url=f"{serve.url}/v1", api_key="wrong", max_retries=0) as stranger:
            with pytest.raises(openai.AuthenticationError) as refused:
                stranger.models.list()
            assert refused.value.code == "invalid_api_key"
