"""Requests made up from `/openapi.json`, right ones and wrong ones: none is answered with a server error, none hangs, and
what is answered has the form that the document says."""

import os
import subprocess
import sys

import pytest
import toy

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
