"""The cluster's root key is rotated under a line that serves: nothing is restarted, and who was away comes back in time."""

import contextlib
import stat

from machines import Cluster, stage
from paceline import Serve, complaint, free_port, run, wait_until
from streams import Stream
from toy import write

TOKENS = 200
PROMPT = "Once upon a time"
TAKEN_OVER = "has its new membership"
# What a machine says of those whom it refuses: the first time, and again.
VERBOSE = ("--log", "info,net=debug")


class Line:
    """Two stages, and a third machine that stands by when it is there."""

    def __init__(self, folder, stack):
        (folder / "models").mkdir()
        self.model, self.cluster = write(folder / "models/toy.gguf"), Cluster(folder)
        self.members = [self.cluster.enroll(name) for name in ("one", "two", "three")]
        self.ports = [free_port() for _ in range(3)]
        self.running = [self.start(0, stack), self.start(1, stack)]
        one, two, three = (f"127.0.0.1:{port}" for port in self.ports)
        # Links as slow as a network's, so that an answer takes longer than a rotation.
        more = ("--cluster", self.cluster.front, "--link", "delay=5ms", "--exact", "--ctx", 512, "--log", "info")
        places = ("--front-only", "--stage", one, "--stage", two, "--spare", three)
        self.serve = stack.enter_context(Serve(self.model, *places, *more))
        self.serve.wait_ready()

    def start(self, at, stack):
        return stack.enter_context(stage(self.members[at], self.ports[at], "--models", self.model.parent, *VERBOSE))

    def rotate(self, *more):
        told = ("--tell", f"127.0.0.1:{self.ports[0]}", "--dir", self.cluster.front.parent)
        return run("cluster", "rotate", *told, *more)

    def spare(self):
        (spare,) = self.serve.line()["spares"]
        return spare


def answer(serve):
    stream = Stream(serve, TOKENS, PROMPT)
    stream.wait_end(90)
    return stream.text()


def rotated_under_a_stream(line, expected, *more):
    """Rotates while an answer comes; what the command said."""
    resumed, stream = line.serve.line()["resumed"], Stream(line.serve, TOKENS, PROMPT)
    stream.wait_events(4)
    done = line.rotate(*more)
    assert done.returncode == 0, done.stderr
    stream.wait_end(90)
    assert stream.text() == expected
    assert line.serve.line()["resumed"] == resumed, "no link was cut"
    return done.stderr


def test_a_line_goes_on_while_its_root_is_rotated_and_who_was_away_comes_back_in_time(tmp_path):
    with contextlib.ExitStack() as stack:
        line = Line(tmp_path, stack)
        expected = answer(line.serve)
        before = [member.read_text() for member in (line.cluster.front, *line.members)]
        said = rotated_under_a_stream(line, expected)
        # Three machines that were enrolled, and the front, which made the cluster.
        assert "4 members are taken over" in said and "knows, stage" in said, said
        for process in (*line.running, line.serve):
            process.wait_line(TAKEN_OVER, 30)
        after = [member.read_text() for member in (line.cluster.front, *line.members)]
        assert [old == new for old, new in zip(before, after)] == [False, False, False, True]
        # The key stayed, and nobody else may read it.
        key = lambda text: text.split("-----END PRIVATE KEY-----")[0]
        assert [key(text) for text in before] == [key(text) for text in after]
        for secret in (line.cluster.front, line.cluster.front.parent / "root.key", *line.members):
            assert stat.S_IMODE(secret.stat().st_mode) == 0o600, secret
        assert not (line.cluster.front.parent / "root.next").exists()
        assert "30 days" in said and "29 days and 23 h" in run("cluster", "show", "--dir", tmp_path / "front").stdout

        # Who was away comes with its old membership, and gets the new one.
        third = line.start(2, stack)
        third.wait_line(TAKEN_OVER, 60)
        wait_until(lambda: line.spare()["state"] == "spare", 60, lambda: line.serve.line())
        # After a restart each goes by what it has heard.
        line.running[0].stop()
        line.running[0] = line.start(0, stack)
        line.serve.wait_ready()
        assert answer(line.serve) == expected

        # The next one does not wait for those who are away.
        third.stop()
        assert "--again" in complaint(line.rotate(), 1)
        rotated_under_a_stream(line, expected, "--again", "--overlap", "0s")
        third = line.start(2, stack)
        third.wait_line(r"WARN .*connection refused.*root was rotated.*invite this machine anew.*127\.0\.0\.1", 60)
        # It is refused again and again, which both sides say once.
        third.wait_line("DEBUG .*connection refused.*root was rotated", 60)
        loud = [said for said in third.lines if "connection refused" in said and "WARN" in said]
        assert len(loud) == 1, third.lines
        refused = lambda: [said for said in line.serve.lines if "from before the cluster's root was rotated" in said]
        wait_until(refused, 30, lambda: line.serve.lines)
        assert len(refused()) == 1 and f"127.0.0.1:{line.ports[2]}" in refused()[0], refused()
        assert line.spare()["state"] in ("down", "gone"), line.spare()
        assert answer(line.serve) == expected
