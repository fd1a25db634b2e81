"""`paceline verify` proves that a line computes what the whole model computes, and notices when it cannot."""

import os

import pytest

from paceline import GEMMA, SMOLLM2, complaint, environment, run

SAME = ["largest logit difference: 0", "the line and the whole model are the same"]


@pytest.mark.parametrize("model", [SMOLLM2, GEMMA], ids=["smollm2", "gemma3"])
def test_three_stages_differ_from_the_whole_model_by_nothing(model):
    done = run("verify", model, "--stages", 3, within=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-2:] == SAME, done.stdout


def test_one_flipped_byte_in_a_slice_is_found(tmp_path):
    env = environment(cache=tmp_path)
    done = run("verify", SMOLLM2, "--cuts", "15", env=env, within=300)
    assert done.returncode == 0 and done.stdout.splitlines()[-2:] == SAME, (done.stdout, done.stderr)
    slices = sorted(tmp_path.glob("paceline/slices/*/*15*.gguf"))
    assert slices, list(tmp_path.rglob("*"))
    victim = slices[-1]
    with victim.open("r+b") as file:
        file.seek(os.path.getsize(victim) * 2 // 3)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 0x10]))
    sentence = complaint(run("verify", SMOLLM2, "--cuts", "15", env=env, within=300), 1)
    assert victim.name in sentence, sentence
