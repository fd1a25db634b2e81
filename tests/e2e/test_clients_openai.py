"""OpenAI's Python client, as programs use it: its helpers for streams, forms and tools, and many at once."""

import json
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest
from conftest import API_KEY, live
from jsonschema import Draft202012Validator
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel, ConfigDict, Field

from paceline import SMOLLM2, wait_until

MODEL = SMOLLM2.stem
HELLO = [{"role": "user", "content": "Say hello."}]
# The model ends its answer to this by itself, as some of the client's helpers demand.
CAPITAL = "What is the capital of France? Answer in one sentence."
WEATHER = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOL = {"type": "function", "function": {"name": "weather", "description": "Tells the weather.", "parameters": WEATHER}}
NAMED = {"type": "function", "function": {"name": "weather"}}


class Person(BaseModel):
    """What the model has to fill in."""

    model_config = ConfigDict(extra="forbid")
    name: str = Field(max_length=12)
    age: int = Field(ge=0, le=130)


@pytest.fixture(scope="module")
def client(served):
    """The client, with one of the keys."""
    with OpenAI(base_url=f"{served.url}/v1", api_key=API_KEY, max_retries=0, timeout=90) as client:
        yield client


def test_a_stream_is_put_together_by_the_clients_own_helper(client):
    asked = {"model": MODEL, "messages": [{"role": "user", "content": CAPITAL}], "temperature": 0, "max_tokens": 48}
    with client.chat.completions.stream(**asked, stream_options={"include_usage": True}) as stream:
        kinds = {event.type for event in stream}
        final = stream.get_final_completion()
    whole = client.chat.completions.create(**asked)
    assert {"chunk", "content.delta", "content.done"} <= kinds
    assert final.choices[0].message.content == whole.choices[0].message.content
    assert final.choices[0].finish_reason == whole.choices[0].finish_reason
    assert final.usage.completion_tokens == whole.usage.completion_tokens > 0


def test_a_tool_is_called_and_its_result_is_read(client):
    asked = {"model": MODEL, "temperature": 0, "max_tokens": 64, "tools": [TOOL]}
    messages = [{"role": "user", "content": "How will the weather be in Paris?"}]
    answer = client.chat.completions.create(**asked, messages=messages, tool_choice=NAMED)
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls"
    (call,) = choice.message.tool_calls
    assert call.type == "function" and call.function.name == "weather" and call.id
    Draft202012Validator(WEATHER).validate(json.loads(call.function.arguments))
    messages += [
        choice.message.model_dump(exclude_none=True),
        {"role": "tool", "tool_call_id": call.id, "content": "Rain all day."},
    ]
    answer = client.chat.completions.create(**asked, messages=messages, tool_choice="none")
    assert answer.choices[0].message.content and answer.choices[0].message.tool_calls is None


def test_a_streamed_call_comes_in_pieces_that_make_the_whole(client):
    asked = {"model": MODEL, "messages": HELLO, "temperature": 0, "max_tokens": 64, "tools": [TOOL]}
    whole = client.chat.completions.create(**asked, tool_choice=NAMED).choices[0].message.tool_calls[0]
    with client.chat.completions.stream(**asked, tool_choice=NAMED) as stream:
        events = list(stream)
        final = stream.get_final_completion().choices[0]
    pieces = [event.arguments_delta for event in events if event.type == "tool_calls.function.arguments.delta"]
    assert len(pieces) > 2 and "".join(pieces) == whole.function.arguments
    assert final.finish_reason == "tool_calls"
    (call,) = final.message.tool_calls
    assert (call.function.name, call.function.arguments) == ("weather", whole.function.arguments)


def test_a_form_is_read_into_the_programs_own_type(client):
    for temperature in (0, 1):
        answer = client.chat.completions.parse(
            model=MODEL, messages=HELLO, temperature=temperature, max_tokens=64, seed=1, response_format=Person
        )
        assert answer.choices[0].finish_reason == "stop" and isinstance(answer.choices[0].message.parsed, Person)
    answer = client.responses.parse(model=MODEL, input="Describe a person.", text_format=Person, temperature=0)
    assert isinstance(answer.output_parsed, Person)
    tool = openai.pydantic_function_tool(Person, name="save")
    answer = client.chat.completions.parse(model=MODEL, messages=HELLO, tools=[tool], tool_choice="required", max_tokens=64)
    assert isinstance(answer.choices[0].message.tool_calls[0].function.parsed_arguments, Person)


def test_three_choices_with_log_probabilities(client):
    answer = client.chat.completions.create(
        model=MODEL, messages=HELLO, n=3, seed=3, temperature=1, max_tokens=6, logprobs=True, top_logprobs=2
    )
    assert [choice.index for choice in answer.choices] == [0, 1, 2]
    assert len({choice.message.content for choice in answer.choices}) > 1
    for choice in answer.choices:
        tokens = choice.logprobs.content
        assert 0 < len(tokens) <= 6 and all(token.logprob <= 0 and len(token.top_logprobs) == 2 for token in tokens)
    assert answer.usage.completion_tokens <= 18


def test_a_response_streams_the_documented_events_and_is_gone_on_from(client):
    with client.responses.stream(model=MODEL, input=CAPITAL, temperature=0, max_output_tokens=48) as stream:
        events = list(stream)
        first = stream.get_final_response()
    kinds = [event.type for event in events]
    begin = ["response.created", "response.in_progress", "response.output_item.added", "response.content_part.added"]
    end = ["response.output_text.done", "response.content_part.done", "response.output_item.done"]
    assert kinds[:4] == begin and kinds[-4:-1] == end, kinds
    assert kinds[-1] == "response.completed"
    assert set(kinds[4:-4]) == {"response.output_text.delta"}
    assert [event.sequence_number for event in events] == list(range(len(events)))
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == first.output_text != ""

    second = client.responses.create(
        model=MODEL, input="And again.", previous_response_id=first.id, temperature=0, max_output_tokens=8
    )
    assert second.previous_response_id == first.id
    assert second.usage.input_tokens > first.usage.total_tokens
    read = list(client.responses.input_items.list(second.id, order="asc"))
    assert [item.role for item in read] == ["user", "assistant", "user"]
    assert client.responses.retrieve(second.id).output_text == second.output_text
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)
    with pytest.raises(openai.BadRequestError) as refused:
        client.responses.create(model=MODEL, input="x", previous_response_id=first.id)
    assert refused.value.param == "previous_response_id"


def test_a_response_calls_a_tool_and_reads_its_result(client):
    tool = {"type": "function", "name": "weather", "parameters": WEATHER, "strict": True}
    asked = {"model": MODEL, "temperature": 0, "max_output_tokens": 64, "tools": [tool]}
    first = client.responses.create(**asked, input="Weather in Rome?", tool_choice={"type": "function", "name": "weather"})
    (call,) = [item for item in first.output if item.type == "function_call"]
    Draft202012Validator(WEATHER).validate(json.loads(call.arguments))
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "Sun."}
    second = client.responses.create(**asked, input=[result], previous_response_id=first.id, tool_choice="none")
    assert second.output_text


def test_a_stream_in_the_background_goes_on_without_its_client_who_comes_back_for_the_rest(client):
    stream = client.responses.create(
        model=MODEL, input=CAPITAL, temperature=0, max_output_tokens=48, background=True, stream=True
    )
    first = [event for _, event in zip(range(5), stream)]
    stream.close()
    id, last = first[0].response.id, first[-1].sequence_number
    rest = list(client.responses.retrieve(id, stream=True, starting_after=last))
    assert [event.sequence_number for event in first + rest] == list(range(len(first + rest)))
    assert rest[-1].type == "response.completed"
    text = "".join(event.delta for event in first + rest if event.type == "response.output_text.delta")
    assert text == rest[-1].response.output_text == client.responses.retrieve(id).output_text != ""


def test_a_response_in_the_background_is_cancelled(client):
    response = client.responses.create(
        model=MODEL, input="Tell a story.", background=True, max_output_tokens=1500, extra_body={"ignore_eos": True}
    )
    assert response.status in ("queued", "in_progress")
    assert client.responses.cancel(response.id).status == "cancelled"
    assert client.responses.retrieve(response.id).status == "cancelled"


def test_texts_are_embedded(client):
    answer = client.embeddings.create(model=MODEL, input=["A river in Africa", "The Nile", "Bread"])
    assert [entry.index for entry in answer.data] == [0, 1, 2]
    assert {len(entry.embedding) for entry in answer.data} == {576}
    assert all(isinstance(value, float) for entry in answer.data for value in entry.embedding[:3])
    assert answer.usage.prompt_tokens > 3
    assert len(client.embeddings.create(model=MODEL, input="Bread", dimensions=8).data[0].embedding) == 8


def test_a_prompt_is_echoed_with_its_log_probabilities(client):
    asked = {"model": MODEL, "prompt": "One, two, three,", "echo": True, "logprobs": 2}
    logprobs = client.completions.create(**asked, max_tokens=0).choices[0].logprobs
    assert "".join(logprobs.tokens) == "One, two, three," and logprobs.token_logprobs[0] is None
    answer = client.completions.create(**asked, max_tokens=2, temperature=0).choices[0]
    assert len(answer.logprobs.tokens) == len(logprobs.tokens) + 2


def test_errors_have_the_clients_own_types(served, client):
    with pytest.raises(openai.NotFoundError) as refused:
        client.chat.completions.create(model="gpt-9", messages=HELLO)
    assert refused.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model=MODEL, messages=HELLO, temperature=-1)
    assert (refused.value.param, refused.value.type) == ("temperature", "invalid_request_error")
    with pytest.raises(openai.AuthenticationError) as refused:
        client.with_options(api_key="wrong").models.list()
    assert refused.value.code == "invalid_api_key"
    with pytest.raises(openai.NotFoundError):
        client.images.generate(prompt="a cat")


def test_a_stream_that_is_closed_early_ends_its_request(served, client):
    stream = client.chat.completions.create(
        model=MODEL, messages=HELLO, max_tokens=1500, stream=True, extra_body={"ignore_eos": True}
    )
    for _, _ in zip(stream, range(3)):
        pass
    wait_until(lambda: len(live(served)) == 1, 30, lambda: f"on the line: {live(served)}")
    stream.close()
    wait_until(lambda: not live(served), 30, "the sequence lives on")


def test_twenty_at_once_are_answered_as_one_alone_is(client):
    asked = {"model": MODEL, "temperature": 0, "max_tokens": 8}
    ask = lambda i: client.chat.completions.create(
        **asked, messages=[{"role": "user", "content": f"What comes after {i % 4}?"}]
    )
    alone = [ask(i).choices[0].message.content for i in range(4)]
    with ThreadPoolExecutor(20) as pool:
        together = [answer.choices[0].message.content for answer in pool.map(ask, range(20))]
    assert together == [alone[i % 4] for i in range(20)]


@pytest.mark.parametrize("n", [4])
def test_the_asynchronous_client_streams_side_by_side(served, n):
    import asyncio

    async def all_of_them():
        async with AsyncOpenAI(base_url=f"{served.url}/v1", api_key=API_KEY, max_retries=0, timeout=90) as client:

            async def one():
                stream = await client.completions.create(
                    model=MODEL, prompt="One, two, three,", temperature=0, max_tokens=8, stream=True
                )
                return "".join([chunk.choices[0].text async for chunk in stream])

            return await asyncio.gather(*(one() for _ in range(n)))

    texts = asyncio.run(all_of_them())
    assert len(set(texts)) == 1 and "four" in texts[0], texts
