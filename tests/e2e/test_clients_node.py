"""OpenAI's Node client: tests/node has the tests, with the client pinned by a lock file."""

import os
import subprocess

import pytest
from conftest import API_KEY

from paceline import ROOT, SMOLLM2

NODE = ROOT / "tests/node"


@pytest.fixture(scope="module")
def modules():
    """The client, installed as the lock file says."""
    done = subprocess.run(
        ["npm", "ci", "--no-audit", "--no-fund", "--ignore-scripts"], cwd=NODE, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stderr


def test_the_node_client_is_served(served, modules):
    env = {**os.environ, "PACELINE_URL": served.url, "PACELINE_KEY": API_KEY, "PACELINE_MODEL": SMOLLM2.stem}
    done = subprocess.run(
        ["node", "--test", "--test-reporter=tap"], cwd=NODE, env=env, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0 and "# fail 0" in done.stdout and "# skipped 0" in done.stdout, done.stdout + done.stderr
