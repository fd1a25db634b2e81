"""Requests made up from `/openapi.json`, right ones and wrong ones: none is answered with a server error, none hangs, and
what is answered has the form that the document says."""

import os
import subprocess
import sys

import pytest
import toy
from jsonschema import Draft202012Validator

from paceline import SOAK, Serve

# Answers end soon in a context of this size, however many tokens were asked for.
CONTEXT = 64
# What is made up: the edges of every field, some thousand requests; and anything the document allows or forbids. Seconds
# at most, which the first needs on a busy machine only.
KINDS = {"coverage": 60 if SOAK else 35, "fuzzing": 90 if SOAK else 20}
CHECKS = ("not_a_server_error", "status_code_conformance", "content_type_conformance", "response_schema_conformance")
# Until the last answers and the report have come.
WITHIN_S = 60


@pytest.mark.parametrize("kind", KINDS)
def test_requests_made_up_from_the_document_are_answered_as_it_says(tmp_path, kind):
    # A model that answers at once, so that the time goes into requests.
    guessing = ("--speculate", "suffix", "--width", 2, "--depth", 3)
    with Serve(toy.write(tmp_path / "toy.gguf"), "--stages", 2, "--threads", 1, "--ctx", CONTEXT, *guessing) as serve:
        serve.wait_ready()
        # One worker: Python 3.11 fails now and then when two threads parse code at once, and hypothesis does.
        command = [
            *(sys.executable, "-m", "schemathesis.cli", "run", f"{serve.url}/openapi.json"),
            *("--phases", kind, "--max-time", str(KINDS[kind]), "--checks", ",".join(CHECKS)),
            *("--seed", os.environ.get("PACELINE_SEED", "1"), "--workers", "1"),
            *("--request-timeout", "30", "--generation-database", "none", "--no-color", "--warnings", "off"),
        ]
        within = KINDS[kind] + WITHIN_S
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=within)
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
        assert serve.http.get("/ready").status_code == 200
        assert serve.complete("Once upon a time", 4)["usage"]["completion_tokens"] == 4


HELLO = [{"role": "user", "content": "Hi"}]
PARAMETERS = {"type": "object", "properties": {"city": {"enum": ["Oslo"]}}, "required": ["city"]}
TOOL = {"name": "weather", "parameters": PARAMETERS}
FEW = {"max_tokens": 4, "temperature": 1, "seed": 1}
# A few right requests for every route with a body: all that an answer may hold comes in one of them.
ASKED = [
    ("/v1/chat/completions", {"messages": HELLO, **FEW}),
    ("/v1/chat/completions", {"messages": HELLO, "n": 2, "logprobs": True, "top_logprobs": 2, **FEW}),
    (
        "/v1/chat/completions",
        {"messages": HELLO, "tools": [{"type": "function", "function": TOOL}], "tool_choice": "required"},
    ),
    ("/v1/chat/completions", {"messages": HELLO, "functions": [TOOL], "function_call": {"name": "weather"}}),
    ("/v1/completions", {"prompt": ["One,", "Two,"], "echo": True, "logprobs": 2, **FEW}),
    ("/v1/completions", {"prompt": [1, 2, 3], "echo": True, "logprobs": 0, "max_tokens": 0}),
    ("/v1/responses", {"input": HELLO, "instructions": "Be brief.", "max_output_tokens": 4}),
    ("/v1/responses", {"input": "Hi", "max_output_tokens": 4, "top_logprobs": 2, "background": True}),
    ("/v1/responses", {"input": "Hi", "tools": [{"type": "function", **TOOL}], "tool_choice": "required"}),
    ("/v1/messages", {"messages": HELLO, **FEW}),
    (
        "/v1/messages",
        {
            "messages": HELLO,
            "max_tokens": 40,
            "tools": [{"name": "weather", "input_schema": PARAMETERS}],
            "tool_choice": {"type": "any"},
        },
    ),
    ("/v1/messages/count_tokens", {"messages": HELLO}),
    ("/v1/embeddings", {"input": ["One", "Two"], "dimensions": 4}),
    ("/v1/embeddings", {"input": "One", "encoding_format": "base64"}),
    ("/v1/embeddings", {"input": "One", "pooling": "none"}),
    ("/tokenize", {"content": "é", "with_pieces": True, "return_token_strs": True}),
    ("/tokenize", {"prompt": "Hi"}),
    ("/detokenize", {"tokens": [1, 2]}),
    ("/apply-template", {"messages": HELLO}),
]


def closed(document):
    """The document's schemas, which nothing may go beyond."""
    for schema in document["components"]["schemas"].values():
        if schema.get("type") == "object" or "oneOf" in schema:
            schema.setdefault("unevaluatedProperties", False)
    return document


def check(document, method, path, answer):
    """Whether an answer is all and only what the document says of it."""
    (content, *_) = document["paths"][path][method]["responses"]["200"]["content"].values()
    schema = {**content["schema"], "components": document["components"]}
    assert answer.status_code == 200, (path, answer.text)
    errors = [error.message for error in Draft202012Validator(schema).iter_errors(answer.json())]
    assert not errors, (path, errors, answer.text)


def test_answers_are_all_and_only_what_the_document_says(line):
    document = closed(line.http.get("/openapi.json").json())
    responses = []
    for path, asked in ASKED:
        answer = line.http.post(path, json=asked)
        check(document, "post", path, answer)
        if path == "/v1/responses":
            responses.append(answer.json()["id"])
    for id in responses:
        kept, items = "/v1/responses/{id}", "/v1/responses/{id}/input_items"
        check(document, "get", items, line.http.get(items.format(id=id)))
        # Its events wait for its end.
        assert "response.in_progress" in line.http.get(kept.format(id=id), params={"stream": True}).text
        check(document, "get", kept, line.http.get(kept.format(id=id)))
    (_, background, last) = responses
    check(document, "post", "/v1/responses/{id}/cancel", line.http.post(f"/v1/responses/{background}/cancel"))
    check(document, "delete", "/v1/responses/{id}", line.http.delete(f"/v1/responses/{last}"))
    for path, operations in document["paths"].items():
        if "get" in operations and "{" not in path and path != "/metrics":
            check(document, "get", path, line.http.get(path))
    model = line.http.get("/v1/models").json()["data"][0]["id"]
    check(document, "get", "/v1/models/{id}", line.http.get(f"/v1/models/{model}"))
