"""What the stages of a lost line still hold of an answer is not computed again: all of it where no machine was lost, what
comes behind the lost one otherwise."""

import signal

import pytest

from chaos import Machines
from streams import Stream
from toy import write

# Slow links, so that answers take seconds.
SLOW = ("--link", "delay=20ms")
PROMPT = "A line of machines is " * 12
TOKENS = 60
# How far the answer has come when the line is lost.
COME = 10


@pytest.fixture(scope="module")
def line(tmp_path_factory):
    folder = tmp_path_factory.mktemp("line")
    (folder / "models").mkdir()
    model = write(folder / "models" / "toy.gguf")
    args = ("--exact", "--parallel", 4, "--ctx", 512, *SLOW)
    with Machines(folder, model, wires=True, args=args, stage_args=SLOW) as line:
        stream = ask(line)
        stream.wait_end(60)
        line.undisturbed = stream.essence()
        line.n_prompt = line.serve.complete(PROMPT, 1)["usage"]["prompt_tokens"]
        assert line.n_prompt > 200
        yield line


def ask(line):
    """Nobody has asked this before: it begins with nothing."""
    ask.n += 1
    return Stream(line.serve, TOKENS, PROMPT, logprobs=1, prompt_cache_key=str(ask.n))


ask.n = 0


def strike(line, what, stage):
    at = line.seated()[stage]
    if what == "cut":
        line.wires[at].cut()
    elif what == "freeze":
        running = line.running[at]
        running.signal(signal.SIGSTOP)
        line.serve.wait_reason(f"stage {stage}")
        running.signal(signal.SIGCONT)
    else:
        line.kill([at])
        line.start(at)


def reused(line):
    """Positions that answers have taken over on every stage, and on the later ones."""
    prefixes = line.serve.line()["prefixes"]
    return prefixes["reused_tokens"], prefixes["partly_reused_tokens"]


@pytest.mark.parametrize(
    ("what", "stage", "everywhere", "behind"),
    [
        ("cut", 0, True, False),
        ("cut", 2, True, False),
        ("freeze", 1, True, False),
        ("kill", 0, False, True),
        ("kill", 1, False, True),
        ("kill", 2, False, False),
    ],
)
def test_an_answer_goes_on_from_what_is_still_there(line, what, stage, everywhere, behind):
    before, resumed = reused(line), line.serve.line()["resumed"]
    stream = ask(line)
    stream.wait_events(COME)
    strike(line, what, stage)
    stream.wait_end(60)
    assert stream.essence() == line.undisturbed
    assert line.serve.line()["resumed"] == resumed + 1, "over before the line was lost"
    grown = tuple(now - then for now, then in zip(reused(line), before))
    # All that was certain then: a token that was only guessed is none of it.
    least = line.n_prompt + COME - 2
    for n, is_held in zip(grown, (everywhere, behind)):
        assert n >= least if is_held else n == 0, (grown, least)
    line.heal()
