"""Calls that the model itself decides on: it begins one, and from there on it can only write a right one, whichever API
asks."""

import json

from anthropic import Anthropic
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
# Questions that the model has answered with a call: of a tool that is no more, with other arguments.
EARLIER = [("Oslo", 2), ("Rome", 3)]
QUESTION = {"role": "user", "content": "Weather in Bern, 4 days?"}
LIMIT = 120


def earlier(call, result):
    """The conversation, with calls and their results as an API writes them: lists of items."""
    said = []
    for at, (place, span) in enumerate(EARLIER):
        arguments = {"place": place, "span": f"{span} days"}
        said += [{"role": "user", "content": f"Weather in {place}, {span} days?"}]
        said += [call(f"call_{at}", "forecast", arguments), result(f"call_{at}", "Rain.")]
        said += [{"role": "assistant", "content": "Rain."}]
    return [*said, QUESTION]


class Asked:
    """What a model that copies answers with a call, or with a result; the latter is forbidden. Each API asks for it in its
    own words, and gets the name and the arguments of the turn's only call: whole, then streamed."""

    def __init__(self, line, openai, anthropic, temperature):
        self.openai, self.anthropic = openai, anthropic
        tokens = lambda text: line.http.post("/tokenize", json={"content": text}).json()["tokens"]
        begin, response = tokens("<tool_call>"), tokens("<tool_response>")
        differs = next(at for at, (ours, theirs) in enumerate(zip(begin, response)) if ours != theirs)
        self.said = {"seed": 1, "logit_bias": {str(response[differs]): -100}, "temperature": temperature}

    def chat(self):
        function = lambda name, arguments: {"name": name, "arguments": json.dumps(arguments)}
        messages = earlier(
            lambda id, *call: {
                "role": "assistant",
                "tool_calls": [{"id": id, "type": "function", "function": function(*call)}],
            },
            lambda id, result: {"role": "tool", "tool_call_id": id, "content": result},
        )
        tools = [{"type": "function", "function": {"name": name, "parameters": PARAMETERS}} for name in NAMES]
        asked = {"model": "default", "messages": messages, "tools": tools, "max_tokens": LIMIT, "extra_body": self.said}

        def call_of(choice):
            assert choice.finish_reason == "tool_calls", choice
            (call,) = choice.message.tool_calls
            return call.function.name, call.function.arguments

        answer = self.openai.chat.completions.create(**asked)
        self.sources = answer.model_extra["timings"]["sources"]
        yield call_of(answer.choices[0])
        with self.openai.chat.completions.stream(**asked) as stream:
            pieces = [
                event.arguments_delta for event in stream if event.type == "tool_calls.function.arguments.delta"
            ]
            name, arguments = call_of(stream.get_final_completion().choices[0])
        assert len(pieces) > 2 and "".join(pieces) == arguments
        yield name, arguments

    def responses(self):
        items = earlier(
            lambda id, name, arguments: {
                "type": "function_call",
                "call_id": id,
                "name": name,
                "arguments": json.dumps(arguments),
            },
            lambda id, result: {"type": "function_call_output", "call_id": id, "output": result},
        )
        tools = [{"type": "function", "name": name, "parameters": PARAMETERS} for name in NAMES]
        asked = {"model": "default", "input": items, "tools": tools, "max_output_tokens": LIMIT, "extra_body": self.said}

        def call_of(response):
            assert response.status == "completed", response
            (call,) = [item for item in response.output if item.type == "function_call"]
            assert call.status == "completed" and call.call_id.startswith("call_")
            return call.name, call.arguments

        answer = self.openai.responses.create(**asked)
        yield call_of(answer)
        events = list(self.openai.responses.create(**asked, stream=True))
        name, arguments = call_of(events[-1].response)
        kind = "response.function_call_arguments"
        pieces = [event.delta for event in events if event.type == f"{kind}.delta"]
        (done,) = [event.arguments for event in events if event.type == f"{kind}.done"]
        assert len(pieces) > 2 and "".join(pieces) == arguments == done
        added = [event.item.name for event in events if event.type == "response.output_item.added"]
        assert added == [name]
        yield name, arguments
        # The same events once more, for whoever missed them.
        again = lambda **which: list(self.openai.responses.retrieve(events[-1].response.id, stream=True, **which))
        assert again() == events and again(starting_after=2) == events[3:]

    def messages(self):
        conversation = earlier(
            lambda id, name, arguments: {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": id, "name": name, "input": arguments}],
            },
            lambda id, result: {
                "role": "user",
                "content": [{"type": "tool_result", "tool_use_id": id, "content": result}],
            },
        )
        tools = [{"name": name, "input_schema": PARAMETERS} for name in NAMES]
        asked = {
            "model": "default",
            "messages": conversation,
            "tools": tools,
            "max_tokens": LIMIT,
            "extra_body": self.said,
        }

        def call_of(message):
            assert message.stop_reason == "tool_use", message
            (use,) = [block for block in message.content if block.type == "tool_use"]
            return use.name, use.input

        name, given = call_of(self.anthropic.messages.create(**asked))
        with self.anthropic.messages.stream(**asked) as stream:
            pieces = [event.partial_json for event in stream if event.type == "input_json"]
            assert call_of(stream.get_final_message()) == (name, given)
        assert len(pieces) > 2 and json.loads("".join(pieces)) == given
        yield name, "".join(pieces)


def calls(*guessing):
    """The calls at either temperature from a line that guesses like this, and the guesses of each source that were sent."""
    found, sent = [], {}
    with Serve(SMOLLM2, "--stages", 2, "--threads", 1, "--ctx", 1024, "--exact", "--speculate", *guessing) as serve:
        serve.wait_ready()
        asks = {"api_key": "none", "max_retries": 0, "timeout": 90}
        with OpenAI(base_url=f"{serve.url}/v1", **asks) as openai, Anthropic(base_url=serve.url, **asks) as anthropic:
            for temperature in (0, 1):
                asked = Asked(serve, openai, anthropic, temperature)
                calls = [*asked.chat(), *asked.responses(), *asked.messages()]
                # One prompt, however it is written, so one answer.
                assert len(set(calls)) == 1, calls
                name, arguments = calls[0]
                assert name in NAMES
                Draft202012Validator(PARAMETERS).validate(json.loads(arguments))
                found.append((name, arguments))
                for source, counts in asked.sources.items():
                    sent[source] = sent.get(source, 0) + counts["proposed"]
    return found, sent


def test_a_call_that_the_model_begins_by_itself_follows_its_schema():
    plain, sent = calls("off")
    assert sent == {}
    guessed, sent = calls("suffix", "--width", 2, "--depth", 4)
    assert guessed == plain
    assert sent["forced"] > 0 and sent["suffix"] > 0, sent
