"""Machines that are not what the line needs: each says so, and repairs are noticed without a restart."""

import shutil

from machines import Cluster, stage

from paceline import SMOLLM2, Process, Serve, environment, free_port


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
