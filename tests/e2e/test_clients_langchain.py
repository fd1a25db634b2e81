"""LangChain's ChatOpenAI and OpenAIEmbeddings."""

import math

import openai
import pytest
from conftest import API_KEY, live
from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAIEmbeddings
from pydantic import BaseModel, ConfigDict, Field

from forms import check, question, share
from paceline import SMOLLM2, wait_until

HELLO = [SystemMessage("You are terse."), HumanMessage("Say hello.")]


class Person(BaseModel):
    """A person."""

    model_config = ConfigDict(extra="forbid")
    name: str = Field(max_length=12)
    age: int = Field(ge=0, le=130)


@tool
def weather(city: str) -> str:
    """Tells the weather of a city."""
    return f"Rain in {city}."


def chat_model(served, **more):
    """The model as LangChain has it."""
    fixed = {"temperature": 0, "max_tokens": 48, "max_retries": 0, "timeout": 90}
    where = {"model": SMOLLM2.stem, "base_url": f"{served.url}/v1", "api_key": API_KEY}
    return ChatOpenAI(**{**where, **fixed, **more})


@pytest.fixture(scope="module", params=[False, True], ids=["chats", "responses"])
def model(served, request):
    """It, over either of OpenAI's APIs."""
    return chat_model(served, use_responses_api=request.param)


def test_it_answers_whole_and_in_pieces(model):
    whole = model.invoke(HELLO)
    assert whole.text and whole.usage_metadata["output_tokens"] > 0
    assert whole.usage_metadata["input_tokens"] > 0
    pieces = list(model.stream(HELLO))
    assert len(pieces) > 2 and "".join(piece.text for piece in pieces) == whole.text


def test_it_answers_twenty_prompts_at_once_as_one_alone(model):
    prompts = [[HumanMessage(f"What comes after {i}?")] for i in range(4)]
    short = model.model_copy(update={"max_tokens": 6})
    alone = [short.invoke(prompt).text for prompt in prompts]
    answers = short.batch(prompts * 5, config={"max_concurrency": 20})
    assert [answer.text for answer in answers] == alone * 5 and all(alone)


def test_it_fills_in_a_form(model):
    for method in ("json_schema", "function_calling"):
        person = model.with_structured_output(Person, method=method).invoke("Describe a person.")
        assert isinstance(person, Person)


def test_it_follows_schemas(model):
    long = model.model_copy(update={"max_tokens": 200})
    for case in share(3):
        form = {"name": "answer", "strict": True, "schema": case["schema"]}
        bound = long.with_structured_output(form, method="json_schema", include_raw=True)
        check(bound.invoke(question(case))["raw"].text, case["schema"])


def test_it_calls_a_tool_and_reads_the_result(model):
    bound = model.bind_tools([weather], tool_choice="weather")
    asked = HumanMessage("How is the weather in Rome?")
    message = bound.invoke([asked])
    (call,) = message.tool_calls
    assert call["name"] == "weather" and set(call["args"]) == {"city"}
    streamed = None
    for piece in bound.stream([asked]):
        streamed = piece if streamed is None else streamed + piece
    assert [(call["name"], call["args"]) for call in streamed.tool_calls] == [("weather", call["args"])]
    result = ToolMessage(weather.invoke(call["args"]), tool_call_id=call["id"])
    assert model.invoke([asked, message, result]).text


def test_it_goes_on_from_an_earlier_response(served):
    model = chat_model(served, use_responses_api=True, max_tokens=8)
    first = model.invoke("Say hello.")
    second = model.invoke("And again.", previous_response_id=first.response_metadata["id"])
    assert second.text
    assert second.usage_metadata["input_tokens"] > first.usage_metadata["total_tokens"]
    with pytest.raises(openai.BadRequestError) as refused:
        model.invoke("And again.", previous_response_id="resp_of_nobody")
    assert refused.value.code == "previous_response_not_found"


def check_logprobs(tokens):
    assert tokens and all(token["logprob"] <= 0 and len(token["top_logprobs"]) == 2 for token in tokens), tokens


def test_log_probabilities_come_along(served):
    asked = {"logprobs": True, "top_logprobs": 2, "max_tokens": 6}
    model = chat_model(served, **asked)
    whole = model.invoke(HELLO).response_metadata["logprobs"]["content"]
    check_logprobs(whole)
    streamed = None
    for piece in model.stream(HELLO):
        streamed = piece if streamed is None else streamed + piece
    pieces = streamed.response_metadata["logprobs"]["content"]
    assert [(piece["token"], piece["logprob"]) for piece in pieces] == [(one["token"], one["logprob"]) for one in whole]


def test_three_choices_are_generated(served):
    model = chat_model(served, n=3, temperature=1, seed=3, max_tokens=6, logprobs=True, top_logprobs=2)
    (choices,) = model.generate([HELLO]).generations
    assert len(choices) == 3 and len({choice.text for choice in choices}) > 1
    for choice in choices:
        check_logprobs(choice.generation_info["logprobs"]["content"])


def test_texts_are_embedded(served):
    # Without the flag it would fetch a tokenizer of OpenAI's.
    embeddings = OpenAIEmbeddings(
        model=SMOLLM2.stem, base_url=f"{served.url}/v1", api_key=API_KEY, check_embedding_ctx_length=False, max_retries=0
    )
    texts = ["A river in Africa", "Bread"]
    vectors = embeddings.embed_documents(texts)
    assert [len(vector) for vector in vectors] == [576, 576]
    for vector, text in zip(vectors, texts):
        assert abs(math.hypot(*vector) - 1) < 1e-3
        again = embeddings.embed_query(text)
        assert sum(a * b for a, b in zip(again, vector)) > 0.999


def test_errors_have_the_clients_own_types(served, model):
    with pytest.raises(openai.NotFoundError) as refused:
        model.bind(model="gpt-9").invoke(HELLO)
    assert refused.value.code == "model_not_found"
    with pytest.raises(openai.BadRequestError) as refused:
        model.bind(top_p=7).invoke(HELLO)
    assert refused.value.param == "top_p"
    with pytest.raises(openai.BadRequestError) as refused:
        model.invoke("One, two, three. " * 1000)
    assert refused.value.code == "context_length_exceeded"
    with pytest.raises(openai.AuthenticationError):
        chat_model(served, api_key="wrong").invoke(HELLO)


def test_a_stream_that_is_left_early_ends_its_request(served, model):
    endless = model.bind(max_tokens=1500, extra_body={"ignore_eos": True})
    stream = endless.stream("Tell a long story.")
    for _, _ in zip(stream, range(3)):
        pass
    wait_until(lambda: len(live(served)) == 1, 30, lambda: f"on the line: {live(served)}")
    stream.close()
    wait_until(lambda: not live(served), 30, "the sequence lives on")
