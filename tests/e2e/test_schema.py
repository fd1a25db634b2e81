"""Requests made up from `/openapi.json`, right ones and wrong ones: none is answered with a server error, none hangs."""

import os
import subprocess
import sys

from paceline import SMOLLM2, SOAK, Serve

# Answers end soon in a context of this size, however many tokens were asked for.
CONTEXT = 64
# Requests of each kind for each route.
EXAMPLES = 40 if SOAK else 2
# Of the whole run; the share of `./run test` ends long before.
WITHIN_S = 180


def test_requests_made_up_from_the_document_meet_no_server_error(tmp_path):
    with Serve(SMOLLM2, "--threads", 1, "--ctx", CONTEXT) as serve:
        serve.wait_ready()
        command = [
            *(sys.executable, "-m", "schemathesis.cli", "run", f"{serve.url}/openapi.json"),
            *("--checks", "not_a_server_error", "--phases", "coverage,fuzzing"),
            *("--max-examples", str(EXAMPLES), "--seed", os.environ.get("PACELINE_SEED", "1"), "--workers", "2"),
            *("--request-timeout", "60", "--generation-database", "none", "--no-color", "--warnings", "off"),
        ]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=WITHIN_S)
        assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
        assert serve.http.get("/ready").status_code == 200
        assert len(serve.text("Once upon a time", 4)) > 0
