"""Calls that a client insists on, from a model of each kind that writes calls in a way of its own: which one it is shows in
its chat template alone. What the model says means nothing, so only what it must write makes a call of it."""

import json

import pytest
import toy
from anthropic import Anthropic
from jsonschema import Draft202012Validator
from openai import OpenAI

from paceline import Serve

# What the templates of such models hold.
FORMS = {
    "hermes": "<tool_call>",
    "qwen_xml": "<tool_call> <function= <parameter=",
    "llama3": "<|python_tag|>",
    "mistral": "[TOOL_CALLS]",
    "mistral_named": "[TOOL_CALLS] [ARGS]",
    "deepseek": "<｜tool▁call▁begin｜> ```json",
    "deepseek_plain": "<｜tool▁call▁begin｜>",
    "harmony": "<|channel|>",
    "json": "",
}
# Of texts only that they end is not to be had from a model like this.
PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "enum": ["Oslo", "Rome", "São Paulo"]},
        "days": {"type": "integer", "minimum": 1, "maximum": 99},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
NAMES = ("weather", "weather_history")
HELLO = [{"role": "user", "content": "Hi"}]
SAID = {"temperature": 1, "seed": 2}


def template(marks):
    """A template that writes tools, in the form that the marks stand for."""
    tools = "{% for tool in tools or [] %}[{{ tool.function.name }}]{% endfor %}"
    return "{# " + marks + " #}" + tools + toy.CHAT


def chats(client, wanted):
    """The call, whole and streamed, as chats have it."""
    tools = [{"type": "function", "function": {"name": name, "parameters": PARAMETERS}} for name in NAMES]
    choice = {"type": "function", "function": {"name": wanted}} if wanted else "required"
    asked = {"model": "default", "messages": HELLO, "tools": tools, "tool_choice": choice, "extra_body": SAID}
    (whole,) = client.chat.completions.create(**asked).choices
    with client.chat.completions.stream(**asked) as stream:
        for _ in stream:
            pass
        (streamed,) = stream.get_final_completion().choices
    for choice in (whole, streamed):
        assert choice.finish_reason == "tool_calls" and not choice.message.content, choice
        (call,) = choice.message.tool_calls
        yield call.function.name, json.loads(call.function.arguments)


def responses(client, wanted):
    """The same as an item of a response."""
    tools = [{"type": "function", "name": name, "parameters": PARAMETERS} for name in NAMES]
    choice = {"type": "function", "name": wanted} if wanted else "required"
    asked = {"model": "default", "input": "Hi", "tools": tools, "tool_choice": choice, "extra_body": SAID}
    *_, last = client.responses.create(**asked, stream=True)
    for response in (client.responses.create(**asked), last.response):
        (call,) = response.output
        assert response.status == call.status == "completed"
        yield call.name, json.loads(call.arguments)


def messages(client, wanted):
    """The same as a block of a message."""
    tools = [{"name": name, "input_schema": PARAMETERS} for name in NAMES]
    choice = {"type": "tool", "name": wanted} if wanted else {"type": "any"}
    asked = {
        "model": "default",
        "messages": HELLO,
        "max_tokens": 200,
        "tools": tools,
        "tool_choice": choice,
        "extra_body": SAID,
    }
    with client.messages.stream(**asked) as stream:
        streamed = stream.get_final_message()
    for message in (client.messages.create(**asked), streamed):
        assert message.stop_reason == "tool_use"
        (use,) = message.content
        yield use.name, use.input


@pytest.mark.parametrize("form", FORMS)
def test_a_call_that_is_insisted_on_is_one_in_every_form_and_every_api(tmp_path, form):
    model = toy.write(tmp_path / "toy.gguf", template(FORMS[form]))
    with Serve(model, "--stages", 2, "--threads", 1, "--ctx", 512, "--exact") as serve:
        serve.wait_ready()
        asks = {"api_key": "none", "max_retries": 0, "timeout": 90}
        with OpenAI(base_url=f"{serve.url}/v1", **asks) as openai, Anthropic(base_url=serve.url, **asks) as anthropic:
            for wanted in (NAMES[1], None):
                calls = [*chats(openai, wanted), *responses(openai, wanted), *messages(anthropic, wanted)]
                assert all(call == calls[0] for call in calls), calls
                name, arguments = calls[0]
                assert name == wanted if wanted else name in NAMES
                Draft202012Validator(PARAMETERS).validate(arguments)
