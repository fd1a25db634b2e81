"""Drives the real binary: starts and ends its processes, reads what they say, asks the front over HTTP.

Nothing here waits for a fixed time: every wait is for an event and has a deadline.
"""

import contextlib
import os
import re
import signal
import socket
import subprocess
import threading
import time
from pathlib import Path

import httpx
import psutil

ROOT = Path(__file__).resolve().parents[2]
BINARY = Path(os.environ.get("PACELINE_BINARY", ROOT / "target/release/paceline"))
SMOLLM2 = ROOT / "models/SmolLM2-135M-Instruct.Q4_1.gguf"
GEMMA = ROOT / "models/gemma-3-270m-q4_k_m.gguf"
# Trained for tests, with a block of its own that drafts; it copies texts. In the repository.
TINY_MTP = ROOT / "tests/fixtures/paceline-tiny-mtp.gguf"
SOAK = os.environ.get("PACELINE_SOAK") == "1"

# Between two looks at something that cannot be waited for otherwise.
LOOK_AGAIN_S = 0.02
# A line that has to be cut first, on a machine that is busy with other things.
READY_S = 90
# A process that was asked to end lets running requests finish for 5 s.
END_S = 15
# Until an answer, which may have to wait for a line and then for a place.
ANSWER_S = 900 if SOAK else 150


def wait_until(condition, within, what):
    """The first true value of `condition()`; fails when there is none within so many seconds."""
    deadline = time.monotonic() + within
    pause = threading.Event()
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"within {within} s: {what() if callable(what) else what}"
        pause.wait(LOOK_AGAIN_S)


def free_port():
    """A port that nobody uses now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def environment(cache=None, config=None):
    """The environment for a process with other folders for what it keeps."""
    env = dict(os.environ)
    if cache is not None:
        env["XDG_CACHE_HOME"] = str(cache)
    if config is not None:
        env["XDG_CONFIG_HOME"] = str(config)
    return env


def run(*args, env=None, within=120):
    """Runs a command to its end."""
    command = [str(BINARY), *map(str, args)]
    return subprocess.run(command, env=env, capture_output=True, text=True, timeout=within, stdin=subprocess.DEVNULL)


def complaint(done, code):
    """The one sentence with which a failed command ends; fails if it said anything else or ended otherwise."""
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    complaints = [line for line in done.stderr.splitlines() if line.startswith("paceline: ")]
    assert len(complaints) == 1 and done.stderr.splitlines()[-1] == complaints[0], done.stderr
    for word in ("panicked", "RUST_BACKTRACE", "stack backtrace", "GGML_ASSERT"):
        assert word not in done.stderr, done.stderr
    return complaints[0]


def is_gone(pid):
    """Whether a process has ended; one that nobody has waited for yet has ended too."""
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def wait_gone(pids, within):
    """Returns once all these processes have ended."""
    left = lambda: [pid for pid in pids if not is_gone(pid)]
    wait_until(lambda: not left(), within, lambda: f"processes {left()} still live")


class Process:
    """A process of the binary in a process group of its own, with every line that it says. Ended by `with`."""

    # For the report of a failed test.
    started = []

    def __init__(self, *args, env=None, program=BINARY):
        command = [str(program), *map(str, args)]
        self.name = " ".join(command[1:])
        self.lines = []
        # When each of them came.
        self.times = []
        self.said = threading.Condition()
        self.silent = False
        self.process = subprocess.Popen(
            command,
            env=env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self.pid = self.process.pid
        threading.Thread(target=self._read, daemon=True).start()
        Process.started.append(self)

    def _read(self):
        for line in self.process.stdout:
            with self.said:
                self.times.append(time.monotonic())
                self.lines.append(line.rstrip("\n"))
                self.said.notify_all()
        with self.said:
            self.silent = True
            self.said.notify_all()

    def wait_line(self, pattern, within):
        """The match in the first line that holds the pattern, said or still to be said."""
        wanted = re.compile(pattern)
        found = lambda: next((match for match in map(wanted.search, self.lines) if match), None)
        with self.said:
            self.said.wait_for(lambda: found() or self.silent, within)
            match = found()
        assert match, f"`{self.name}` did not say {pattern!r} within {within} s but: {self.lines}"
        return match

    def children(self):
        """Process ids of the stages that it has started and that live."""
        return [child for child, command in self.family().items() if command != "template"]

    def family(self):
        """Process ids of all its children that live, with their commands."""
        family = {}
        try:
            for child in psutil.Process(self.pid).children(recursive=True):
                with contextlib.suppress(psutil.NoSuchProcess):
                    family[child.pid] = (child.cmdline() + ["", ""])[1]
        except psutil.NoSuchProcess:
            pass
        return family

    def signal(self, number):
        """Sends a signal to this process alone."""
        self.process.send_signal(number)

    def wait(self, within=END_S):
        """The exit code, once it has ended."""
        return self.process.wait(within)

    def stop(self):
        """Ends it as a service manager would, and whatever is left of it by force."""
        family = list(self.family())
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
            try:
                self.process.wait(END_S)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait(END_S)
        for pid in family:
            if not is_gone(pid):
                os.kill(pid, signal.SIGKILL)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stop()


class Serve(Process):
    """`paceline serve` on a port of the system's choice."""

    def __init__(self, model, *args, env=None, program=BINARY):
        super().__init__("serve", model, "--listen", "127.0.0.1:0", *args, env=env, program=program)
        try:
            self.url = self.wait_line(r'is starting on (http://[^\s"]+)', 30)[1]
        except BaseException:
            self.stop()
            raise
        self.http = httpx.Client(base_url=self.url, timeout=ANSWER_S)

    def stop(self):
        super().stop()
        if hasattr(self, "http"):
            self.http.close()

    def readiness(self):
        """None when ready, else the reason."""
        answer = self.http.get("/ready")
        return None if answer.status_code == 200 else answer.json()["error"]["reason"]

    def wait_ready(self, within=READY_S):
        """Returns once a token has passed through every stage."""
        last = None

        def ready():
            nonlocal last
            assert self.process.poll() is None, f"`{self.name}` ended: {self.lines}"
            last = self.readiness()
            return last is None

        wait_until(ready, within, lambda: f"the line was not ready: {last}")

    def wait_reason(self, pattern, within=30):
        """The match, once the line says that it is not ready for a reason like this."""
        last = None

        def like():
            nonlocal last
            last = self.readiness()
            return re.search(pattern, last or "")

        return wait_until(like, within, lambda: f"no reason like {pattern!r} but {last!r}")

    def line(self):
        """`GET /v1/line`."""
        return self.http.get("/v1/line").json()

    def stage_pids(self):
        """Process ids of all stages, the front's own first."""
        return [stage["pid"] for stage in self.line()["stages"]]

    def complete(self, prompt, max_tokens=24, **more):
        """The answer to a prompt, greedily unless told otherwise."""
        body = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True, **more}
        answer = self.http.post("/v1/completions", json=body)
        assert answer.status_code == 200, answer.text
        return answer.json()

    def text(self, prompt, max_tokens=24, **more):
        """Only the text of that answer."""
        return self.complete(prompt, max_tokens, **more)["choices"][0]["text"]
