"""Who may do what on a line of machines: roles, leases, and members that are let go."""

import os
import re
import signal

from machines import Cluster, Invitation, stage

from paceline import SMOLLM2, Serve, complaint, environment, free_port, run


def front(member, port):
    """A front without layers, and one machine that has them all."""
    return Serve(SMOLLM2, "--front-only", "--stage", f"127.0.0.1:{port}", "--cluster", member, "--threads", 1)


def seen(observer, *ports):
    """What `cluster look` says to an observer."""
    return run("cluster", "look", *(f"127.0.0.1:{port}" for port in ports), "--dir", observer.parent)


def test_a_second_front_is_refused_until_the_lease_of_the_first_has_run_out(tmp_path):
    cluster, port = Cluster(tmp_path), free_port()
    other, observer = cluster.enroll("other", "front"), cluster.enroll("watcher", "observer")
    with stage(cluster.enroll("second"), port, "--models", SMOLLM2.parent, "--lease", "8s") as kept:
        free = seen(observer, port)
        assert re.search(r"stage \w+: free; holds nothing; ", free.stdout), free
        with front(cluster.front, port) as first:
            first.wait_ready()
            with front(other, port) as second:
                second.wait_reason("is kept for front .*, which is linked to it")
                busy = seen(observer, port)
                assert re.search(r"kept for front \w+, which is linked to it; computes layers", busy.stdout), busy
                os.kill(first.pid, signal.SIGKILL)
                second.wait_reason("is kept for front .*, which is gone, for another [0-9]+ s")
                second.wait_ready()
                assert second.text("The capital of France is", 1) == " Paris"
                # It had tried all the while.
                said = [line for line in kept.lines if "link refused" in line and "is kept for front" in line]
                assert len(said) == 1 and "WARN" in said[0] and "127.0.0.1:" in said[0], said


def test_a_front_that_ends_in_order_lets_the_stages_go_at_once(tmp_path):
    cluster, port = Cluster(tmp_path), free_port()
    other = cluster.enroll("other", "front")
    # Far longer than the test waits.
    with stage(cluster.enroll("second"), port, "--models", SMOLLM2.parent, "--lease", "3600s"):
        for member in (cluster.front, other):
            with front(member, port) as serve:
                serve.wait_ready()
                serve.stop()
                assert serve.wait() == 0


def test_a_machine_does_only_what_it_was_enrolled_for(tmp_path):
    cluster, port = Cluster(tmp_path), free_port()
    second, observer = cluster.enroll("second"), cluster.enroll("watcher", "observer")
    serve = ("serve", SMOLLM2, "--stage", f"127.0.0.1:{port}", "--cluster")
    for member, role in ((second, "stage"), (observer, "observer")):
        assert f"a member as {role}, and this needs one as front" in complaint(run(*serve, member), 1)
    assert "needs one as stage" in complaint(run("stage", "--listen", "127.0.0.1:0", "--cluster", observer), 1)
    with stage(second, port, "-v") as process:
        # A stage has no business to look at others; both sides say so.
        refused = complaint(seen(second, port), 1)
        assert "a membership as stage is not for one who wants to observe" in refused
        process.wait_line(r"connection refused.*wants to observe.*127\.0\.0\.1:\d+", 10)
        assert sum("connection refused" in line for line in process.lines) == 1, process.lines


def test_a_member_that_is_let_go_loses_its_links_and_nothing_is_restarted(tmp_path):
    cluster, ports = Cluster(tmp_path), [free_port(), free_port()]
    one, two = (cluster.enroll(name) for name in ("one", "two"))
    stages = [word for port in ports for word in ("--stage", f"127.0.0.1:{port}")]
    models = ("--models", SMOLLM2.parent)
    with stage(one, ports[0], *models) as first, stage(two, ports[1], *models) as second:
        with Serve(SMOLLM2, "--front-only", *stages, "--cluster", cluster.front, "--threads", 1) as serve:
            serve.wait_ready()
            # The one that stays is told; the front hears of it, and the one that goes.
            told = run("cluster", "revoke", "two", "--tell", f"127.0.0.1:{ports[0]}", "--dir", tmp_path / "front")
            assert told.returncode == 0 and "knows" in told.stderr + told.stdout, told
            serve.wait_reason("let")
            first.wait_line("root has let members go", 10)
            assert "LET GO" in run("cluster", "show", "--dir", tmp_path / "front").stdout
            # Not after a restart either, of whichever side.
            second.stop()
            first.stop()
            with stage(one, ports[0], *models), stage(two, ports[1], *models):
                serve.wait_reason("let node [0-9a-f]+ go")
            # A new key in the same place is another member.
            anew = cluster.enroll("two-anew")
            with stage(one, ports[0], *models), stage(anew, ports[1], *models):
                serve.wait_ready()
                assert serve.text("The capital of France is", 1) == " Paris"
    assert (one.parent / "notice").exists()
    assert "no member is called" in complaint(run("cluster", "revoke", "nobody", "--dir", tmp_path / "front"), 1)


def test_a_ticket_is_taken_back_from_anywhere(tmp_path):
    cluster = Cluster(tmp_path)
    with Invitation(cluster) as invitation:
        assert run("cluster", "revoke", invitation.ticket, env=environment(config=tmp_path / "x")).returncode == 0
        assert invitation.wait(10) == 1
        joining = run("cluster", "join", invitation.ticket, env=environment(config=tmp_path / "third"))
        assert "cannot reach the invitation" in complaint(joining, 1)
