"""A machine stands by: whoever is lost, its layers are in memory elsewhere and every answer goes on there."""

import contextlib
import os
import signal

from machines import Cluster, assert_idle, stage
from paceline import SMOLLM2, SOAK, Serve, complaint, free_port, run, wait_until
from streams import Stream

TOKENS = 200 if SOAK else 64
PROMPTS = ["Once upon a time there was a", "Q: What is rain?\nA:", "1. copper\n2. iron\n3."]
# A machine that is busy with other things needs longer for everything; a spare that had to load would need it too.
PAUSE_S = 10
LEASE_S = 2


class Machines:
    """Two stages and a spare, each a process with a key and a port of its own."""

    def __init__(self, folder, stack):
        self.cluster, self.ports = Cluster(folder), [free_port() for _ in range(3)]
        self.members = [self.cluster.enroll(name) for name in ("one", "two", "three")]
        self.running = {}
        stack.callback(lambda: [process.stop() for process in self.running.values()])
        for port in self.ports:
            self.start(port)

    def start(self, port):
        """Starts the machine of this port, also again."""
        self.running[port] = stage(self.members[self.ports.index(port)], port, "--models", SMOLLM2.parent)

    def kill(self, port):
        """Ends it as a lack of memory would."""
        os.kill(self.running[port].pid, signal.SIGKILL)
        self.running[port].wait()


def port_of(machine):
    return int(machine["address"].rsplit(":", 1)[1])


def covered(serve):
    """The stage whose layers the spare holds, once it does."""
    warm = lambda: next((s for s in serve.line()["stages"] if s["standby"] == "warm"), None)
    found = wait_until(warm, 60, lambda: f"nothing stands by: {serve.line()}")
    (spare,) = serve.line()["spares"]
    assert (spare["state"], spare["layers"]) == ("spare", found["layers"]), spare
    assert spare["weight_bytes"] == found["weight_bytes"], (spare, found)
    return found


def undisturbed(serve, prompt):
    stream = Stream(serve, TOKENS, prompt)
    stream.wait_end(90)
    return stream.text()


def killed_under_streams(serve, machines, port):
    """Kills a machine while answers come; their texts, and the longest pause."""
    streams = [Stream(serve, TOKENS, prompt) for prompt in PROMPTS]
    for stream in streams:
        stream.wait_events(4)
    machines.kill(port)
    for stream in streams:
        stream.wait_end(90)
    return [stream.text() for stream in streams], max(stream.longest_pause() for stream in streams)


def test_a_spare_takes_the_place_of_a_killed_stage_which_stands_by_when_it_is_back(tmp_path):
    with contextlib.ExitStack() as stack:
        machines = Machines(tmp_path, stack)
        one, two, three = (f"127.0.0.1:{port}" for port in machines.ports)
        front = ("--front-only", "--stage", one, "--stage", two, "--spare", three, "--lease", f"{LEASE_S}s")
        more = ("--cluster", machines.cluster.front, "--exact", "--parallel", 3, "--ctx", 512)
        serve = stack.enter_context(Serve(SMOLLM2, *front, *more))
        serve.wait_ready()
        first = covered(serve)
        expected = [undisturbed(serve, prompt) for prompt in PROMPTS]

        texts, pause = killed_under_streams(serve, machines, port_of(first))
        print(f"warm spare: longest pause {pause:.2f} s")
        assert texts == expected
        assert pause < PAUSE_S
        line = serve.line()
        seat = next(s for s in line["stages"] if s["layers"] == first["layers"])
        assert seat["address"] == three and seat["standby"] == "none", line
        assert [port_of(spare) for spare in line["spares"]] == [port_of(first)], line

        # Nobody came back: it is gone once its lease has ended, and costs nothing.
        gone = lambda: serve.line()["spares"][0]["state"] == "gone"
        wait_until(gone, LEASE_S + 30, lambda: f"not gone: {serve.line()}")
        assert "pid" not in serve.line()["spares"][0]
        assert_idle(serve.pid)

        # Who was killed comes back and stands by, for whichever stage; then that one is killed.
        machines.start(port_of(first))
        second = covered(serve)
        line = serve.line()
        assert (len(line["stages"]), len(line["spares"])) == (2, 1), line
        other = next(s for s in line["stages"] if s["address"] != three)
        texts, pause = killed_under_streams(serve, machines, port_of(other))
        kind = "warm" if other["layers"] == second["layers"] else "cold"
        print(f"{kind} spare: longest pause {pause:.2f} s")
        assert texts == expected
        assert {s["address"] for s in serve.line()["stages"]} == {three, first["address"]}, serve.line()


def test_a_spare_on_the_same_machine_takes_over_and_the_killed_process_becomes_the_spare():
    with Serve(SMOLLM2, "--stages", 2, "--spares", 1, "--threads", 1, "--exact", "--ctx", 512) as serve:
        serve.wait_ready()
        expected = undisturbed(serve, PROMPTS[0])
        for _ in range(2):
            victim = covered(serve)
            spare = serve.line()["spares"][0]["pid"]
            stream = Stream(serve, TOKENS, PROMPTS[0])
            stream.wait_events(4)
            os.kill(victim["pid"], signal.SIGKILL)
            stream.wait_end(90)
            assert stream.text() == expected
            assert serve.stage_pids()[1] == spare


def test_spares_that_make_no_sense_are_refused_with_what_to_do():
    cases = {
        ("--stages", 2, "--spare", "10.0.0.9:7411"): "--spares N",
        ("--stage", "10.0.0.8:7411", "--spare", "10.0.0.9:7411=5"): "the stage must be",
        ("--spares", 1): "this line has none",
    }
    for args, words in cases.items():
        assert words in complaint(run("serve", SMOLLM2, *args), 2), args
