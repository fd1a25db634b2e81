"""Answers that are read while they come."""

import collections
import json
import os
import signal
import threading
import time

import httpx

from paceline import wait_gone

Essence = collections.namedtuple("Essence", "text logprobs finish usage")
# What an answer costs, whoever computed it; how much of it was cached may differ.
COUNTS = ("prompt_tokens", "completion_tokens", "total_tokens")
PROMPT = "Once upon a time there was a"


def piece(choice):
    """What an event adds to the answer, as text: of a completion, or of a chat's content and calls."""
    if "delta" not in choice:
        return choice["text"]
    calls = choice["delta"].get("tool_calls") or []
    return (choice["delta"].get("content") or "") + "".join(call["function"].get("arguments") or "" for call in calls)


def choices(event):
    """What an event says of the answer's choices; the last one says nothing."""
    return [] if event == "[DONE]" else json.loads(event).get("choices", [])


class Stream:
    """A streamed answer that is read in the background: a chat's if there are `messages`, else a completion."""

    def __init__(self, serve, max_tokens, prompt=PROMPT, **more):
        self.events, self.times = [], []
        self.cut_off = False
        self.ended_at = None
        self.more = threading.Condition()
        body = {"max_tokens": max_tokens, "temperature": 0, "ignore_eos": True, "stream": True, **more}
        path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
        if "messages" not in body:
            body["prompt"] = prompt
        self.thread = threading.Thread(target=self._read, args=(serve, path, body), daemon=True)
        self.thread.start()

    def _read(self, serve, path, body):
        try:
            with serve.http.stream("POST", path, json=body) as answer:
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

    def wait_text(self, length, within=60):
        """Returns once the answer is so long, or has ended."""
        said = lambda: sum(len(piece(choice)) for event in self.events for choice in choices(event))
        with self.more:
            enough = self.more.wait_for(lambda: self.ended_at or said() >= length, within)
            assert enough, self.events

    def wait_prompt(self, tokens, within=60):
        """Returns once so many tokens of the prompt are read, or the answer has begun. Asks for `return_progress`."""

        def read():
            progress = [json.loads(event).get("prompt_progress") for event in self.events if event != "[DONE]"]
            # An event without it is one of the answer.
            return (progress[-1] or {"processed": tokens})["processed"] if progress else 0

        with self.more:
            enough = self.more.wait_for(lambda: self.ended_at or read() >= tokens, within)
            assert enough, self.events

    def wait_end(self, within):
        """The last event, once the stream has ended."""
        self.thread.join(within)
        assert not self.thread.is_alive(), f"the stream goes on after {within} s: {self.events[-2:]}"
        return self.events[-1] if self.events else None

    def came(self):
        """The answer as it came: when, and what text. Events that add nothing to it are left out."""
        pieces = (("".join(map(piece, choices(event))), at) for event, at in zip(self.events, self.times))
        return [(at, text) for text, at in pieces if text]

    def longest_pause(self):
        """Seconds between two events at most."""
        return max(later - earlier for earlier, later in zip(self.times, self.times[1:]))

    def parts(self):
        """The events of a stream that ended well."""
        assert self.events and self.events[-1] == "[DONE]" and not self.cut_off, self.events[-2:]
        parts = [json.loads(event) for event in self.events[:-1]]
        assert not any("error" in part for part in parts), parts[-1]
        return parts

    def text(self):
        """All that has come of a stream that ended well."""
        return "".join(piece(choice) for part in self.parts() for choice in part["choices"])

    def essence(self):
        """What must not depend on what happened on the way: text, log-probabilities, why it ended, and what it cost."""
        choices = [choice for part in self.parts() for choice in part["choices"]]
        # However many tokens came in an event.
        logprobs = {}
        for choice in choices:
            for name, values in (choice.get("logprobs") or {}).items():
                logprobs.setdefault(name, []).extend(values or [])
        finish = [choice["finish_reason"] for choice in choices if choice.get("finish_reason")]
        usage = [{count: part["usage"][count] for count in COUNTS} for part in self.parts() if part.get("usage")]
        return Essence(self.text(), logprobs, finish, usage)

    def error(self):
        """The error that a stream carried."""
        errors = [event for event in self.events if event.startswith('{"error"')]
        assert len(errors) == 1, self.events[-3:]
        return json.loads(errors[0])["error"]


def assert_a_kill_changes_nothing(serve, prompt, tokens, events):
    """The text of an answer whose stage 1 is killed after so many events is the one that nothing disturbs; the timings of both,
    the undisturbed one first."""
    undisturbed = Stream(serve, tokens, prompt)
    undisturbed.wait_end(60)
    stream = Stream(serve, tokens, prompt)
    stream.wait_events(events)
    victim = serve.stage_pids()[1]
    os.kill(victim, signal.SIGKILL)
    stream.wait_end(60)
    assert stream.text() == undisturbed.text()
    wait_gone([victim], 5)
    return [each.parts()[-1]["timings"] for each in (undisturbed, stream)]
