"""A model that drafts for itself: whatever it drafts, answers are what the whole model gives token by token."""

import itertools
import random
import statistics
from concurrent.futures import ThreadPoolExecutor

import pytest
from drafting_toy import KINDS, RECURRENT_LAYER, attention, write

import toy
from answers import cached, essence, warm_and_cold
from collector import Collector
from paceline import SOAK, Serve, complaint, run, wait_until
from prompts import SEED
from streams import assert_a_kill_changes_nothing
from toy import UINT32

TOKENS = 60
# Of one chunk and of several.
PROMPTS = ["rain", "copper and iron " * 8, "Once upon a time " * 60]
WARM = {"temperature": 0.8, "seed": 5, "top_p": 0.95}
SAMPLERS = [{}, WARM, {**WARM, "repeat_penalty": 1.1, "frequency_penalty": 0.2}]
JOBS = list(itertools.product(range(len(PROMPTS)), range(len(SAMPLERS))))
# Sequences at once.
BATCHES = [1, 2, 3, 4]
# Hybrid models have one window under way.
DEPTHS = {"plain": range(1, 9), "hybrid": [1], "apart": range(1, 9)}
STAGES = [2, 3]
# All sources, windows under way and tokens of a draft; and of each kind so many of those unless it is a soak.
GRID = {kind: list(itertools.product(["mtp", "mtp,suffix"], DEPTHS[kind], [1, 2, 3, 4])) for kind in KINDS}
SHARE = {"plain": 3, "hybrid": 2, "apart": 2}
BOTH = ["plain", "hybrid"]
# A thousand tokens and more that texts share: a token is a byte.
SHARED = "Once upon a time there was a mill. " * 30


def share():
    """A kind, stages, sources, depth and length of each line that is tried: with two stages and with three, in turn."""
    for kind, all_of_it in GRID.items():
        some = all_of_it if SOAK else random.Random(f"{SEED}/{kind}").sample(all_of_it, SHARE[kind])
        for at, one in enumerate(some):
            for stages in STAGES if SOAK else [STAGES[at % len(STAGES)]]:
                yield kind, stages, *one


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return {kind: write(folder / f"{kind}.gguf", kind) for kind in KINDS}


def common(model):
    return (model, "--threads", 1, "--exact", "--ctx", 2048)


def guesses(sources, depth, length):
    """Guesses in any case: the width is pinned, so that nothing is left to the controller."""
    return ("--speculate", sources, "--depth", depth, "--draft-len", length, "--width", length + 1)


def guessing(model, sources, depth, length, *more, stages=2):
    """A line that guesses."""
    return Serve(*common(model), "--stages", stages, "--parallel", 4, *guesses(sources, depth, length), *more)


def answer(serve, job, **more):
    prompt, sampler = job
    return serve.complete(PROMPTS[prompt], TOKENS, logprobs=2, cache_prompt=False, **SAMPLERS[sampler], **more)


def figures(*answers):
    """Guesses sent and right, and windows."""
    timings = [answer["timings"] for answer in answers]
    count = lambda name: sum(each[name] for each in timings)
    return count("draft_n"), count("draft_n_accepted"), sum(each["windows"]["sent"] for each in timings)


@pytest.fixture(scope="module")
def alone(models):
    """What the whole model of a kind answers to each job without a guess; asked once."""
    known = {}

    def of(kind):
        if kind not in known:
            with Serve(*common(models[kind])) as whole:
                whole.wait_ready()
                known[kind] = {job: essence(answer(whole, job)) for job in JOBS}
        return known[kind]

    return of


@pytest.mark.parametrize("kind, stages, sources, depth, length", list(share()))
def test_drafts_never_change_the_answer(models, alone, kind, stages, sources, depth, length, record_property):
    expected, done = alone(kind), []
    with guessing(models[kind], sources, depth, length, stages=stages) as serve:
        serve.wait_ready()
        pick = random.Random(f"{SEED}/{kind}/{sources}/{depth}/{length}")
        for at_once in BATCHES:
            jobs = JOBS if SOAK else pick.sample(JOBS, at_once)
            with ThreadPoolExecutor(at_once) as clients:
                found = list(clients.map(lambda job: answer(serve, job), jobs))
            for job, one in zip(jobs, found, strict=True):
                assert essence(one) == expected[job], (at_once, job)
            done += found
    sent, right, windows = figures(*done)
    record_property(f"{kind} {stages} stages {sources} depth {depth} length {length}", f"{len(done)} answers, {right} of {sent} guesses right in {windows} windows")
    assert sent > right > TOKENS, (sent, right)
    if sources == "mtp":
        # Some drafts are right and some are not: a token of the model's own is worth more than chance.
        assert right > sent * 0.2, (sent, right)


@pytest.mark.parametrize("kind", BOTH)
def test_one_process_drafts_too(models, alone, kind):
    with Serve(*common(models[kind]), *guesses("mtp", 1, 3)) as serve:
        serve.wait_ready()
        found = {job: answer(serve, job) for job in JOBS}
        assert {job: essence(one) for job, one in found.items()} == alone(kind)
        sent, right, _ = figures(*found.values())
        assert sent > right > TOKENS, (sent, right)


@pytest.mark.parametrize("kind", BOTH)
def test_left_to_itself_it_drafts_as_far_as_pays(models, alone, kind):
    more = ("--stages", 2, "--parallel", 3, "--speculate", "mtp,suffix", "--link", "delay=2ms")
    with Serve(*common(models[kind]), *more) as serve:
        serve.wait_ready()
        with ThreadPoolExecutor(3) as clients:
            found = clients.map(lambda job: essence(answer(serve, job)), JOBS)
            assert dict(zip(JOBS, found, strict=True)) == alone(kind)


@pytest.mark.parametrize("kind", BOTH)
def test_a_text_that_goes_on_drafts_behind_what_was_computed(models, kind):
    with guessing(models[kind], "mtp", 1, 3) as serve:
        serve.wait_ready()
        warm, cold = warm_and_cold(serve, TOKENS)
        assert figures(warm) == figures(cold) and figures(warm)[1] > 0


@pytest.mark.parametrize("kind", ["plain", "apart"])
def test_behind_a_shared_beginning_it_drafts_as_well_as_cold(models, kind, tmp_path):
    # One at a time, so that what is not needed leaves its slot; and a store.
    kept = ("--cache-disk", 1024, "--cache-dir", tmp_path)
    ask = lambda serve, tail, **more: serve.complete(f"{SHARED}{tail}", TOKENS, logprobs=2, **more)
    tails = ["Its wheel", "Who lived", "The river", "A ferry"]

    def check(warm, cold):
        assert cached(warm) >= 0.95 * warm["usage"]["prompt_tokens"] > 950, warm["usage"]
        assert essence(warm) == essence(cold)
        assert figures(warm) == figures(cold), "drafts are others than where all is computed"

    with guessing(models[kind], "mtp", 1, 3, *kept) as serve:
        serve.wait_ready()
        cold = {tail: ask(serve, tail, cache_prompt=False) for tail in tails}
        assert all(cached(one) == 0 and figures(one)[1] > 5 for one in cold.values())
        # They come at once: all but the first wait for what it computes.
        with ThreadPoolExecutor(len(tails)) as clients:
            found = dict(zip(tails, clients.map(lambda tail: ask(serve, tail), tails), strict=True))
        begun = [tail for tail in tails if cached(found[tail]) > 0]
        assert len(begun) >= len(tails) - 1, [cached(one) for one in found.values()]
        for tail in begun:
            check(found[tail], cold[tail])
        # What is parked now is taken over, whole slots and copies of them.
        for tail in tails:
            check(ask(serve, tail), cold[tail])
        wait_until(lambda: serve.line()["prefixes"]["stored"] > 0, 30, "nothing is stored")
    with guessing(models[kind], "mtp", 1, 3, *kept) as serve:
        serve.wait_ready()
        check(ask(serve, tails[0]), cold[tails[0]])
        assert serve.line()["prefixes"]["restored_tokens"] > 950, serve.line()["prefixes"]


def windows_of(models, *more):
    """The windows of an answer on a line with slow links, with what each of them went through, as a trace tells it."""
    with Collector() as collector:
        slow = ("--stages", 3, "--link", "delay=20ms", "--otlp", collector.url)
        with Serve(*common(models["plain"]), *slow, *more) as serve:
            serve.wait_ready()
            serve.complete("copper and iron", 40)
            collector.wait_roots(1)
    windows = sorted((span for span in collector.spans if span.name == "window"), key=lambda span: span.start)
    inside = lambda window: sorted((s for s in collector.spans if s.parent == window.id), key=lambda s: s.start)
    assert all(window.attributes["paceline.outcome"] == "answered" for window in windows)
    return [(window, inside(window)) for window in windows]


def test_a_draft_takes_no_way_of_its_own(models, record_property):
    plain, drafted = windows_of(models), windows_of(models, *guesses("mtp", 1, 3))
    # However many tokens it brings, a verdict takes one frame on each link, and one way round.
    way = ["stage 0", "link to stage 1", "stage 1", "link to stage 2", "stage 2", "link to front"]
    assert all([leg.name for leg in legs] == way for _, legs in plain + drafted)
    assert len(drafted) < 0.8 * len(plain), (len(drafted), len(plain))
    links = lambda windows: statistics.median(sum(leg.took for leg in legs if "link" in leg.name) for _, legs in windows)
    pauses = lambda windows: statistics.median(
        (after.start - before.end) / 1e9 for (before, _), (after, _) in itertools.pairwise(windows)
    )
    record_property("links, and pause behind a verdict", [(links(each), pauses(each)) for each in (plain, drafted)])
    # Had a verdict waited for its draft, or the draft come by a way of its own, the half of one link would be exceeded.
    assert abs(links(drafted) - links(plain)) < 0.010
    assert pauses(drafted) < 0.010


@pytest.mark.parametrize("stages", [2, 3])
@pytest.mark.parametrize("kind", KINDS)
def test_a_killed_tail_or_the_stage_before_it_changes_nothing(models, kind, stages, record_property):
    # An event tells all tokens of a verdict; slow enough that the stage is lost half way.
    with guessing(models[kind], "mtp,suffix", 2, 3, "--link", "delay=2ms", stages=stages) as serve:
        serve.wait_ready()
        timings = assert_a_kill_changes_nothing(serve, PROMPTS[1], 8 * TOKENS, TOKENS // 3)
        held = serve.line()["prefixes"]["partly_reused_tokens"]
    drafted = [each["sources"]["mtp"] for each in timings]
    record_property(f"{kind} drafts, undisturbed and with stage 1 of {stages} killed", drafted)
    # A tail that took over computes everything; one behind the stage that was killed goes on with what it has, which one
    # with recurrent layers can only where it has guessed nothing beyond.
    assert held == 0 if stages == 2 else held > 0 or kind == "hybrid", held
    # Most of the answer comes from the line that took over. It drafts as well as the one before.
    undisturbed, killed = (each["accepted"] / each["proposed"] for each in drafted)
    assert undisturbed > 0.2 and abs(killed - undisturbed) < 0.1, drafted
    assert drafted[1]["accepted"] > 0.8 * drafted[0]["accepted"], drafted


def test_a_model_that_cannot_draft_is_refused_at_once(tmp_path):
    path = toy.write(tmp_path / "toy.gguf")
    said = complaint(run("serve", path, "--listen", "127.0.0.1:0", "--speculate", "mtp", within=20), 1)
    assert "cannot draft for itself" in said and "no block that drafts" in said, said
    said = complaint(run("serve", path, "--speculate", "suffix", "--draft-len", 2, within=20), 2)
    assert "add --speculate mtp" in said, said


def says(name, value):
    """Changes a key of the architecture's own."""
    return lambda fields, shapes: fields.update({f"{fields['general.architecture'][1]}.{name}": (UINT32, value)})


def lacks(part):
    """Leaves out all tensors whose names hold this."""
    return lambda fields, shapes: [shapes.pop(name) for name in list(shapes) if part in name]


def attends_everywhere(fields, shapes):
    """Every layer of a hybrid model looks back with attention: none is recurrent."""
    says("full_attention_interval", 1)(fields, shapes)
    for layer in [name.removesuffix("ssm_a") for name in shapes if name.endswith("ssm_a")]:
        for part in RECURRENT_LAYER:
            del shapes[layer + part]
        shapes.update({layer + part: dims for part, dims in attention(is_hybrid=True).items()})


# What is wrong with a file, and what is said of it: llama.cpp would abort, or read what is not there.
WRONG = {
    "no tensors of the block": (lacks("nextn."), "the file does not hold them"),
    "one of them missing": (lacks("nextn.eh_proj"), "the file does not hold them"),
    "blocks in a chain": (says("nextn_predict_layers", 2), "2 blocks that draft"),
    "blocks and no layer": (says("nextn_predict_layers", 99), "block_count"),
    "a short list": (says("attention.head_count_kv", [2, 2]), "head_count_kv is 2 x U32"),
    "a long list": (says("attention.head_count_kv", [2] * 20), "head_count_kv is 20 x U32"),
    "no recurrent layer": (attends_everywhere, "no layer is recurrent"),
}
# Of the one kind that has such layers.
OF_HYBRIDS = {"no recurrent layer"}
# Each with every kind of model in a soak, else with one of them.
OF_ALL = [wrong for wrong in WRONG if wrong not in OF_HYBRIDS]
OF_KINDS = [(kind, wrong) for at, wrong in enumerate(OF_ALL) for turn, kind in enumerate(KINDS) if SOAK or at % len(KINDS) == turn]
OF_KINDS += [("hybrid", wrong) for wrong in OF_HYBRIDS]


@pytest.mark.parametrize("kind, wrong", OF_KINDS)
def test_a_file_that_does_not_hold_what_it_announces_is_refused_at_once(tmp_path, kind, wrong):
    change, reason = WRONG[wrong]
    path = write(tmp_path / "toy.gguf", kind, change)
    for stages in (1, 2):
        args = ("--listen", "127.0.0.1:0", "--speculate", "mtp", "--stages", stages)
        said = complaint(run("serve", path, *args, within=20), 1)
        assert reason in said, said
