"""A model that thinks before it answers: what it thought comes apart from what it says, in each API's own place."""

import json

import pytest
from anthropic import Anthropic
from openai import OpenAI

from forms import check
from paceline import SMOLLM2, Serve, environment
from templates import THINKING, with_template

MODEL = "default"
SCHEMA = {
    "type": "object",
    "properties": {"sum": {"type": "integer", "minimum": 0, "maximum": 99}, "sure": {"type": "boolean"}},
    "required": ["sum", "sure"],
    "additionalProperties": False,
}
# Sums that were asked, what the model thought, and what it answered: it goes on like that.
EARLIER = [(f"What is {a} plus 2?", f"{a} plus 2 is {a + 2}.", f"The answer is {a + 2}.") for a in (1, 2, 3)]
QUESTION = "What is 4 plus 2?"
USER = {"role": "user", "content": QUESTION}


@pytest.fixture(scope="module", params=["plain", "guessing"])
def line(request, tmp_path_factory):
    """A line that serves such a model, with and without guesses across the end of its thoughts."""
    folder = tmp_path_factory.mktemp("thinking")
    model = with_template(SMOLLM2, folder / "thinking.gguf", THINKING)
    guessing = ("--speculate", "suffix", "--width", 2, "--depth", 4) if request.param == "guessing" else ()
    with Serve(model, "--stages", 2, "--threads", 1, "--ctx", 1024, "--exact", *guessing, env=environment(cache=folder)) as serve:
        serve.wait_ready()
        yield serve


@pytest.fixture(scope="module")
def openai(line):
    with OpenAI(base_url=f"{line.url}/v1", api_key="none", max_retries=0, timeout=90) as client:
        yield client


@pytest.fixture(scope="module")
def anthropic(line):
    with Anthropic(base_url=line.url, api_key="none", max_retries=0, timeout=90) as client:
        yield client


def chat(thought=True):
    """The conversation as chats have it."""
    turns = []
    for asked, thinking, answer in EARLIER:
        reply = {"role": "assistant", "content": answer}
        turns += [{"role": "user", "content": asked}, {**reply, "reasoning_content": thinking} if thought else reply]
    return [*turns, USER]


def blocks():
    """The conversation as Anthropic's messages have it."""
    turns = []
    for asked, thinking, answer in EARLIER:
        said = [{"type": "thinking", "thinking": thinking, "signature": ""}, {"type": "text", "text": answer}]
        turns += [{"role": "user", "content": asked}, {"role": "assistant", "content": said}]
    return [*turns, USER]


def items():
    """The conversation as items of the Responses API."""
    turns = []
    for at, (asked, thinking, answer) in enumerate(EARLIER):
        content = [{"type": "reasoning_text", "text": thinking}]
        turns += [
            {"role": "user", "content": asked},
            {"type": "reasoning", "id": f"rs_{at}", "summary": [], "content": content},
            {"role": "assistant", "content": answer},
        ]
    return [*turns, USER]


def prompt(line, **asked):
    """What the model is given to go on from."""
    return line.http.post("/apply-template", json={"messages": chat(), **asked}).json()["prompt"]


# All that is asked in the same way gets the same answer, whichever API it comes by.
GREEDY = {"temperature": 0, "extra_body": {"seed": 1}}


def thoughts_of(message):
    thinking, text = message.model_extra["reasoning_content"], message.content
    assert thinking and text and "think>" not in thinking + text, message
    return thinking, text


def test_a_chat_gives_reasoning_apart_from_the_answer(line, openai):
    asked = {"model": MODEL, "messages": chat(), "max_tokens": 64, **GREEDY}
    whole = openai.chat.completions.create(**asked)
    thinking, text = thoughts_of(whole.choices[0].message)
    assert whole.choices[0].finish_reason == "stop"
    assert 0 < whole.usage.completion_tokens_details.reasoning_tokens < whole.usage.completion_tokens
    deltas = [chunk.choices[0].delta for chunk in openai.chat.completions.create(**asked, stream=True)]
    reasoning = [(delta.model_extra or {}).get("reasoning_content") for delta in deltas]
    assert "".join(filter(None, reasoning)) == thinking and sum(map(bool, reasoning)) > 2
    assert "".join(delta.content or "" for delta in deltas) == text
    # All of the thoughts come before anything is said, and no piece is both.
    last = max(at for at, piece in enumerate(reasoning) if piece)
    assert not any(delta.content for delta in deltas[: last + 1])
    # Left in the text, as the model wrote it.
    asked["extra_body"] = {**asked["extra_body"], "reasoning_format": "none"}
    message = openai.chat.completions.create(**asked).choices[0].message
    assert not (message.model_extra or {}).get("reasoning_content")
    begin, end = message.content.split("</think>")
    assert (begin.strip(), end.strip()) == (thinking, text)


def test_messages_have_blocks_of_thinking(line, openai, anthropic):
    chats = openai.chat.completions.create(model=MODEL, messages=chat(), max_tokens=64, **GREEDY)
    asked = {
        "model": MODEL,
        "messages": blocks(),
        "max_tokens": 64,
        "thinking": {"type": "enabled", "budget_tokens": 1024},
        "extra_body": {"temperature": 0, "seed": 1},
    }
    message = anthropic.messages.create(**asked)
    assert [block.type for block in message.content] == ["thinking", "text"]
    said = message.content[0].thinking, message.content[1].text
    assert said == thoughts_of(chats.choices[0].message) and message.stop_reason == "end_turn"
    with anthropic.messages.stream(**asked) as stream:
        events = list(stream)
        final = stream.get_final_message()
    pieces = lambda kind: [getattr(event, kind) for event in events if event.type == kind]
    assert ("".join(pieces("thinking")), "".join(pieces("text"))) == said and len(pieces("thinking")) > 2
    assert [block.type for block in final.content] == ["thinking", "text"]
    assert (final.content[0].thinking, final.content[1].text) == said
    raw = [event for event in anthropic.messages.create(**asked, stream=True)]
    assert [event.content_block.type for event in raw if event.type == "content_block_start"] == ["thinking", "text"]
    deltas = [event.delta.type for event in raw if event.type == "content_block_delta"]
    n_thinking = len(pieces("thinking"))
    assert set(deltas[:n_thinking]) == {"thinking_delta"} and deltas[n_thinking] == "signature_delta"
    assert set(deltas[n_thinking + 1 :]) == {"text_delta"}


def test_responses_have_an_item_of_reasoning_which_the_next_one_reads(line, openai):
    chats = openai.chat.completions.create(model=MODEL, messages=chat(), max_tokens=64, **GREEDY)
    asked = {"model": MODEL, "input": items(), "max_output_tokens": 64, **GREEDY}
    whole = openai.responses.create(**asked)
    assert [item.type for item in whole.output] == ["reasoning", "message"]
    thinking = whole.output[0].content[0].text
    assert (thinking, whole.output_text) == thoughts_of(chats.choices[0].message)
    assert 0 < whole.usage.output_tokens_details.reasoning_tokens < whole.usage.output_tokens
    with openai.responses.stream(**asked) as stream:
        events = list(stream)
        final = stream.get_final_response()
    deltas = [event.delta for event in events if event.type == "response.reasoning_text.delta"]
    assert len(deltas) > 2 and "".join(deltas) == thinking
    assert (final.output[0].content[0].text, final.output_text) == (thinking, whole.output_text)
    added = [event.item.type for event in events if event.type == "response.output_item.added"]
    assert added == ["reasoning", "message"]
    # What was thought goes into the next prompt where the template shows it.
    later = {"input": "And 5 plus 2?", "model": MODEL, "max_output_tokens": 1, **GREEDY}
    second = openai.responses.create(**later, previous_response_id=whole.id)
    unthought = [item for item in items() if item.get("type") != "reasoning"]
    bare = [*unthought, {"role": "assistant", "content": whole.output_text}, {"role": "user", "content": later["input"]}]
    shorter = openai.responses.create(**{**later, "input": bare})
    assert second.usage.input_tokens > shorter.usage.input_tokens


def test_the_template_hears_how_much_to_think(line, openai, anthropic):
    assert "Reasoning: high" in prompt(line, reasoning_effort="high") and "Reasoning" not in prompt(line)
    said = {"model": MODEL, "max_tokens": 1, **GREEDY}
    tokens = openai.chat.completions.create(messages=chat(), **said).usage.prompt_tokens
    more = openai.chat.completions.create(messages=chat(), reasoning_effort="high", **said).usage.prompt_tokens
    asked = {"model": MODEL, "input": items(), "max_output_tokens": 1, **GREEDY}
    assert openai.responses.create(**asked).usage.input_tokens == tokens < more
    assert openai.responses.create(**asked, reasoning={"effort": "high"}).usage.input_tokens == more
    count = lambda **asked: anthropic.messages.count_tokens(model=MODEL, messages=blocks(), **asked).input_tokens
    assert (count(), count(output_config={"effort": "high"})) == (tokens, more)


def test_thinking_can_be_switched_off(line, openai, anthropic):
    off = {"chat_template_kwargs": {"enable_thinking": False}}
    assert prompt(line, **off).endswith("<think>\n</think>\n\n")
    asked = {"model": MODEL, "messages": chat(thought=False), "max_tokens": 24, "temperature": 0}
    answer = openai.chat.completions.create(**asked, extra_body=off).choices[0]
    assert answer.message.content and not (answer.message.model_extra or {}).get("reasoning_content")
    message = anthropic.messages.create(
        model=MODEL,
        messages=chat(thought=False),
        max_tokens=24,
        thinking={"type": "disabled"},
        extra_body={"temperature": 0},
    )
    assert [block.text for block in message.content] == [answer.message.content]


@pytest.mark.parametrize("temperature", [0, 1])
def test_a_form_begins_where_the_thoughts_end(line, openai, anthropic, temperature):
    said = {"temperature": temperature, "seed": 5}
    form = {"type": "json_schema", "json_schema": {"name": "sum", "schema": SCHEMA, "strict": True}}
    chats = openai.chat.completions.create(
        model=MODEL, messages=chat(), max_tokens=200, response_format=form, extra_body=said
    ).choices[0]
    text = {"format": {"type": "json_schema", "name": "sum", "schema": SCHEMA, "strict": True}}
    response = openai.responses.create(
        model=MODEL, input=items(), max_output_tokens=200, text=text, extra_body=said
    )
    message = anthropic.messages.create(
        model=MODEL,
        messages=blocks(),
        max_tokens=200,
        output_config={"format": {"type": "json_schema", "schema": SCHEMA}},
        extra_body=said,
    )
    thinking, answer = thoughts_of(chats.message)
    check(answer, SCHEMA)
    assert chats.finish_reason == "stop" and response.status == "completed" and message.stop_reason == "end_turn"
    assert (response.output[0].content[0].text, response.output_text) == (thinking, answer)
    assert (message.content[0].thinking, message.content[1].text) == (thinking, answer)
    assert json.loads(answer)["sum"] in range(100)
