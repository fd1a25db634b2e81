"""`paceline verify` proves that a line computes what the whole model computes, and notices when it cannot."""

import os

import pytest

from paceline import GEMMA, SMOLLM2, complaint, environment, run

# Some minutes on a machine that is busy with other things; 45 s on one that is not.
VERIFY_S = 300


def assert_no_difference(done):
    """Passes for a run that found the line and the whole model to be the same."""
    assert done.returncode == 0, done.stderr
    *_, largest, verdict = done.stdout.splitlines()
    assert largest == "largest logit difference: 0", done.stdout
    assert verdict == "the line and the whole model are the same", done.stdout


@pytest.fixture(scope="module")
def verified(tmp_path_factory):
    """A cache of its own after `verify` has filled it, and what `verify` said."""
    cache = tmp_path_factory.mktemp("cache")
    return cache, run("verify", SMOLLM2, "--stages", 3, env=environment(cache=cache), within=VERIFY_S)


def test_three_stages_of_smollm2_differ_from_the_whole_model_by_nothing(verified):
    assert_no_difference(verified[1])


def test_three_stages_of_gemma3_differ_from_the_whole_model_by_nothing():
    assert_no_difference(run("verify", GEMMA, "--stages", 3, within=VERIFY_S))


def test_one_flipped_byte_in_a_slice_is_found(verified):
    cache, _ = verified
    slices = sorted(cache.glob("paceline/slices/*/*.gguf"), key=os.path.getsize)
    assert len(slices) >= 3, slices
    victim = slices[-1]
    position = os.path.getsize(victim) * 2 // 3

    def flip():
        with victim.open("r+b") as file:
            file.seek(position)
            byte = file.read(1)[0]
            file.seek(position)
            file.write(bytes([byte ^ 0x10]))

    flip()
    sentence = complaint(run("verify", SMOLLM2, "--stages", 3, env=environment(cache=cache), within=VERIFY_S), 1)
    flip()
    assert victim.name in sentence, sentence
