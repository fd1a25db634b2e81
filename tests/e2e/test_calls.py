"""Calls that the model itself decides on: it begins one, and from there on it can only write a right one."""

import json

from jsonschema import Draft202012Validator
from openai import OpenAI

from paceline import SMOLLM2, Serve

PARAMETERS = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 12}, "days": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["city", "days"],
    "additionalProperties": False,
}
NAMES = ("weather", "weather_history")
TOOLS = [{"type": "function", "function": {"name": name, "parameters": PARAMETERS}} for name in NAMES]


def earlier(at, place, span):
    """A question that the model has answered with a call: of a tool that is no more, with other arguments."""
    call = {"name": "forecast", "arguments": json.dumps({"place": place, "span": f"{span} days"})}
    return [
        {"role": "user", "content": f"Weather in {place}, {span} days?"},
        {"role": "assistant", "tool_calls": [{"id": f"call_{at}", "type": "function", "function": call}]},
        {"role": "tool", "tool_call_id": f"call_{at}", "content": "Rain."},
        {"role": "assistant", "content": "Rain."},
    ]


MESSAGES = [*earlier(1, "Oslo", 2), *earlier(2, "Rome", 3), {"role": "user", "content": "Weather in Bern, 4 days?"}]


def asked(line, temperature):
    """The conversation, in which a model that copies begins with a call or with a result; the latter is forbidden."""
    tokens = lambda text: line.http.post("/tokenize", json={"content": text}).json()["tokens"]
    begin, response = tokens("<tool_call>"), tokens("<tool_response>")
    differs = next(at for at, (ours, theirs) in enumerate(zip(begin, response)) if ours != theirs)
    return {
        "model": "default",
        "messages": MESSAGES,
        "tools": TOOLS,
        "temperature": temperature,
        "seed": 1,
        "max_tokens": 120,
        "logit_bias": {str(response[differs]): -100},
    }


def call_of(choice):
    """Name and arguments of a turn's only call."""
    assert choice.finish_reason == "tool_calls", choice
    (call,) = choice.message.tool_calls
    assert call.function.name in NAMES
    Draft202012Validator(PARAMETERS).validate(json.loads(call.function.arguments))
    return call.function.name, call.function.arguments


def calls(*guessing):
    """The calls at either temperature from a line that guesses like this, and the guesses of each source that were sent."""
    found, sent = [], {}
    with Serve(SMOLLM2, "--stages", 2, "--threads", 1, "--ctx", 1024, "--exact", "--speculate", *guessing) as serve:
        serve.wait_ready()
        with OpenAI(base_url=f"{serve.url}/v1", api_key="none", max_retries=0, timeout=90) as client:
            for temperature in (0, 1):
                answer = client.chat.completions.create(**asked(serve, temperature))
                name, arguments = call_of(answer.choices[0])
                with client.chat.completions.stream(**asked(serve, temperature)) as stream:
                    pieces = [
                        event.arguments_delta for event in stream if event.type == "tool_calls.function.arguments.delta"
                    ]
                    assert call_of(stream.get_final_completion().choices[0]) == (name, arguments)
                assert len(pieces) > 2 and "".join(pieces) == arguments
                found.append((name, arguments))
                for source, counts in answer.model_extra["timings"]["sources"].items():
                    sent[source] = sent.get(source, 0) + counts["proposed"]
    return found, sent


def test_a_call_that_the_model_begins_by_itself_follows_its_schema():
    plain, sent = calls("off")
    assert sent == {}
    guessed, sent = calls("suffix", "--width", 2, "--depth", 4)
    assert guessed == plain
    assert sent["forced"] > 0 and sent["suffix"] > 0, sent
