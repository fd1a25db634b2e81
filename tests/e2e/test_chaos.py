"""Stages are killed, frozen and cut off at random tokens, again and again: every answer is what it would have been.

Each run breaks a line of three machines under a stream and compares all that came with the undisturbed answer. Usually a
seeded share; a soak makes a hundred runs of each kind and judges how soon a loss was noticed and how long the answer
paused. `PACELINE_CHAOS_RUNS` makes another number of runs.
"""

import os

import pytest

from answers import long_text
from chaos import Machines, Strike, chance, spread
from paceline import SOAK, wait_until
from prompts import SOIL, VILLAGE
from streams import Stream

RUNS = int(os.environ.get("PACELINE_CHAOS_RUNS", "100" if SOAK else "1"))
TOKENS = 200 if SOAK else 80
# Of a long prompt at least: several chunks.
LONG_TOKENS = 600 if SOAK else 300
# A stream that did not end by then hangs, however busy the machine is.
HANGS_S = 120
# What a soak judges: how soon a killed process or a cut link is noticed, and the pause beside the prompt's computation.
DETECTED_S, PAUSE_S = 0.2, 2

TEXT = {"type": "string", "minLength": 300, "maxLength": 500}
FORM = {"type": "object", "properties": {"name": TEXT, "city": TEXT}, "required": ["name", "city"], "additionalProperties": False}
TOOL = {"type": "function", "function": {"name": "report", "parameters": FORM}}
CALL = {
    "ignore_eos": False,
    "messages": [{"role": "user", "content": "Report on the weather in Oslo."}],
    "tools": [TOOL],
    "tool_choice": {"type": "function", "function": {"name": "report"}},
}
PENALTIES = {"frequency_penalty": 0.4, "presence_penalty": 0.2, "repetition_penalty": 1.1}
# What a stream asks, beside its prompt.
QUESTIONS = {
    "text": {"logprobs": 2, "stop": ["\n\n\n\n"]},
    "warm": {"temperature": 0.8, "seed": 11, "top_p": 0.95, **PENALTIES},
    "form": {"guided_json": FORM, "ignore_eos": False},
    "call": CALL,
    "long": {"cache_prompt": False},
    "stored": {},
}
# What each kind of line consists of. Who is lost on a line without spares starts again, and finds what it had stored.
LINES = {
    "restart": {"disk": True},
    "spares": {"spares": 3, "args": ("--speculate", "auto")},
    "wires": {"wires": True},
}
# Which line is struck how, under which question.
KINDS = [
    ("restart", "kill", "text"),
    ("restart", "kill", "long"),
    ("restart", "kill", "call"),
    ("restart", "kill", "warm"),
    ("restart", "kill two", "text"),
    ("restart", "freeze", "text"),
    ("spares", "kill", "text"),
    ("spares", "kill", "form"),
    ("spares", "kill", "warm"),
    ("spares", "kill", "long"),
    ("spares", "kill two", "text"),
    ("spares", "freeze", "text"),
    ("wires", "cut", "text"),
    ("restart", "kill", "form"),
    ("restart", "kill", "stored"),
    ("spares", "kill", "call"),
]


def share():
    """All kinds in a soak; usually those that differ most, each on one line, drawn by the seed."""
    if SOAK:
        return KINDS
    pick = chance("share")
    by_fault = {}
    for kind in KINDS:
        by_fault.setdefault(kind[1:], []).append(kind)
    return sorted((pick.choice(kinds) for kinds in by_fault.values()), key=KINDS.index)


class Struck:
    """A line with what is known of it when nothing disturbs it."""

    def __init__(self, name, line):
        self.name, self.line, self.known = name, line, {}
        self.long, _ = long_text(line.serve, VILLAGE + SOIL, LONG_TOKENS)
        # What a row of a prompt takes, by one that nobody computed before.
        answer = line.serve.complete(self.long, 1, cache_prompt=False)
        self.row_s = answer["timings"]["prompt_ms"] / 1e3 / answer["usage"]["prompt_tokens"]

    def ask(self, question):
        prompt = {"long": self.long, "stored": self.long}.get(question, "Once upon a time there was a")
        return Stream(self.line.serve, TOKENS, prompt, stream_options={"include_usage": True}, **QUESTIONS[question])

    def expected(self, question):
        """The answer that nothing disturbs."""
        if question not in self.known:
            stream = self.ask(question)
            stream.wait_end(HANGS_S)
            self.known[question] = stream.essence()
            assert self.known[question].usage[0] > TOKENS * 3 // 4, self.known[question]
        return self.known[question]

    def stored(self, question):
        """Tokens that came back from disks so far, once the prompt is on them if that is asked."""
        prefixes = lambda: self.line.serve.line()["prefixes"]
        if question == "stored":
            wait_until(lambda: prefixes()["stored"], HANGS_S, lambda: f"nothing is stored: {prefixes()}")
        return prefixes()["restored_tokens"]

    def wait_moment(self, stream, question, pick, before):
        """Returns at a random token of the answer, or of the prompt where that is what takes time."""
        if question != "long":
            return stream.wait_text(pick.randrange(1, len(self.expected(question).text) * 9 // 10))
        wanted = before + pick.randrange(LONG_TOKENS * 3 // 4)
        prefilled = lambda: self.line.serve.line()["tokens"]["prompt"] > wanted or stream.events
        wait_until(prefilled, HANGS_S, lambda: f"the prompt is not read: {self.line.serve.line()}")

    def run(self, what, question, pick):
        """Strikes once; until the loss was noticed, and the longest pause since, less what the prompt's rows take."""
        expected = self.expected(question)
        before = self.line.serve.line()["tokens"]["prompt"]
        restored = self.stored(question)
        stream = self.ask(question)
        self.wait_moment(stream, question, pick, before)
        strike = Strike(self.line, what, pick)
        stream.wait_end(HANGS_S)
        assert stream.essence() == expected, (what, strike.machines)
        assert question != "stored" or self.line.serve.line()["prefixes"]["restored_tokens"] > restored
        strike.over()
        since = [strike.at, *(at for at in stream.times if at > strike.at)]
        pause = max((later - earlier for earlier, later in zip(since, since[1:])), default=0)
        return strike.detected(), pause


@pytest.fixture(scope="module")
def struck(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp(request.param)
    options = dict(LINES[request.param])
    if options.pop("disk", False):
        options["stage_args"] = options["args"] = ("--cache-disk", 512, "--cache-dir", folder / "cache")
    args = ("--exact", "--parallel", 4, "--ctx", 2048, *options.pop("args", ()))
    with Machines(folder, args=args, **options) as line:
        yield Struck(request.param, line)


@pytest.mark.parametrize("struck, what, question", share(), indirect=["struck"])
def test_no_answer_is_lost_or_changed(struck, what, question, record_property):
    detected, pauses = [], []
    for run in range(RUNS):
        noticed, pause = struck.run(what, question, chance(what, question, run))
        pauses.append(pause)
        # A stage may be lost when the answer was complete already.
        if noticed is not None:
            detected.append(noticed)
    rows_s = struck.row_s * (TOKENS + (LONG_TOKENS if question in ("long", "stored") else 100))
    figures = f"{RUNS} of {RUNS} answers as undisturbed; noticed: {spread(detected or [0])}; longest pause: {spread(pauses)}"
    record_property(f"{what} under {question} ({struck.name})", f"{figures}; {rows_s:.3f} s to compute all rows again")
    if SOAK and what != "freeze":
        assert max(detected) <= DETECTED_S, spread(detected)
        assert max(pauses) <= PAUSE_S + rows_s, spread(pauses)
