"""A chat template that means harm takes the process that runs it, and never the front."""

import signal
import threading

import httpx
import psutil
import pytest

from paceline import SMOLLM2, Serve, environment, wait_gone, wait_until
from templates import with_template

# What a request asks for; anything else is written as usual.
TEMPLATE = (
    "{% set ns = namespace(x='ab') %}"
    "{% if harm == 'doubles' %}{% for i in range(40) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}{% endif %}"
    "{% if harm == 'nests' %}{% for i in range(99999) %}{% set ns.x = [ns.x] %}{% endfor %}"
    "{{ ns.x | tojson }}{% endif %}"
    "{% if harm == 'dawdles' %}{% for i in range(24) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}"
    "{% for i in range(99999) %}{% set ns.y = ns.x | upper %}{% endfor %}{% endif %}"
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
)
# Far less than what such a template may take, and far more than a request needs.
GROWTH_BYTES = 200 << 20


@pytest.fixture
def serve(tmp_path):
    model = with_template(SMOLLM2, tmp_path / "harmful.gguf", TEMPLATE)
    with Serve(model, "--threads", 1, "--ctx", 256, env=environment(cache=tmp_path)) as serve:
        serve.wait_ready()
        yield serve


def write(serve, harm):
    body = {"messages": [{"role": "user", "content": "Hi"}], "chat_template_kwargs": {"harm": harm}}
    return httpx.post(f"{serve.url}/apply-template", json=body, timeout=90)


def runners(serve):
    return [child for child, command in serve.family().items() if command == "template"]


def test_a_template_that_takes_all_memory_or_all_stack_is_an_error_and_the_next_one_is_written(serve):
    assert write(serve, "none").json()["prompt"] == "[user]Hi"
    before = psutil.Process(serve.pid).memory_info().rss
    for harm in ("doubles", "nests"):
        (runner,) = runners(serve)
        answer = write(serve, harm)
        assert answer.status_code == 400, answer.text
        said = answer.json()["error"]["message"]
        assert "chat template failed" in said and "memory" in said and "\n" not in said, said
        wait_gone([runner], 5)
        assert write(serve, "none").json()["prompt"] == "[user]Hi"
    assert psutil.Process(serve.pid).memory_info().rss < before + GROWTH_BYTES


def test_a_template_that_means_harm_at_once_leaves_a_server_without_chats(tmp_path):
    harmful = "{% set ns = namespace(x='ab') %}{% for i in range(40) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}"
    model = with_template(SMOLLM2, tmp_path / "harmful.gguf", harmful)
    with Serve(model, "--threads", 1, "--ctx", 256, env=environment(cache=tmp_path)) as serve:
        serve.wait_ready()
        answer = write(serve, "none")
        assert answer.status_code == 400, answer.text
        assert "memory" in answer.json()["error"]["message"]
        assert serve.complete("The quick brown fox", 2)["usage"]["completion_tokens"] == 2


def test_who_runs_a_template_ends_with_a_front_that_is_killed_in_the_middle(serve):
    (runner,) = runners(serve)
    used = psutil.Process(runner).cpu_times().user

    def ask():
        with pytest.raises(httpx.HTTPError):
            write(serve, "dawdles")

    asking = threading.Thread(target=ask)
    asking.start()
    wait_until(lambda: psutil.Process(runner).cpu_times().user > used + 0.3, 30, "the template was not begun")
    serve.signal(signal.SIGKILL)
    wait_gone([runner], 5)
    asking.join()
