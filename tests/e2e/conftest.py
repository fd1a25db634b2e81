"""What the tests share: lines that are started once, answers to compare with, and the closing line of the run."""

import pytest
from openai import OpenAI

import paceline
from paceline import GEMMA, SMOLLM2, Serve
from prompts import ask

# Positions per sequence of the shared line: short, so that a test can fill it.
CONTEXT = 512
# The key that the suites of unmodified clients send.
API_KEY = "sk-of-the-suites"


@pytest.fixture(scope="session", autouse=True)
def binary():
    """Nothing can be tested without it."""
    assert paceline.BINARY.exists(), f"{paceline.BINARY} is missing: run `./run setup` first"
    for model in (SMOLLM2, GEMMA):
        assert model.exists(), f"{model} is missing: run `./run setup` first"


@pytest.fixture(scope="session")
def line(binary):
    """Three processes that serve SmolLM2, for tests that leave it as they find it."""
    with Serve(SMOLLM2, "--stages", 3, "--threads", 1, "--exact", "--ctx", CONTEXT) as serve:
        serve.wait_ready()
        yield serve


@pytest.fixture(scope="session")
def client(line):
    """The official client, talking to that line."""
    with OpenAI(base_url=f"{line.url}/v1", api_key="none", max_retries=0, timeout=60) as client:
        yield client


@pytest.fixture(scope="session")
def served(binary, tmp_path_factory):
    """One guessing line of two processes that asks for a key: for the suites of unmodified clients, one after another."""
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text(f"# of the suites\n{API_KEY}\n")
    args = ("--stages", 2, "--threads", 1, "--ctx", 2048, "--speculate", "auto", "--exact", "--api-key-file", keys)
    with Serve(SMOLLM2, *args) as serve:
        serve.wait_ready()
        yield serve


def live(served):
    """The sequences of clients on that line."""
    return served.http.get("/v1/line", headers={"authorization": f"Bearer {API_KEY}"}).json()["sequences"]


@pytest.fixture(scope="session")
def reference(binary):
    """What one process alone answers to the prompts: `reference(model)`, computed once per model."""
    answers = {}

    def of(model):
        if model not in answers:
            with Serve(model, "--stages", 1, "--threads", 1) as alone:
                alone.wait_ready()
                answers[model] = ask(alone)
        return answers[model]

    return of


def pytest_runtest_setup(item):
    """Remembers which processes are not the test's own."""
    item.first_process = len(paceline.Process.started)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """A failed test shows what its processes said, and those that are shared."""
    report = yield
    if report.failed:
        started = paceline.Process.started
        before = [process for process in started[: item.first_process] if process.process.poll() is None]
        for process in before + started[item.first_process :]:
            report.sections.append((f"output of {process.name}", "\n".join(process.lines[-40:])))
    return report


def pytest_terminal_summary(terminalreporter):
    """The line that `./run test` counts. A test that was skipped is one that did not pass."""
    stats = terminalreporter.stats
    # What tests have measured.
    for report in stats.get("passed", []) + stats.get("failed", []):
        for name, value in report.user_properties:
            terminalreporter.write_line(f"{name}: {value}")
    bad = sum(len(stats.get(kind, [])) for kind in ("failed", "error", "skipped", "xfailed", "xpassed"))
    terminalreporter.write_line(f"{len(stats.get('passed', []))} passed, {bad} failed")
