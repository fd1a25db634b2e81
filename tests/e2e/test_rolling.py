"""Machines are restarted one after the other while clients ask: what was begun is finished, and nobody is turned away."""

import contextlib
import itertools
import signal
import threading

from machines import Cluster, stage
from paceline import SMOLLM2, SOAK, Serve, free_port

CLIENTS = 8
TOKENS = 64 if SOAK else 8
TOPICS = ["rain", "copper", "maps", "bread", "glass", "wolves", "tides", "paper"]


class Client:
    """Asks the same again and again until it is told to stop."""

    def __init__(self, serve, prompt):
        self.texts, self.failures, self.enough = [], [], threading.Event()
        self.asked = threading.Condition()
        self.thread = threading.Thread(target=self._ask, args=(serve, prompt), daemon=True)
        self.thread.start()

    def _ask(self, serve, prompt):
        body = {"prompt": prompt, "max_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
        while not self.enough.is_set():
            answer = serve.http.post("/v1/completions", json=body)
            with self.asked:
                if answer.status_code == 200:
                    self.texts.append(answer.json()["choices"][0]["text"])
                else:
                    self.failures.append(answer.text)
                self.asked.notify_all()

    def wait_answers(self, count, within=120):
        with self.asked:
            assert self.asked.wait_for(lambda: len(self.texts) >= count or self.failures, within), len(self.texts)

    def stop(self):
        self.enough.set()
        self.thread.join(120)
        assert not self.thread.is_alive()


def test_a_rolling_restart_of_all_stages_fails_no_request(tmp_path):
    cluster = Cluster(tmp_path)
    ports = [free_port() for _ in range(3)]
    members = [cluster.enroll(name) for name in ("one", "two", "three")]
    start = lambda at: stage(members[at], ports[at], "--models", SMOLLM2.parent)
    places = itertools.chain.from_iterable(("--stage", f"127.0.0.1:{port}") for port in ports)
    front = ("--front-only", *places, "--cluster", cluster.front, "--exact", "--parallel", 4, "--ctx", 512)
    with contextlib.ExitStack() as stack:
        stages = [start(at) for at in range(3)]
        stack.callback(lambda: [running.stop() for running in stages])
        serve = stack.enter_context(Serve(SMOLLM2, *front))
        serve.wait_ready()
        clients = [Client(serve, f"Write about {topic}.") for topic in TOPICS[:CLIENTS]]
        stack.callback(lambda: [client.enough.set() for client in clients])
        for at in range(3):
            for client in clients:
                client.wait_answers(len(client.texts) + 1)
            stages[at].signal(signal.SIGTERM)
            assert stages[at].wait(20) == 0
            stages[at] = start(at)
            serve.wait_ready()
        for client in clients:
            client.wait_answers(len(client.texts) + 2)
            client.stop()
        assert [client.failures for client in clients] == [[]] * CLIENTS
        # The same text before, while and after.
        assert [len(set(client.texts)) for client in clients] == [1] * CLIENTS
