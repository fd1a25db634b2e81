"""Lines of several machines, which are folders with keys of their own here: enrolment, `paceline stage`, and walls between
them."""

import contextlib
import socket
import threading

import psutil

from paceline import Process, run


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
    """`paceline cluster invite`, with the ticket that it printed."""

    def __init__(self, cluster, *args):
        super().__init__("cluster", "invite", "--listen", "127.0.0.1:0", "--dir", cluster.folder / "front", *args)
        try:
            self.ticket = self.wait_line(r"paceline-join:\S+", 30)[0]
        except BaseException:
            self.stop()
            raise


class Gate:
    """A port before another one that lets some processes in and turns all others away: a wall before a machine."""

    def __init__(self, to):
        self.to, self.let_in, self.turned_away = to, set(), 0
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                near, peer = self.listener.accept()
            except OSError:
                return  # Closed.
            if self._owner(peer) in self.let_in:
                threading.Thread(target=self._join, args=(near,), daemon=True).start()
            else:
                self.turned_away += 1
                near.close()

    @staticmethod
    def _owner(peer):
        """The process at the other end of a connection on this machine."""
        for connection in psutil.net_connections("tcp4"):
            if connection.laddr and tuple(connection.laddr) == peer:
                return connection.pid
        return None

    def _join(self, near):
        try:
            far = socket.create_connection(("127.0.0.1", self.to))
        except OSError:
            return near.close()
        for end in (near, far):
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=self._copy, args=(far, near), daemon=True).start()
        self._copy(near, far)

    @staticmethod
    def _copy(source, sink):
        try:
            while data := source.recv(1 << 16):
                sink.sendall(data)
        except OSError:
            pass  # The other direction ends, too.
        for end in (source, sink):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.listener.close()
