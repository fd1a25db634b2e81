"""OpenAI's Node client: tests/node has the tests, with the client pinned by a lock file."""

import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from conftest import API_KEY

from forms import SCHEMAS, check
from paceline import ROOT, SMOLLM2

NODE = ROOT / "tests/node"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "paceline/tools"


@pytest.fixture(scope="module")
def modules():
    """A folder with the client, installed once per lock file and kept in the cache."""
    lock = NODE / "package-lock.json"
    folder = CACHE / f"node-{hashlib.sha256(lock.read_bytes()).hexdigest()[:16]}"
    if folder.is_dir():
        return folder
    new = folder.with_name(f"{folder.name}.{os.getpid()}")
    try:
        new.mkdir(parents=True)
        for file in [lock, NODE / "package.json"]:
            shutil.copy(file, new)
        done = subprocess.run(
            ["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"],
            cwd=new,
            capture_output=True,
            text=True,
            timeout=300,
        )
        assert done.returncode == 0, done.stderr
        # Whole or not at all; another run may have been faster.
        if not folder.is_dir():
            new.rename(folder)
    finally:
        shutil.rmtree(new, ignore_errors=True)
    return folder


def test_the_node_client_is_served(served, modules, tmp_path):
    answers = tmp_path / "answers.json"
    own = {"URL": served.url, "KEY": API_KEY, "MODEL": SMOLLM2.stem, "NODE": modules, "ANSWERS": answers}
    env = {**os.environ, **{f"PACELINE_{name}": str(value) for name, value in own.items()}}
    done = subprocess.run(
        ["node", "--test", "--test-reporter=tap"], cwd=NODE, env=env, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0 and "# fail 0" in done.stdout and "# skipped 0" in done.stdout, done.stdout + done.stderr
    # The schemas' own reader is Python's.
    answers = json.loads(answers.read_text())
    assert len(answers) == len(SCHEMAS)
    for case, answer in zip(SCHEMAS, answers):
        check(answer, case["schema"])
