"""Requests made up from `/openapi.json`, right ones and wrong ones: none is answered with a server error, none hangs."""

import os
import subprocess
import sys

import pytest

from paceline import SMOLLM2, SOAK, Serve

# Answers end soon in a context of this size, however many tokens were asked for.
CONTEXT = 64
# What is made up: anything the document allows or forbids, for some seconds; and, where there is time for some thousand
# requests, the edges of every field.
KINDS = [("fuzzing", "--max-time", "90" if SOAK else "25"), *([("coverage",)] if SOAK else [])]
# Until the last answers and the report have come.
WITHIN_S = 170


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind[0])
def test_requests_made_up_from_the_document_meet_no_server_error(tmp_path, kind):
    with Serve(SMOLLM2, "--threads", 1, "--ctx", CONTEXT) as serve:
        serve.wait_ready()
        command = [
            *(sys.executable, "-m", "schemathesis.cli", "run", f"{serve.url}/openapi.json", "--phases", *kind),
            *("--checks", "not_a_server_error", "--seed", os.environ.get("PACELINE_SEED", "1"), "--workers", "2"),
            *("--request-timeout", "60", "--generation-database", "none", "--no-color", "--warnings", "off"),
        ]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=WITHIN_S)
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
        assert serve.http.get("/ready").status_code == 200
        assert len(serve.text("Once upon a time", 4)) > 0
