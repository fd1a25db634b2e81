"""Stages are killed, frozen, cut off and kept apart at random tokens, again and again: every answer is what it would have
been.

Each run breaks a line of three machines under a stream and compares all that came with the undisturbed answer. Usually a
seeded share; a soak makes a hundred runs of each kind and judges how soon a loss was noticed and how long the answer
paused. `PACELINE_CHAOS_RUNS` makes another number of runs, or some of them (`40-99`), `PACELINE_CHAOS_KINDS` only the kinds
of these names or patterns (`restart-kill-text,wires-*`), and `PACELINE_SEED` draws another share.
"""

import collections
import contextlib
import fnmatch
import os

import pytest

from answers import long_text
from chaos import HANGS_S, TRANSIENT, TRANSIENT_S, Machines, Strike, chance, spread
from paceline import SOAK, wait_until
from prompts import SOIL, VILLAGE
from streams import Stream


# What was seen of a fault: seconds until it was noticed, the longest pause of the answer since, how long that one may be,
# whether the answer was interrupted, and whether that was at the moment wished for.
Seen = collections.namedtuple("Seen", "noticed pause limit was_met in_time")


def chosen_runs(text):
    """Their numbers, by which they draw what happens: so many, or from one to another."""
    first, _, last = text.rpartition("-")
    return range(int(first), int(last) + 1) if first else range(int(last))


RUNS = chosen_runs(os.environ.get("PACELINE_CHAOS_RUNS", "100" if SOAK else "1"))
TOKENS = 200 if SOAK else 80
# Of a long prompt at least: several chunks.
LONG_TOKENS = 600 if SOAK else 300
# How many kinds usually: one of those that take long, and others.
N_SLOW, N_QUICK = 1, 5
# How soon a killed process or a cut link is noticed, also beside other tests.
DETECTED_S = 0.2 if SOAK else 0.5
# What only a soak judges: how soon silence is noticed, which may last for a second, and the pause beside what the loss itself
# takes and the computation of all that was known.
SILENCE_S = 1
SILENCE_DETECTED_S, PAUSE_S = SILENCE_S + 0.3, 2
# Share of a soak's answers that must have been interrupted, and at the moment that their kind is about: of others the last
# tokens were under way already, or the prompt was read.
INTERRUPTED = 0.9

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
    "long": {"cache_prompt": False, "return_progress": True},
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
    ("wires", "partition", "text"),
    ("restart", "kill", "form"),
    ("restart", "kill", "stored"),
    ("spares", "kill", "call"),
]


def name_of(kind):
    """What a kind is called: `spares-kill-two-text`."""
    return "-".join(kind).replace(" ", "-")


def share():
    """All kinds in a soak, or those that are wished for; usually some of those that differ most, each on one line, drawn
    by the seed."""
    in_turn = lambda kinds: sorted(kinds, key=lambda kind: (list(LINES).index(kind[0]), KINDS.index(kind)))
    if patterns := os.environ.get("PACELINE_CHAOS_KINDS"):
        wished = [kind for kind in KINDS if any(fnmatch.fnmatch(name_of(kind), wish) for wish in patterns.split(","))]
        assert wished, f"no kind is called {patterns}: {', '.join(map(name_of, KINDS))}"
        return in_turn(wished)
    if SOAK:
        return in_turn(KINDS)
    pick = chance("share")
    by_fault = {}
    for kind in KINDS:
        by_fault.setdefault(kind[1:], []).append(kind)
    drawn = [pick.choice(kinds) for kinds in by_fault.values()]
    slow = [kind for kind in drawn if kind[1] in TRANSIENT or kind[2] in ("long", "stored")]
    quick = [kind for kind in drawn if kind not in slow]
    return in_turn(pick.sample(slow, N_SLOW) + pick.sample(quick, N_QUICK))


class Struck:
    """A line with what is known of it when nothing disturbs it."""

    def __init__(self, name, line):
        self.name, self.line, self.known, self.is_sound = name, line, {}, True
        self.long, self.n_long = long_text(line.serve, VILLAGE + SOIL, LONG_TOKENS)
        # What a row of a prompt takes, by one that nobody computed before. Only a soak judges by it.
        answer = line.serve.complete(self.long if SOAK else SOIL, 1, cache_prompt=False)
        self.row_s = answer["timings"]["prompt_ms"] / 1e3 / answer["usage"]["prompt_tokens"]

    def ask(self, question):
        prompt = {"long": self.long, "stored": self.long}.get(question, "Once upon a time there was a")
        return Stream(self.line.serve, TOKENS, prompt, stream_options={"include_usage": True}, **QUESTIONS[question])

    def expected(self, question):
        """The answer that nothing disturbs."""
        if question not in self.known:
            before = self.prefixes()["stored_tokens"]
            stream = self.ask(question)
            stream.wait_end(HANGS_S)
            self.known[question] = stream.essence()
            assert self.known[question].usage[0]["completion_tokens"] > TOKENS * 3 // 4, self.known[question]
            if question == "stored":
                # All of this prompt, beside what other questions have left there.
                is_stored = lambda: self.prefixes()["stored_tokens"] >= before + self.n_long
                wait_until(is_stored, HANGS_S, lambda: f"not stored: {self.prefixes()}, before: {before} tokens")
        return self.known[question]

    def prefixes(self):
        return self.line.serve.line()["prefixes"]

    def wait_moment(self, stream, question, pick):
        """Returns at a random token of the answer, or of the prompt where that is what takes time."""
        if question != "long":
            # A soak strikes late tokens, too, though some of those answers are over by then.
            most = 0.9 if SOAK and question != "stored" else 0.5
            return stream.wait_text(pick.randrange(1, int(len(self.expected(question).text) * most)))
        return stream.wait_prompt(pick.randrange(1, LONG_TOKENS * 3 // 4))

    def n_rows(self, prompt_tokens, text):
        """Of a prompt and what has come of its answer: what is computed again."""
        tokens = self.line.serve.http.post("/tokenize", json={"content": text}).json()["tokens"]
        return prompt_tokens + len(tokens)

    def longest(self, what, n_rows):
        """How long an answer may pause: until the loss is noticed or over, and until all is computed again."""
        silent_s = 0 if what not in TRANSIENT else SILENCE_S if self.line.has_spares else TRANSIENT_S
        return silent_s + PAUSE_S + n_rows * self.row_s

    def run(self, what, question, pick):
        """Strikes once, and tells what was seen."""
        self.is_sound = False
        expected = self.expected(question)
        before = self.line.serve.line()
        stream = self.ask(question)
        self.wait_moment(stream, question, pick)
        strike = Strike(self.line, what, pick)
        stream.wait_end(HANGS_S)
        assert stream.essence() == expected, (what, strike.machines)
        strike.over()
        after = self.line.serve.line()
        was_met = after["resumed"] > before["resumed"]
        if question == "stored" and was_met:
            assert after["prefixes"]["restored_tokens"] > before["prefixes"]["restored_tokens"], after
        self.is_sound = True
        since = [strike.at, *(at for at, _ in stream.came() if at > strike.at)]
        pause = max((later - earlier for earlier, later in zip(since, since[1:])), default=0)
        had = "".join(text for at, text in stream.came() if at <= strike.at)
        limit = self.longest(what, self.n_rows(expected.usage[0]["prompt_tokens"], had))
        # While a prompt is read nothing has come yet; otherwise something has, and more was to come.
        in_time = not had if question == "long" else "" != had != expected.text
        return Seen(strike.detected(), pause, limit, was_met, in_time)


@pytest.fixture(scope="module")
def strike_on(tmp_path_factory):
    """The line of a name: the one of the test before if it is that and has healed, else a new one in its place."""
    stack, last = contextlib.ExitStack(), None

    def of(name):
        nonlocal last
        if last is None or last.name != name or not last.is_sound:
            last = None
            stack.close()
            folder = tmp_path_factory.mktemp(name)
            options = dict(LINES[name])
            if options.pop("disk", False):
                options["stage_args"] = options["args"] = ("--cache-disk", 512, "--cache-dir", folder / "cache")
            args = ("--exact", "--parallel", 4, "--ctx", 2048, *options.pop("args", ()))
            last = Struck(name, stack.enter_context(Machines(folder, args=args, **options)))
        return last

    with stack:
        yield of


@pytest.mark.parametrize("kind", share(), ids=name_of)
def test_no_answer_is_lost_or_changed(strike_on, kind, record_property):
    name, what, question = kind
    struck = strike_on(name)
    seen = []
    try:
        for run in RUNS:
            seen.append(struck.run(what, question, chance(what, question, run)))
    finally:
        n_met, n_in_time = sum(run.was_met for run in seen), sum(run.in_time for run in seen)
        figures = f"{len(seen)} of {len(RUNS)} answers as undisturbed, {n_met} of them interrupted, {n_in_time} in time"
        if seen:
            noticed, limits = [run.noticed for run in seen], [run.limit for run in seen]
            figures += f"; noticed: {spread(noticed)}; longest pause: {spread([run.pause for run in seen])}"
            figures += f"; allowed: {min(limits):.3f} to {max(limits):.3f} s"
        record_property(name_of(kind), figures)
    is_silent = what in TRANSIENT
    if SOAK or not is_silent:
        assert max(noticed) <= (SILENCE_DETECTED_S if is_silent else DETECTED_S), figures
    if SOAK:
        assert n_met >= len(RUNS) * INTERRUPTED, figures
        assert n_in_time >= len(RUNS) * INTERRUPTED, figures
        too_long = [run for run in seen if run.pause > run.limit]
        assert not too_long, (too_long, figures)
    else:
        # Half of an answer is left then. Only guesses can be so good that it is under way already.
        assert n_met or name == "spares", figures
