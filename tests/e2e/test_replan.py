"""Machines that are lost and that nothing stands by for: the others share their layers, and give them back later."""

import pytest

from chaos import HEALED_S, Machines, chance
from paceline import SMOLLM2, SOAK, complaint, run, wait_until
from streams import Stream
from toy import write

AFTER_S = 1
TOKENS = 200 if SOAK else 64
PROMPTS = ["Once upon a time there was a", "Q: What is rain?\nA:", "1. copper\n2. iron\n3."]
ARGS = ("--exact", "--parallel", 4, "--ctx", 512, "--replan-after", f"{AFTER_S}s")
# So that answers of a small model take a while.
SLOW = ("--link", "delay=20ms")


def ranges(serve):
    return [stage["layers"] for stage in serve.line()["stages"]]


def answers(serve):
    streams = [Stream(serve, TOKENS, prompt) for prompt in PROMPTS]
    for stream in streams:
        stream.wait_end(HEALED_S)
    return [stream.essence() for stream in streams]


def lost_under_streams(line, machines):
    """Machines are killed while answers come, and stay away; the answers."""
    streams = [Stream(line.serve, TOKENS, prompt) for prompt in PROMPTS]
    for stream in streams:
        stream.wait_events(3)
    line.kill(machines)
    for stream in streams:
        stream.wait_end(HEALED_S)
    return [stream.essence() for stream in streams]


def shared_among(line, machines):
    """Returns once the line is up and has these machines, which share all of its layers; how they do."""
    is_so = lambda: line.seated() == machines and not line.serve.readiness()
    wait_until(is_so, HEALED_S, lambda: f"other machines: {line.serve.line()}")
    found = ranges(line.serve)
    assert found[0][0] == 0 and len(found) == len(machines), found
    assert all(one[1] == next[0] for one, next in zip(found, found[1:])), found
    return found


def test_the_rest_of_a_line_takes_over_and_gives_back(tmp_path):
    pick = chance("replan")
    with Machines(tmp_path, SMOLLM2, args=ARGS) as line:
        expected, given = answers(line.serve), ranges(line.serve)
        everybody = line.seated()
        first, second = pick.sample(everybody, 2)
        assert lost_under_streams(line, [first]) == expected
        two = shared_among(line, [at for at in everybody if at != first])
        assert two[-1][1] == given[-1][1], (two, given)
        assert lost_under_streams(line, [second]) == expected
        (one,) = shared_among(line, [at for at in everybody if at not in (first, second)])
        assert one == [0, given[-1][1]], one
        assert line.serve.line()["given_stages"] == len(given)
        # One of them is back: it is not needed where it was, and stands by for the one that has all.
        line.start(first)
        back = lambda: any(spare["state"] == "spare" for spare in line.serve.line()["spares"])
        wait_until(back, HEALED_S, lambda: f"it does not stand by: {line.serve.line()}")
        assert len(line.seated()) == 1
        line.start(second)
        assert shared_among(line, everybody) == given
        assert answers(line.serve) == expected
        reasons = [said for said in line.serve.lines if "the layers are shared out anew" in said]
        assert len(reasons) == 3, reasons


def test_a_share_that_cannot_be_loaded_is_given_back_and_the_lost_one_is_waited_for(tmp_path):
    folder = tmp_path / "models"
    folder.mkdir()
    # Its own words, so that no other test has had slices of it made.
    model = write(folder / "toy.gguf", words=["replan"])
    with Machines(tmp_path, model, args=(*ARGS, *SLOW), stage_args=SLOW) as line:
        expected, given = answers(line.serve), ranges(line.serve)
        everybody = line.seated()
        (lost,) = chance("too narrow").sample(everybody, 1)
        # Machines have what they have made of it.
        model.unlink()
        streams = [Stream(line.serve, TOKENS, prompt) for prompt in PROMPTS]
        for stream in streams:
            stream.wait_events(3)
        line.kill([lost])
        line.serve.wait_line("the layers stay shared out as they were", HEALED_S)
        assert line.seated() == everybody
        line.start(lost)
        for stream in streams:
            stream.wait_end(HEALED_S)
        assert [stream.essence() for stream in streams] == expected
        assert ranges(line.serve) == given


@pytest.mark.parametrize(
    "shape, why",
    [(("--stages", 2, "--relay"), "--relay reaches machines"), (("--stages", 1), "nobody to share its layers with")],
)
def test_lines_that_cannot_do_that_say_so(shape, why):
    said = complaint(run("serve", SMOLLM2, *shape, "--replan-after", "5s"), 2)
    assert why in said, said
