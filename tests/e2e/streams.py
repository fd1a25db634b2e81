"""Answers that are read while they come."""

import json
import threading
import time

import httpx

PROMPT = "Once upon a time there was a"


class Stream:
    """A streamed completion that is read in the background."""

    def __init__(self, serve, max_tokens, prompt=PROMPT, **more):
        self.events, self.times = [], []
        self.cut_off = False
        self.ended_at = None
        self.more = threading.Condition()
        body = {"prompt": prompt, "max_tokens": max_tokens, "temperature": 0, "ignore_eos": True, "stream": True, **more}
        self.thread = threading.Thread(target=self._read, args=(serve, body), daemon=True)
        self.thread.start()

    def _read(self, serve, body):
        try:
            with serve.http.stream("POST", "/v1/completions", json=body) as answer:
                for line in answer.iter_lines():
                    if line.startswith("data: "):
                        with self.more:
                            self.events.append(line[6:])
                            self.times.append(time.monotonic())
                            self.more.notify_all()
        except httpx.TransportError:
            # The front is gone: what came until then counts.
            self.cut_off = True
        finally:
            self.ended_at = time.monotonic()
            with self.more:
                self.more.notify_all()

    def wait_events(self, count, within=60):
        """Returns once so many events have come."""
        with self.more:
            enough = self.more.wait_for(lambda: len(self.events) >= count or self.ended_at, within)
            assert enough and len(self.events) >= count, self.events

    def wait_end(self, within):
        """The last event, once the stream has ended."""
        self.thread.join(within)
        assert not self.thread.is_alive(), f"the stream goes on after {within} s: {self.events[-2:]}"
        return self.events[-1] if self.events else None

    def longest_pause(self):
        """Seconds between two events at most."""
        return max(later - earlier for earlier, later in zip(self.times, self.times[1:]))

    def text(self):
        """All that has come of a stream that ended well."""
        assert self.events[-1] == "[DONE]" and not self.cut_off, self.events[-2:]
        parts = [json.loads(event) for event in self.events[:-1]]
        assert not any("error" in part for part in parts), parts[-1]
        return "".join(choice["text"] for part in parts for choice in part["choices"])

    def error(self):
        """The error that a stream carried."""
        errors = [event for event in self.events if event.startswith('{"error"')]
        assert len(errors) == 1, self.events[-3:]
        return json.loads(errors[0])["error"]
