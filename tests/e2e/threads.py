"""Single threads of a process that stand still for a while, as one does that waits for a disk or for memory that was swapped
out, or hangs in a driver: the others go on, heartbeats too. Linux only, by the means of a debugger."""

import contextlib
import ctypes
import os
import platform
import re
import threading
from pathlib import Path

from paceline import LOOK_AGAIN_S

# What stages call the thread that computes.
ENGINE = r"stage-\d+"

SEIZE, INTERRUPT, CONTINUE, DETACH = 0x4206, 0x4207, 7, 17
# Wait for threads of other processes as for children.
WALL = 0x40000000
# The system call with which a thread waits for another one.
FUTEX = {"x86_64": "202", "aarch64": "98"}[platform.machine()]
# A thread stops at once, and waits for work again and again; no debugger's wait should hang a test.
STOPS_WITHIN_S = 30


def named(pid, name):
    """The thread of a process whose name is like this."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    found = [int(task.name) for task in tasks if re.fullmatch(name, (task / "comm").read_text().strip())]
    assert len(found) == 1, (pid, name, found)
    return found[0]


def ask_kernel(request, thread):
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    libc.ptrace.restype = ctypes.c_long
    if libc.ptrace(request, thread, None, None):
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), f"ptrace {request:#x} of thread {thread}")


class Halted:
    """The engine's thread of a stage does not run from now on, until this is let go or its process ends: what it is given
    waits as it would behind a call that does not end."""

    def __init__(self, pid):
        self.pid, self.thread, self.failure = pid, named(pid, ENGINE), None
        self.stands, self.let_go = threading.Event(), threading.Event()
        # Only the thread that stopped another one may let it go.
        self.keeper = threading.Thread(target=self._keep, daemon=True)
        self.keeper.start()
        assert self.stands.wait(STOPS_WITHIN_S), f"thread {self.thread} does not stop"
        if self.failure:
            raise self.failure

    def _keep(self):
        try:
            ask_kernel(SEIZE, self.thread)
            while not self._stops_where_it_waits():
                ask_kernel(CONTINUE, self.thread)
                self.let_go.wait(LOOK_AGAIN_S)
        except OSError as failure:
            self.failure = failure
            self.stands.set()
            return
        self.stands.set()
        while not self.let_go.wait(LOOK_AGAIN_S):
            # If its process is ended meanwhile, nobody hears of that before it was looked at here.
            if os.waitpid(self.thread, WALL | os.WNOHANG)[0]:
                return
        with contextlib.suppress(ProcessLookupError):
            ask_kernel(DETACH, self.thread)

    def _stops_where_it_waits(self):
        """Stops it. Whether it holds nothing then that other threads need: elsewhere it may be about to send something."""
        ask_kernel(INTERRUPT, self.thread)
        os.waitpid(self.thread, WALL)
        return Path(f"/proc/{self.pid}/task/{self.thread}/syscall").read_text().split()[0] == FUTEX

    def go_on(self):
        self.let_go.set()
        self.keeper.join()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.go_on()
