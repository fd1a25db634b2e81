"""A line of machines to be broken: every stage a process of its own, some beside it that stand by, wires that can be cut.

What happens is drawn by a seed; the line heals, and the next fault meets the same line.
"""

import contextlib
import itertools
import os
import random
import signal
import threading
import time

from machines import Cluster, stage
from paceline import SMOLLM2, Serve, free_port, wait_until
from prompts import SEED
from wires import Wire

STAGES = 3
# Until a line is whole again, on a machine that is busy with other things.
HEALED_S = 90
# How long requests wait for a line: longer than that, so that no test has a shorter limit than the one that it names.
WAITS_S = 120
# A request that did not end by then hangs, however busy the machine is.
HANGS_S = 150
# What ends by itself, and after how long: far longer than a machine may be silent.
TRANSIENT, TRANSIENT_S = ("freeze", "partition"), 5


class Machines:
    """Three machines that compute, as many that stand by if wished, and a front without layers."""

    def __init__(
        self, folder, model=SMOLLM2, *, spares=0, fixed=None, wires=False, waits_s=WAITS_S, stage_args=(), args=()
    ):
        self.stack, self.model, self.stage_args = contextlib.ExitStack(), model, stage_args
        cluster = Cluster(folder)
        n = STAGES + spares
        self.has_spares, self.n_covered = spares > 0, min(spares, STAGES if fixed is None else 1)
        self.ports = [free_port() for _ in range(n)]
        self.members = [cluster.enroll(f"machine-{at}") for at in range(n)]
        self.running = [None] * n
        self.wires = [Wire(port) for port in self.ports] if wires else []
        try:
            self.stack.callback(lambda: [running.stop() for running in self.running if running])
            self.stack.callback(lambda: [wire.close() for wire in self.wires])
            for at in range(n):
                self.start(at)
            self.addresses = [f"127.0.0.1:{port}" for port in ([wire.port for wire in self.wires] or self.ports)]
            # Spares that may take one stage's place only.
            only = "" if fixed is None else f"={fixed}"
            stages, others = self.addresses[:STAGES], [f"{address}{only}" for address in self.addresses[STAGES:]]
            named = zip(["--stage"] * STAGES + ["--spare"] * spares, stages + others)
            waits = ("--replay-timeout", f"{waits_s}s", "--queue-timeout", f"{WAITS_S}s")
            named = itertools.chain.from_iterable(named)
            self.front = (model, "--front-only", *named, "--cluster", cluster.front, *waits, *args)
            self.serve = self.stack.enter_context(Serve(*self.front))
            self.heal()
        except BaseException:
            self.stack.close()
            raise

    def start(self, at):
        """Starts a machine, also again."""
        self.running[at] = stage(self.members[at], self.ports[at], "--models", self.model.parent, *self.stage_args)

    def kill(self, machines):
        """Ends machines as a lack of memory would: all at once."""
        for at in machines:
            os.kill(self.running[at].pid, signal.SIGKILL)
        for at in machines:
            self.running[at].wait()

    def seated(self):
        """The machines that compute, in line order."""
        return [self.addresses.index(one["address"]) for one in self.serve.line()["stages"]]

    def heal(self):
        """Returns once the line is whole, and everybody is there: whoever was lost is started again."""
        for at, running in enumerate(self.running):
            if running.process.poll() is not None:
                self.start(at)
        self.serve.wait_ready(HEALED_S)
        # A spare covers one stage each.
        is_whole = lambda: sum(one["standby"] == "warm" for one in self.serve.line()["stages"]) == self.n_covered
        if self.has_spares:
            wait_until(is_whole, HEALED_S, lambda: f"nothing stands by: {self.serve.line()}")

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.stack.close()


class Strike:
    """One fault: what was done to which machines, and when."""

    def __init__(self, line, what, chance, lasting=()):
        """Those that are `lasting` are never killed."""
        self.line, self.what = line, what
        self.n_lines = len(line.serve.lines)
        mortal = [at for at in line.seated() if not (what.startswith("kill") and at in lasting)]
        self.machines = chance.sample(mortal, 2 if what == "kill two" else 1)
        self.at = time.monotonic()
        if what.startswith("kill"):
            line.kill(self.machines)
        elif what == "freeze":
            running = line.running[self.machines[0]]
            running.signal(signal.SIGSTOP)
            self.ends = threading.Timer(TRANSIENT_S, running.signal, [signal.SIGCONT])
        elif what == "partition":
            wire = line.wires[self.machines[0]]
            wire.partition()
            self.ends = threading.Timer(TRANSIENT_S, wire.heal)
        elif what == "cut":
            line.wires[self.machines[0]].cut()
        else:
            raise ValueError(what)
        if what in TRANSIENT:
            self.ends.start()
        if what.startswith("kill") and not line.has_spares:
            for at in self.machines:
                line.start(at)

    def detected(self):
        """Seconds until the front said that its line is lost, which it does of every line that is struck."""
        serve = self.line.serve
        heard = lambda: list(zip(serve.lines, serve.times))[self.n_lines :]
        lost = lambda: next((at for said, at in heard() if "the line is lost" in said), None)
        with serve.said:
            at = serve.said.wait_for(lost, HEALED_S)
        assert at, f"nobody noticed that {self.what} befell {self.machines}: {serve.lines[self.n_lines :]}"
        return at - self.at

    def over(self):
        """Returns once nothing more happens: the loss was noticed, and made good."""
        if self.what in TRANSIENT:
            self.ends.join()
        self.detected()
        self.line.heal()


def chance(*of):
    """What a run draws from."""
    return random.Random("/".join(map(str, (SEED, *of))))


def spread(values):
    """How seconds are spread."""
    values = sorted(values)
    at = lambda share: values[min(len(values) - 1, int(share * len(values)))]
    return f"median {at(0.5):.3f} s, 95 % {at(0.95):.3f} s, most {values[-1]:.3f} s"
