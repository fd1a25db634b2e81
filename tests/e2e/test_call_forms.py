"""Calls from a model of each kind that writes calls in a way of its own: which one it is shows in its chat template alone.
What the model says means nothing, so only what it must write makes a call of it."""

import json

import pytest
import toy
from anthropic import Anthropic
from jsonschema import Draft202012Validator
from openai import BadRequestError, OpenAI

from paceline import Serve

# What a model here thinks, and how its thoughts end.
THOUGHT, CLOSE = "Hm.", "</think>"
# How gpt-oss goes on behind its first mark when it calls.
TO_FUNCTIONS = "commentary to=functions."
CALL, CALL_END = "<tool_call>", "</tool_call>"
CALLS = "[TOOL_CALLS]"
DEEPSEEK = ["<｜tool▁calls▁begin｜>", "<｜tool▁call▁begin｜>", "<｜tool▁sep｜>", "<｜tool▁call▁end｜>", "<｜tool▁calls▁end｜>"]
CHANNELS = ["<|channel|>", "<|constrain|>", "<|message|>"]
# What the templates of such models hold; the marks that are tokens of theirs; and how they begin a call.
FORMS = {
    "hermes": (CALL, [CALL, CALL_END], [CALL]),
    "qwen_xml": (f"{CALL} <function= <parameter=", [CALL, CALL_END], [CALL]),
    "llama3": ("<|python_tag|>", ["<|python_tag|>"], ["<|python_tag|>"]),
    "mistral": (CALLS, [CALLS], [CALLS]),
    "mistral_named": (f"{CALLS} [ARGS]", [CALLS, "[ARGS]"], [CALLS]),
    "deepseek": (f"{DEEPSEEK[1]} ```json", DEEPSEEK, DEEPSEEK[:2]),
    "deepseek_plain": (DEEPSEEK[1], DEEPSEEK, DEEPSEEK[:2]),
    "harmony": (CHANNELS[0], CHANNELS, [CHANNELS[0], TO_FUNCTIONS]),
    "json": ("", [], ["{"]),
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
# An answer that is not a call.
ANSWERS = ["Oslo", "Rome"]


def template(held):
    """A template that writes tools, in the form that what it holds stands for, and opens a thought if it is told to."""
    tools = "{% for tool in tools or [] %}[{{ tool.function.name }}]{% endfor %}"
    return "{# " + held + CLOSE + " #}" + tools + toy.CHAT + "{% if think %}<think>{% endif %}"


class Asked:
    """The same of each API in its own words: what was thought, and the only call of the turn, whole and streamed. `choice`
    is `auto`, `required`, or a tool's name; `said` are fields that all APIs have."""

    def __init__(self, form, choice, said=None, answers=None):
        self.openai, self.anthropic, self.choice = form.openai, form.anthropic, choice
        self.said = {"temperature": 1, "seed": 2, **(said or {})}
        self.form = answers and {"enum": answers}

    def calls(self):
        return [*self.chats(), *self.responses(), *self.messages()]

    def chat(self):
        tools = [{"type": "function", "function": {"name": name, "parameters": PARAMETERS}} for name in NAMES]
        choice = {"type": "function", "function": {"name": self.choice}} if self.choice in NAMES else self.choice
        asked = {
            "model": "default",
            "messages": HELLO,
            "tools": tools,
            "tool_choice": choice,
            "parallel_tool_calls": False,
            "extra_body": self.said,
        }
        if self.form:
            asked["response_format"] = {"type": "json_schema", "json_schema": {"name": "a", "schema": self.form}}
        return asked

    def chats(self):
        asked = self.chat()
        (whole,) = self.openai.chat.completions.create(**asked).choices
        with self.openai.chat.completions.stream(**asked) as stream:
            for _ in stream:
                pass
            (streamed,) = stream.get_final_completion().choices
        for choice in (whole, streamed):
            assert choice.finish_reason == "tool_calls" and not choice.message.content, choice
            (call,) = choice.message.tool_calls
            thought = (choice.message.model_extra or {}).get("reasoning_content")
            yield thought, call.function.name, json.loads(call.function.arguments)

    def responses(self):
        tools = [{"type": "function", "name": name, "parameters": PARAMETERS} for name in NAMES]
        choice = {"type": "function", "name": self.choice} if self.choice in NAMES else self.choice
        asked = {
            "model": "default",
            "input": "Hi",
            "tools": tools,
            "tool_choice": choice,
            "parallel_tool_calls": False,
            "extra_body": self.said,
        }
        if self.form:
            asked["text"] = {"format": {"type": "json_schema", "name": "a", "schema": self.form}}
        *_, last = self.openai.responses.create(**asked, stream=True)
        for response in (self.openai.responses.create(**asked), last.response):
            *before, call = response.output
            assert response.status == call.status == "completed"
            thought = "".join(part.text for item in before for part in item.content)
            assert [item.type for item in before] == ["reasoning"] * len(before)
            yield thought or None, call.name, json.loads(call.arguments)

    def messages(self):
        tools = [{"name": name, "input_schema": PARAMETERS} for name in NAMES]
        kinds = {"auto": {"type": "auto"}, "required": {"type": "any"}}
        choice = kinds.get(self.choice) or {"type": "tool", "name": self.choice}
        asked = {
            "model": "default",
            "messages": HELLO,
            "max_tokens": 200,
            "tools": tools,
            "tool_choice": {**choice, "disable_parallel_tool_use": True},
            "extra_body": self.said,
        }
        if self.form:
            asked["output_config"] = {"format": {"type": "json_schema", "schema": self.form}}
        with self.anthropic.messages.stream(**asked) as stream:
            streamed = stream.get_final_message()
        for message in (self.anthropic.messages.create(**asked), streamed):
            assert message.stop_reason == "tool_use"
            *before, use = message.content
            assert [block.type for block in before] == ["thinking"] * len(before)
            yield "".join(block.thinking for block in before) or None, use.name, use.input


class Form:
    """A line that serves a model of this form, and clients of it."""

    def __init__(self, name, serve, openai, anthropic):
        self.name, self.serve, self.openai, self.anthropic = name, serve, openai, anthropic
        _, self.marks, self.begin = FORMS[name]

    def steered(self, *words):
        """Has the model say these tokens one after another where it is free to: each weighs less than the one before, and
        nothing any more once it was said."""
        own = [*tokens_besides(self.marks), THOUGHT, TO_FUNCTIONS]
        token = lambda word: ord(word) if len(word) == 1 else toy.GAP + 1 + own.index(word)
        bias = {str(token(word)): 900 - 100 * at for at, word in enumerate(words)}
        return {"logit_bias": bias, "presence_penalty": 1000, "repeat_last_n": -1}


def tokens_besides(marks):
    return [*marks, CLOSE]


@pytest.fixture(scope="module", params=FORMS)
def form(request, tmp_path_factory):
    held, marks, _ = FORMS[request.param]
    file = tmp_path_factory.mktemp("toy") / "toy.gguf"
    model = toy.write(file, template(held), tokens_besides(marks), [THOUGHT, TO_FUNCTIONS])
    guessing = ("--speculate", "suffix", "--width", 2, "--depth", 3)
    with Serve(model, "--stages", 2, "--threads", 1, "--ctx", 512, "--exact", *guessing) as serve:
        serve.wait_ready()
        asks = {"api_key": "none", "max_retries": 0, "timeout": 90}
        with OpenAI(base_url=f"{serve.url}/v1", **asks) as openai, Anthropic(base_url=serve.url, **asks) as anthropic:
            yield Form(request.param, serve, openai, anthropic)


def only(calls):
    """The call that all of them are."""
    assert all(call == calls[0] for call in calls), calls
    thought, name, arguments = calls[0]
    assert name in NAMES
    Draft202012Validator(PARAMETERS).validate(arguments)
    return thought, name


def test_a_call_that_is_insisted_on_is_one_in_every_form_and_every_api(form):
    for wanted in (NAMES[1], "required"):
        thought, name = only(Asked(form, wanted).calls())
        assert thought is None and (name == wanted or wanted == "required")


def test_a_call_that_the_model_begins_by_itself_is_one_in_every_form_and_every_api(form):
    # In plain JSON nothing marks a call, so only what may also be an answer is held to the tools.
    answers = ANSWERS if form.name == "json" else None
    assert only(Asked(form, "auto", form.steered(*form.begin), answers).calls())[0] is None
    if form.name != "harmony":
        thinks = {"chat_template_kwargs": {"think": True}, **form.steered(THOUGHT, CLOSE, *form.begin)}
        assert only(Asked(form, "auto", thinks, answers).calls())[0] == THOUGHT


def test_beside_tools_an_answer_in_a_form_is_that_or_a_call(form):
    answer = Asked(form, "auto", form.steered('"'), ANSWERS)
    if form.name == "harmony":
        # Its answers begin with a mark, too.
        with pytest.raises(BadRequestError) as refused:
            list(answer.chats())
        assert refused.value.param == "response_format"
        return
    # Llama 3 leaves out its mark.
    begin = "{" if form.name == "llama3" else form.begin[-1]
    only(Asked(form, "auto", form.steered(begin), ANSWERS).calls())
    (choice,) = form.openai.chat.completions.create(**answer.chat()).choices
    assert choice.finish_reason == "stop" and json.loads(choice.message.content) in ANSWERS
