"""Far more clients than the line can serve: who cannot be served is told at once, and nothing is left behind."""

import contextlib
import resource
import socket
import threading
import time

import httpx
import psutil

from paceline import SMOLLM2, SOAK, Serve, wait_until

SECONDS = 60 if SOAK else 6
PLACES, QUEUE, CLIENTS = 2, 4, 60
ANSWER = 16


def resources(serve):
    """Open files and resident bytes of every process of the line."""
    processes = [psutil.Process(pid) for pid in {serve.pid, *serve.stage_pids()}]
    return [(process.num_fds(), process.memory_info().rss) for process in processes]


def hammer(serve, until, answers):
    """One client that asks again and again; some leave in the middle of an answer."""
    body = {"model": "default", "prompt": "Once upon a time", "max_tokens": ANSWER, "ignore_eos": True}
    with httpx.Client(base_url=serve.url, timeout=60) as http:
        turn = 0
        while time.monotonic() < until:
            turn += 1
            began = time.monotonic()
            if turn % 5 == 0:
                with http.stream("POST", "/v1/completions", json={**body, "stream": True}) as answer:
                    if answer.status_code == 200:
                        next(answer.iter_lines(), None)
                        answers.append((0, 0, None))
                        continue
                    answer.read()
            else:
                answer = http.post("/v1/completions", json=body)
            code = answer.json().get("error", {}).get("code")
            answers.append((answer.status_code, time.monotonic() - began, (code, answer.headers.get("retry-after"))))
            if answer.status_code != 200:
                # As a client does that was told to come back later, only much sooner.
                time.sleep(0.02)


def test_ten_times_too_many_clients_hear_429_and_cost_nothing():
    more = ["--stages", 2, "--threads", 1, "--parallel", PLACES, "--queue", QUEUE, "--ctx", 256, "--cache-ram", 4]
    with Serve(SMOLLM2, *more) as serve:
        serve.wait_ready()
        for _ in range(3):
            serve.text("Once upon a time", ANSWER)
        before, answers = resources(serve), []
        until = time.monotonic() + SECONDS
        clients = [threading.Thread(target=hammer, args=(serve, until, answers)) for _ in range(CLIENTS)]
        for client in clients:
            client.start()
        for client in clients:
            client.join(120)
            assert not client.is_alive(), "a client hangs"

        served = sorted(took for status, took, _ in answers if status == 200)
        refused = [why for status, _, why in answers if status == 429]
        others = [answer for answer in answers if answer[0] not in (0, 200, 429)]
        assert not others, others[:3]
        assert len(served) >= 4 and len(refused) > 10 * len(served) / 2, (len(served), len(refused))
        assert all(code == "queue_full" and int(retry) >= 1 for code, retry in refused), refused[0]
        # An admitted request waits for those before it and no longer: a queue's length at the pace of the line.
        each = SECONDS / len(served)
        worst = served[int(0.99 * (len(served) - 1))]
        assert worst <= 4 * (QUEUE + PLACES) * each + 1, (worst, each)

        wait_until(lambda: serve.line()["sequences"] == [] and serve.line()["queue"] == 0, 5, serve.line)
        idle = lambda: all(after[0] <= was[0] + 2 for was, after in zip(before, resources(serve)))
        wait_until(idle, 10, lambda: f"files are still open: {before} {resources(serve)}")
        grown = [after[1] - was[1] for was, after in zip(before, resources(serve))]
        assert max(grown) < 64 << 20, grown
        assert serve.text("Once upon a time", ANSWER)


def test_connections_fit_where_the_shell_allows_few_files():
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, allowed[1]))
    try:
        serve = Serve(SMOLLM2, "--stages", 1, "--threads", 1, "--ctx", 256)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, allowed)
    with serve, contextlib.ExitStack() as stack:
        serve.wait_ready()
        address = (httpx.URL(serve.url).host, httpx.URL(serve.url).port)
        for _ in range(400):
            stack.enter_context(socket.create_connection(address))
        wait_until(lambda: psutil.Process(serve.pid).num_fds() > 400, 30, "400 connections")
        assert serve.text("Once upon a time", 4)
