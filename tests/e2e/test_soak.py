"""Short requests without end while machines are killed, frozen, cut off and kept apart: each is answered, and rightly, and nothing
grows. Twenty minutes in a soak, else half a minute."""

import itertools
import threading
import time

import psutil

from chaos import HANGS_S, Machines, Strike, chance
from paceline import SOAK, wait_until
from streams import Stream
from toy import write

LASTS_S, LEAST_ANSWERS = (1200, 5000) if SOAK else (20, 50)
CLIENTS, TOKENS = 8, 12
PROMPTS = [f"{word} {n}" for word in ("rain", "copper", "maps", "bread", "glass", "tides") for n in range(6)]
FAULTS = ["kill", "kill", "cut", "cut", "freeze", "partition", "kill two"]
# Between two faults at most.
PAUSE_S = 6 if SOAK else 2
# A machine that is frozen and cut off like the others, and never killed: what it does not give back, it keeps to the end.
LASTING = 0
# How much more memory a process may have at the end than after the first part: what allocators keep, not a leak.
GROWTH = 24 << 20


class Asker:
    """Asks one short question after the other, at random, and keeps what was wrong with the answers."""

    def __init__(self, serve, expected, pick):
        self.answers, self.wrong, self.enough = 0, [], threading.Event()
        self.thread = threading.Thread(target=self._ask, args=(serve, expected, pick), daemon=True)
        self.thread.start()

    def _ask(self, serve, expected, pick):
        while not self.enough.is_set():
            prompt = pick.choice(PROMPTS)
            try:
                text = serve.text(prompt, TOKENS)
            except Exception as error:  # Whatever it was, the request was lost.
                self.wrong.append((prompt, repr(error)))
                return
            if text != expected[prompt]:
                self.wrong.append((prompt, text))
            self.answers += 1

    def stop(self):
        self.enough.set()
        self.thread.join(HANGS_S)
        assert not self.thread.is_alive(), "a request hangs"


class Footprint:
    """What a process holds on to while it has nothing to do."""

    def __init__(self, pid):
        process, self.pid = psutil.Process(pid), pid
        self.memory, self.handles, self.threads = process.memory_info().rss, process.num_fds(), process.num_threads()

    def __repr__(self):
        return f"{self.memory / (1 << 20):.1f} MiB, {self.handles} handles, {self.threads} threads"


def strike_until(line, pick, end, counts):
    """One fault after the other, each on a line that is whole."""
    pause = threading.Event()
    while time.monotonic() < end:
        pause.wait(pick.random() * PAUSE_S)
        what = pick.choice(FAULTS)
        Strike(line, what, pick, lasting=(LASTING,)).over()
        counts[what] = counts.get(what, 0) + 1


def rest(line):
    """What every process holds once nobody asks any more; nothing is under way then."""
    serve = line.serve
    quiet = lambda: not serve.line()["sequences"] and serve.line()["windows_in_flight"] == 0
    wait_until(quiet, 60, lambda: f"something is left: {serve.line()}")
    # As many at once as there is memory for: no slot is lost on any stage.
    streams = [Stream(serve, 64, prompt) for prompt in PROMPTS[:4]]
    for stream in streams:
        stream.wait_end(60)
        stream.text()
    wait_until(quiet, 60, lambda: f"something is left: {serve.line()}")
    running = {"front": serve, **{f"machine {at}": process for at, process in enumerate(line.running)}}
    return {name: Footprint(process.pid) for name, process in running.items()}


def within(before, after):
    """Whether a process holds no more than it did, but for what is being closed at this moment and what allocators keep."""
    grown = lambda what: getattr(after, what) - getattr(before, what)
    return grown("memory") <= GROWTH and grown("handles") <= 8 and grown("threads") <= 4


def test_requests_under_faults_are_all_answered_and_nothing_grows(tmp_path, record_property):
    (tmp_path / "models").mkdir()
    model = write(tmp_path / "models/toy.gguf")
    args = ("--exact", "--parallel", 4, "--ctx", 256, "--speculate", "auto")
    with Machines(tmp_path, model, spares=1, wires=True, args=args) as line:
        expected = {prompt: line.serve.text(prompt, TOKENS) for prompt in PROMPTS}
        askers, counts, answers = [], {}, 0
        feet, began = [], time.monotonic()
        # The first part warms everything up; what there is after it has to do.
        for part, until in enumerate(began + LASTS_S * share for share in (0.25, 1)):
            askers = [Asker(line.serve, expected, chance("asker", part, at)) for at in range(CLIENTS)]
            strike_until(line, chance("faults", part), until, counts)
            for asker in askers:
                asker.stop()
            wrong = list(itertools.chain.from_iterable(asker.wrong for asker in askers))
            answers += sum(asker.answers for asker in askers)
            assert not wrong, (len(wrong), wrong[:3], counts)
            line.heal()
            feet.append(rest(line))
        before, after = feet
        lasted = time.monotonic() - began
        figures = f"{answers} answers in {lasted:.0f} s, 0 lost or wrong, under {counts}; before {before}, after {after}"
        record_property("soak", figures)
        assert answers >= LEAST_ANSWERS, figures
        for name, foot in after.items():
            # One that was started meanwhile may not hold more than those that had been there for a while.
            if before[name].pid == foot.pid:
                earlier = [before[name]]
            else:
                earlier = [before[other] for other in before if other != "front"]
            assert any(within(then, foot) for then in earlier), (name, figures)
        assert before["front"].pid == after["front"].pid, figures
        lasting = f"machine {LASTING}"
        assert before[lasting].pid == after[lasting].pid, figures
        resumed = line.serve.line()["resumed"]
        assert resumed > 0, "no fault met a request"
