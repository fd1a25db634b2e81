"""Machines are told to end while clients ask: what was begun is finished or handed over, and nobody is turned away."""

import contextlib
import itertools
import signal
import threading

from machines import Cluster, stage
from paceline import SMOLLM2, SOAK, Serve, free_port, wait_until
from streams import Stream
from toy import write

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
        # Each stage went when what ran was finished.
        assert serve.line()["resumed"] == 0, serve.line()
        # The same text before, while and after.
        assert [len(set(client.texts)) for client in clients] == [1] * CLIENTS


def test_a_stage_that_is_told_to_end_hands_over_to_a_spare_and_a_second_signal_ends_it_at_once(tmp_path):
    (tmp_path / "models").mkdir()
    model, cluster = write(tmp_path / "models/toy.gguf"), Cluster(tmp_path)
    ports = [free_port() for _ in range(3)]
    one, two, three = (f"127.0.0.1:{port}" for port in ports)
    front = ("--front-only", "--stage", one, "--stage", two, "--spare", f"{three}=1", "--cluster", cluster.front)
    with contextlib.ExitStack() as stack:
        start = lambda name, port: stack.enter_context(stage(cluster.enroll(name), port, "--models", model.parent))
        first, second, _ = (start(name, port) for name, port in zip(("one", "two", "three"), ports))
        # So slow that an answer takes seconds.
        serve = stack.enter_context(Serve(model, *front, "--exact", "--ctx", 512, "--link", "delay=10ms"))
        serve.wait_ready()
        wait_until(lambda: serve.line()["stages"][1]["standby"] == "warm", 60, serve.line)
        stream = Stream(serve, 200)
        stream.wait_end(90)
        expected, stream = stream.text(), Stream(serve, 200)
        stream.wait_events(4)
        second.signal(signal.SIGTERM)
        assert second.wait(30) == 0
        stream.wait_end(90)
        assert stream.text() == expected
        assert serve.line()["stages"][1]["address"] == three
        # Nobody could take this one's place: it waits for the answer, but not against somebody's will.
        stream = Stream(serve, 400)
        stream.wait_events(4)
        first.signal(signal.SIGTERM)
        first.wait_line("Stopping: the front is told", 30)
        first.signal(signal.SIGTERM)
        assert first.wait(30) == 0
        assert stream.ended_at is None


def test_a_stage_whose_grace_has_run_out_ends_and_the_answer_goes_on_when_it_is_back(tmp_path):
    (tmp_path / "models").mkdir()
    model, cluster, port = write(tmp_path / "models/toy.gguf"), Cluster(tmp_path), free_port()
    member = cluster.enroll("one")
    start = lambda: stage(member, port, "--models", model.parent, "--grace", "1s")
    front = ("--front-only", "--stage", f"127.0.0.1:{port}", "--cluster", cluster.front)
    with contextlib.ExitStack() as stack:
        first = stack.enter_context(start())
        # So slow that an answer takes far longer than the grace.
        serve = stack.enter_context(Serve(model, *front, "--exact", "--ctx", 512, "--link", "delay=10ms"))
        serve.wait_ready()
        stream = Stream(serve, 300)
        stream.wait_end(90)
        expected, stream = stream.text(), Stream(serve, 300)
        stream.wait_events(4)
        first.signal(signal.SIGTERM)
        first.wait_line("Stopping: the front is told", 30)
        assert first.wait(30) == 0
        assert stream.ended_at is None, "it was not to be finished before"
        stack.enter_context(start())
        stream.wait_end(90)
        assert stream.text() == expected and serve.line()["resumed"] == 1
