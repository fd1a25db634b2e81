"""Anthropic's Python client against `/v1/messages`."""

import json
from concurrent.futures import ThreadPoolExecutor

import anthropic
import pytest
from anthropic import Anthropic
from conftest import API_KEY, live
from jsonschema import Draft202012Validator

from forms import SCHEMAS, check, question
from paceline import SMOLLM2, wait_until

MODEL = SMOLLM2.stem
HELLO = [{"role": "user", "content": "Say hello."}]
# This version of the client has no argument for it.
GREEDY = {"temperature": 0}
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}},
    "required": ["city"],
    "additionalProperties": False,
}
TOOL = {"name": "weather", "description": "Tells the weather.", "input_schema": SCHEMA}


@pytest.fixture(scope="module")
def client(served):
    """The client, with one of the keys in its own header."""
    with Anthropic(base_url=served.url, api_key=API_KEY, max_retries=0, timeout=90) as client:
        yield client


def test_a_message_is_answered(client):
    message = client.messages.create(
        model=MODEL, max_tokens=12, system="You are terse.", messages=HELLO, extra_body=GREEDY
    )
    assert (message.type, message.role, message.model) == ("message", "assistant", MODEL)
    assert message.content[0].type == "text" and message.content[0].text
    assert message.stop_reason in ("end_turn", "max_tokens")
    assert message.usage.output_tokens > 0
    assert message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0) > 0
    counted = client.messages.count_tokens(model=MODEL, system="You are terse.", messages=HELLO)
    assert counted.input_tokens == message.usage.input_tokens + (message.usage.cache_read_input_tokens or 0)


def test_a_stream_is_put_together_by_the_clients_own_helper(client):
    asked = {"model": MODEL, "max_tokens": 12, "messages": HELLO, "extra_body": GREEDY}
    whole = client.messages.create(**asked)
    with client.messages.stream(**asked) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == whole.content[0].text == final.content[0].text
    assert final.stop_reason == whole.stop_reason and final.usage.output_tokens == whole.usage.output_tokens
    events = [event.type for event in client.messages.create(**asked, stream=True)]
    assert events[:2] == ["message_start", "content_block_start"]
    assert events[-3:] == ["content_block_stop", "message_delta", "message_stop"]


def test_an_answer_that_the_client_began_is_gone_on_with(client):
    asked = {"role": "user", "content": "What is the capital of France?"}
    messages = [asked, {"role": "assistant", "content": "The capital of France is"}]
    message = client.messages.create(model=MODEL, max_tokens=8, messages=messages, extra_body=GREEDY)
    assert message.content[0].text.startswith(" Paris"), message


def test_a_stop_sequence_is_named(client):
    whole = client.messages.create(model=MODEL, max_tokens=16, messages=HELLO, extra_body=GREEDY).content[0].text
    stop = whole[4:8]
    message = client.messages.create(
        model=MODEL, max_tokens=16, messages=HELLO, stop_sequences=[stop], extra_body=GREEDY
    )
    assert (message.stop_reason, message.stop_sequence) == ("stop_sequence", stop)
    assert message.content[0].text == whole[: whole.index(stop)]


def test_a_tool_is_called_and_its_result_is_read(client):
    asked = {"model": MODEL, "max_tokens": 64, "tools": [TOOL], "extra_body": GREEDY}
    messages = [{"role": "user", "content": "How is the weather in Oslo?"}]
    choice = {"type": "tool", "name": "weather"}
    message = client.messages.create(**asked, messages=messages, tool_choice=choice)
    assert message.stop_reason == "tool_use"
    (use,) = [block for block in message.content if block.type == "tool_use"]
    assert use.name == "weather"
    Draft202012Validator(SCHEMA).validate(use.input)
    with client.messages.stream(**asked, messages=messages, tool_choice=choice) as stream:
        pieces = [event.partial_json for event in stream if event.type == "input_json"]
        final = stream.get_final_message()
    assert json.loads("".join(pieces)) == final.content[-1].input == use.input
    messages += [
        {"role": "assistant", "content": [block.model_dump() for block in message.content]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use.id, "content": "Snow."}]},
    ]
    answer = client.messages.create(**asked, messages=messages, tool_choice={"type": "none"})
    assert answer.content[0].text


def test_every_schema_is_followed(client):
    def one(case):
        message = client.messages.create(
            model=MODEL,
            max_tokens=200,
            messages=[{"role": "user", "content": question(case)}],
            output_config={"format": {"type": "json_schema", "schema": case["schema"]}},
            extra_body=GREEDY,
        )
        assert message.stop_reason == "end_turn", message
        (block,) = message.content
        check(block.text, case["schema"])

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(one, SCHEMAS))


def test_a_stream_that_is_left_early_ends_its_request(served, client):
    asked = {"model": MODEL, "max_tokens": 1500, "messages": HELLO, "extra_body": {"ignore_eos": True}}
    with client.messages.stream(**asked) as stream:
        for _, _ in zip(stream.text_stream, range(3)):
            pass
        wait_until(lambda: len(live(served)) == 1, 30, lambda: f"on the line: {live(served)}")
    wait_until(lambda: not live(served), 30, "the sequence lives on")


def test_twenty_at_once_are_answered_as_one_alone_is(client):
    def ask(i):
        messages = [{"role": "user", "content": f"What comes after {i % 4}?"}]
        return client.messages.create(model=MODEL, max_tokens=6, messages=messages, extra_body=GREEDY).content[0].text

    alone = [ask(i) for i in range(4)]
    with ThreadPoolExecutor(20) as pool:
        assert list(pool.map(ask, range(20))) == [alone[i % 4] for i in range(20)]


def test_errors_have_the_clients_own_types(client):
    with pytest.raises(anthropic.NotFoundError) as refused:
        client.messages.create(model="claude-9", max_tokens=4, messages=HELLO)
    assert refused.value.body["error"]["type"] == "not_found_error"
    with pytest.raises(anthropic.BadRequestError) as refused:
        client.messages.create(model=MODEL, max_tokens=4, messages=[])
    assert refused.value.body["error"]["type"] == "invalid_request_error"
    with pytest.raises(anthropic.AuthenticationError) as refused:
        client.with_options(api_key="wrong").messages.create(model=MODEL, max_tokens=4, messages=HELLO)
    assert refused.value.body["error"]["type"] == "authentication_error"


def test_the_list_of_models_can_be_read(client):
    assert [model.id for model in client.models.list()] == [MODEL]
