"""LangChain's ChatOpenAI."""

import pytest
from conftest import API_KEY
from langchain_core.messages import HumanMessage, SystemMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel, ConfigDict, Field

from paceline import SMOLLM2

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


@pytest.fixture(scope="module", params=[False, True], ids=["chats", "responses"])
def model(served, request):
    """The model as LangChain has it, over either of OpenAI's APIs."""
    return ChatOpenAI(
        model=SMOLLM2.stem,
        base_url=f"{served.url}/v1",
        api_key=API_KEY,
        temperature=0,
        max_tokens=48,
        max_retries=0,
        timeout=90,
        use_responses_api=request.param,
    )


def test_it_answers_whole_and_in_pieces(model):
    whole = model.invoke(HELLO)
    assert whole.text and whole.usage_metadata["output_tokens"] > 0
    assert whole.usage_metadata["input_tokens"] > 0
    pieces = list(model.stream(HELLO))
    assert len(pieces) > 2 and "".join(piece.text for piece in pieces) == whole.text


def test_it_answers_several_prompts_at_once(model):
    answers = model.batch([[HumanMessage("Say hello.")]] * 3)
    assert len({answer.text for answer in answers}) == 1 and answers[0].text


def test_it_fills_in_a_form(model):
    for method in ("json_schema", "function_calling"):
        person = model.with_structured_output(Person, method=method).invoke("Describe a person.")
        assert isinstance(person, Person)


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
