"""Machines that are not what the line needs: each says so, and repairs are noticed without a restart."""

import shutil

from machines import Cluster, Invitation, stage

from paceline import SMOLLM2, Process, Serve, complaint, environment, free_port, run


def front(cluster, port, *args):
    """A front without layers and one machine that has them all."""
    arguments = ("--front-only", "--stage", f"127.0.0.1:{port}", "--cluster", cluster.front, "--threads", 1)
    return Serve(SMOLLM2, *arguments, *args)


def test_a_stage_without_the_model_says_what_to_do_and_works_once_it_is_there(tmp_path):
    cluster = Cluster(tmp_path)
    key, port = cluster.enroll("second"), free_port()
    env = environment(cache=tmp_path / "cache")
    models = tmp_path / "models"
    models.mkdir()
    (models / "notes.txt").write_text("not a model")
    (models / "broken.gguf").write_bytes(b"GGUF but no more")
    with front(cluster, port) as serve:
        with stage(key, port, env=env):
            serve.wait_reason("start the stage with --models DIR")
            assert "--models DIR" in serve.line()["stages"][0].get("reason", ""), serve.line()
        with stage(key, port, "--models", models, env=env):
            serve.wait_reason("copy the model there")
            shutil.copyfile(SMOLLM2, models / "another name.gguf")
            serve.wait_ready()
            assert serve.text("The capital of France is", 1) == " Paris"
            assert [status["state"] for status in serve.line()["stages"]] == ["ready"]


def test_a_stage_of_another_cluster_is_refused_and_both_sides_say_why(tmp_path):
    (tmp_path / "ours").mkdir()
    (tmp_path / "theirs").mkdir()
    ours, theirs = Cluster(tmp_path / "ours"), Cluster(tmp_path / "theirs")
    port = free_port()
    with stage(theirs.enroll("stranger"), port, "-v") as stranger, front(ours, port) as serve:
        serve.wait_reason("another cluster")
        stranger.wait_line("another cluster", 10)
    # The right machine at the same address is taken without a restart of the front.
    with front(ours, port) as serve, stage(ours.enroll("second"), port, "--models", SMOLLM2.parent):
        serve.wait_ready()
        assert serve.text("The capital of France is", 1) == " Paris"


def test_a_machine_in_no_cluster_says_how_to_join_one(tmp_path):
    env = environment(config=tmp_path)
    for args in (["stage", "--listen", "127.0.0.1:0"], ["serve", SMOLLM2, "--stage", "127.0.0.1:9"]):
        process = Process(*args, env=env)
        with process:
            process.wait_line("in no cluster.*paceline cluster new", 10)
            assert process.wait() == 1


def test_a_machine_joins_by_a_ticket_that_is_good_once(tmp_path):
    cluster, port = Cluster(tmp_path), free_port()
    config = {"second": environment(config=tmp_path / "second"), "third": environment(config=tmp_path / "third")}
    arguments = ("stage", "--listen", f"127.0.0.1:{port}", "--threads", 1, "--models", SMOLLM2.parent)
    with Invitation(cluster, "--name", "second") as invitation:
        with Process(*arguments, "--join", invitation.ticket, env=config["second"]) as joined:
            joined.wait_line(r"this machine is a member: stage", 30)
            joined.wait_line(rf"waits for a front on 127\.0\.0\.1:{port}", 30)
            assert invitation.wait(10) == 0
            shown = run("cluster", "show", "--dir", tmp_path / "front").stdout
            assert "member second: stage" in shown, shown
            with front(cluster, port) as serve:
                serve.wait_ready()
                assert serve.text("The capital of France is", 1) == " Paris"
        # Who is a member needs no ticket any more, and the same command starts the stage again.
        with Process(*arguments, "--join", invitation.ticket, env=config["second"]) as again:
            again.wait_line(rf"waits for a front on 127\.0\.0\.1:{port}", 30)
        assert "cannot reach the invitation" in complaint(run("cluster", "join", invitation.ticket, env=config["third"]), 1)


def test_a_ticket_that_was_taken_back_or_ran_out_is_worth_nothing(tmp_path):
    cluster, env = Cluster(tmp_path), environment(config=tmp_path / "second")
    with Invitation(cluster) as invitation:
        invitation.stop()
        assert "cannot reach the invitation" in complaint(run("cluster", "join", invitation.ticket, env=env), 1)
    with Invitation(cluster, "--valid", "100ms", command="ticket") as invitation:
        assert invitation.wait(10) == 1
        assert "cannot reach the invitation" in complaint(run("cluster", "join", invitation.ticket, env=env), 1)
    assert "not a ticket" in complaint(run("cluster", "join", "paceline-join:12", env=env), 2)
