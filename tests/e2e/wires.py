"""Ports before other ports: connections through them can be cut, held up, swallowed, or turned away."""

import contextlib
import socket
import struct
import threading

import psutil


class Wire:
    """A port before another one that passes bytes on until it is cut, or holds them up, or swallows them."""

    def __init__(self, to):
        self.to, self.lock, self.joined, self.swallows_of = to, threading.Lock(), [], None
        self.passes = threading.Event()
        self.passes.set()
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = self.listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                near, _ = self.listener.accept()
            except OSError:
                return  # Closed.
            self.passes.wait()
            if not self.lets_in(near):
                near.close()
                continue
            try:
                far = socket.create_connection(("127.0.0.1", self.to))
            except OSError:
                near.close()
                continue
            with self.lock:
                swallows = self.swallows_of is not None and self.swallows_of == owner(near)
                link = Joined(near, far, self.passes, swallows)
                self.joined = [other for other in self.joined if not other.over] + [link]

    def lets_in(self, near):
        """Whether a new connection may pass."""
        return True

    def cut(self):
        """Breaks every connection; new ones may be made at once."""
        with self.lock:
            for link in self.joined:
                link.cut()

    def partition(self):
        """From now on nothing passes either way, not even that an end was closed, and new connections get nowhere."""
        self.passes.clear()

    def heal(self):
        """Everything that was held up passes, and whatever comes later."""
        self.passes.set()

    def swallow(self, sent_by):
        """From now on nothing passes that this process sends, though its connections stand and new ones are made."""
        with self.lock:
            self.swallows_of, known = sent_by, owners()
            for link in self.joined:
                link.swallows = not link.over and owner(link.ends[0], known) == sent_by

    def close(self):
        self.listener.close()
        self.cut()
        self.heal()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()


class Gate(Wire):
    """A wire that lets some processes in and turns all others away: a wall before a machine."""

    def __init__(self, to):
        self.let_in, self.turned_away = set(), 0
        super().__init__(to)

    def lets_in(self, near):
        if owner(near) in self.let_in:
            return True
        self.turned_away += 1
        return False


def owners():
    """The processes of this machine's connections, by their own addresses. Takes long on a busy machine."""
    return {tuple(one.laddr): one.pid for one in psutil.net_connections("tcp4") if one.laddr}


def owner(end, known=None):
    """The process at the other end of a connection on this machine."""
    with contextlib.suppress(OSError):
        peer = end.getpeername()
        return (owners() if known is None else known).get(peer)
    return None


class Joined:
    """A connection through a wire."""

    def __init__(self, near, far, passes, swallows):
        self.ends, self.over, self.passes, self.swallows = (near, far), False, passes, swallows
        for end in self.ends:
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for source, sink in (self.ends, self.ends[::-1]):
            threading.Thread(target=self._copy, args=(source, sink), daemon=True).start()

    def _copy(self, source, sink):
        try:
            while data := source.recv(1 << 16):
                self.passes.wait()
                if not (self.swallows and source is self.ends[0]):
                    sink.sendall(data)
        except OSError:
            pass  # The other direction ends, too.
        self.passes.wait()
        self.over = True
        for end in self.ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def cut(self):
        """Without a goodbye, as if a cable were pulled and its ends noticed."""
        for end in self.ends:
            with contextlib.suppress(OSError):
                end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                end.shutdown(socket.SHUT_RDWR)
