"""A sliding window that keeps little memory refuses what it cannot do, and answers what a whole one answers."""

from answers import cached, essence, long_text
from paceline import GEMMA, Serve, complaint, run
from prompts import SOIL, VILLAGE

ANSWER = 8


def said(answer):
    return answer["choices"][0]["text"]


def test_it_cannot_be_exact():
    done = run("serve", GEMMA, "--exact", "--swa-full=false")
    assert "--swa-full=false" in complaint(done, 2)


def test_it_goes_on_from_whole_prefixes_only():
    more = ["--stages", 2, "--threads", 1, "--ctx", 2048, "--speculate", "suffix", "--swa-full=false"]
    with Serve(GEMMA, *more) as line:
        line.wait_ready()
        # Beyond the window of 512.
        text, _ = long_text(line, VILLAGE + SOIL, 600)
        first = line.complete(text, ANSWER)
        # A part of what is there would have to be cut out of what was forgotten: it is computed.
        part = line.complete(f"{text[:-40]} And then?", ANSWER)
        assert cached(part) == 0
        longer = f"{text}{said(first)} And then?"
        whole = line.complete(longer, ANSWER)
        assert cached(whole) in (0, first["usage"]["total_tokens"] - 1), "all of it or nothing"
        alone = line.complete(longer, ANSWER, cache_prompt=False)
        assert said(whole) == said(alone)
        assert line.line()["stages"][0]["state"] == "ready", "and nothing failed on the way"


def test_prompts_that_share_more_than_the_window_say_what_they_would_have_said():
    more = ["--stages", 2, "--threads", 1, "--ctx", 1024, "--exact", "--parallel", 2]
    with Serve(GEMMA, *more) as line:
        line.wait_ready()
        text, _ = long_text(line, VILLAGE, 560)
        ask = lambda tail, **body: line.complete(f"{text} {tail}", ANSWER, logprobs=2, **body)
        alone = {tail: essence(ask(tail, cache_prompt=False)) for tail in ("Who lives there?", "A poem:")}
        shared = ask("What is soil, and who made it of what?")["usage"]["prompt_tokens"] - 12
        found = {tail: ask(tail) for tail in alone}
        assert {tail: essence(answer) for tail, answer in found.items()} == alone
        # The first one cuts the slot, and what is saved then is what the next one begins with.
        assert [cached(answer) >= shared - 8 for answer in found.values()] == [True, True], found
        # A part of what was saved would lack what its windows look back to: it is computed.
        part = f"{text[:-200]} And then?"
        assert essence(line.complete(part, ANSWER, logprobs=2)) == essence(
            line.complete(part, ANSWER, logprobs=2, cache_prompt=False)
        )
