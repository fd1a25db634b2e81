"""Lines of several machines, which are folders with keys of their own here: enrolment and `paceline stage`."""

import time

import psutil

from paceline import Process, run, wait_until

# Share of a core that is nothing: a machine that is dialled again and again, and heartbeats.
IDLE = 0.02


class Cluster:
    """A cluster with its root key and one machine's folder per name."""

    def __init__(self, folder):
        self.folder = folder
        self._done("cluster", "new", "--dir", folder / "front")

    @staticmethod
    def _done(*args, env=None):
        done = run(*args, env=env)
        assert done.returncode == 0, done.stderr
        return done.stdout

    @property
    def front(self):
        """The front's key and membership."""
        return self.folder / "front/node.pem"

    def enroll(self, name, role="stage"):
        """Makes a machine a member by the three steps that a person takes; its key and membership."""
        own, request = self.folder / name, self.folder / f"{name}.request"
        self._done("cluster", "enroll", "--request", request, "--dir", own)
        self._done("cluster", "enroll", request, "--name", name, "--role", role, "--dir", self.folder / "front")
        self._done("cluster", "enroll", "--join", f"{request}.member", "--dir", own)
        return own / "node.pem"


def stage(member, port, *args, env=None):
    """Starts a stage of one machine and waits for its port."""
    process = Process("stage", "--cluster", member, "--listen", f"127.0.0.1:{port}", "--threads", 1, *args, env=env)
    try:
        process.wait_line(rf"waits for a front on 127\.0\.0\.1:{port}", 30)
    except BaseException:
        process.stop()
        raise
    return process


class Invitation(Process):
    """`paceline cluster invite`, which is `ticket` as well, with the ticket that it printed."""

    def __init__(self, cluster, *args, command="invite"):
        super().__init__("cluster", command, "--listen", "127.0.0.1:0", "--dir", cluster.folder / "front", *args)
        try:
            self.ticket = self.wait_line(r"paceline-join:\S+", 30)[0]
        except BaseException:
            self.stop()
            raise


def assert_idle(*pids):
    """Fails unless each of these processes computes nothing for a while."""
    processes, shares = [psutil.Process(pid) for pid in pids], []
    used = lambda: [sum(process.cpu_times()[:2]) for process in processes]
    # Other things that the machine does may disturb a measurement, but not all of them.
    for _ in range(5):
        before, since = used(), time.monotonic()
        wait_until(lambda: time.monotonic() - since >= 2, 10, "time stands still")
        lasted = time.monotonic() - since
        shares.append([(now - then) / lasted for now, then in zip(used(), before)])
        if max(shares[-1]) < IDLE:
            return
    raise AssertionError(f"shares of a core while nobody asks for anything: {shares}")
