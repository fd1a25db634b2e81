"""However the model is cut and wherever the parts run, the answer is the same to the last bit."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from machines import Cluster, stage

from paceline import GEMMA, SMOLLM2, SOAK, Serve, environment, free_port, wait_until
from prompts import FIFTY, ask, chosen
from test_counters import metrics
from wires import Gate

MODELS = {"smollm2": SMOLLM2, "gemma3": GEMMA}
BOTH = list(MODELS)


def assert_same(found, expected):
    """Compares prompt by prompt, so that a difference names the first one."""
    assert len(found) == len(expected) == len(chosen()[0])
    for ours, theirs in zip(found, expected):
        assert ours["text"] == theirs["text"], ours["prompt"]
        assert ours == theirs, ours["prompt"]


def test_different_prompts_get_different_answers(reference):
    texts = [answer["text"] for answer in reference(SMOLLM2)]
    assert len(set(texts)) == len(texts)


# The share leaves out what the slow network shows as well.
@pytest.mark.parametrize(
    "model, stages",
    [(model, stages) for model in BOTH for stages in (2, 3, 5) if SOAK or (model, stages) != ("gemma3", 3)],
)
def test_the_greedy_answer_does_not_depend_on_the_number_of_stages(model, stages, reference):
    expected = reference(MODELS[model])
    with Serve(MODELS[model], "--stages", stages, "--threads", 1) as serve:
        serve.wait_ready()
        assert len(set(serve.stage_pids())) == stages
        assert_same(ask(serve), expected)


@pytest.mark.parametrize("model", BOTH if SOAK else ["smollm2"])
def test_the_greedy_answer_is_the_same_when_every_stage_is_reached_through_its_neighbour(model, reference):
    expected = reference(MODELS[model])
    with Serve(MODELS[model], "--stages", 3, "--threads", 1, "--relay") as serve:
        serve.wait_ready()
        assert serve.line()["mode"] == "relay"
        assert_same(ask(serve), expected)


@pytest.mark.parametrize("model", BOTH if SOAK else ["gemma3"])
def test_the_greedy_answer_is_the_same_over_a_slow_network(model, reference):
    expected = reference(MODELS[model])
    with Serve(MODELS[model], "--stages", 3, "--threads", 1, "--link", "delay=2ms") as serve:
        serve.wait_ready()
        assert_same(ask(serve), expected)
        # Rows to stages 1 and 2, and the verdict back: three crossings of 2 ms for each token.
        assert serve.complete("A", 16)["timings"]["loop_ms"] >= 6


@pytest.mark.parametrize("model", BOTH if SOAK else ["smollm2"])
def test_the_greedy_answer_is_the_same_on_machines_that_come_after_the_front(model, reference, tmp_path):
    expected = reference(MODELS[model])
    cluster = Cluster(tmp_path)
    ports = [free_port(), free_port()]
    layers = [[4, 11], [11, 18 if model == "gemma3" else 30]]
    line_file = tmp_path / "line.toml"
    line_file.write_text(
        "".join(f'[[stage]]\naddress = "127.0.0.1:{port}"\nlayers = {own}\n' for port, own in zip(ports, layers))
    )
    keys = [cluster.enroll("second"), cluster.enroll("third")]
    folder = MODELS[model].parent
    with Serve(MODELS[model], "--line", line_file, "--cluster", cluster.front, "--threads", 1) as serve:
        serve.wait_reason("stage 1")
        assert serve.http.get("/health").status_code == 200
        refused = serve.http.post("/v1/completions", json={"prompt": "A"})
        assert refused.status_code == 503 and refused.json()["error"]["code"] == "not_ready", refused.text
        # The last one first: no order is asked for.
        with stage(keys[1], ports[1], "--models", folder), stage(keys[0], ports[0], "--models", folder):
            serve.wait_ready()
            assert [status["layers"] for status in serve.line()["stages"]] == [[0, 4], *layers]
            assert_same(ask(serve), expected)
        serve.wait_reason("stage [12]")
        with stage(keys[0], ports[0], "--models", folder), stage(keys[1], ports[1], "--models", folder):
            serve.wait_ready()
            assert serve.text("A") == serve.text("A")


@pytest.mark.parametrize("model", BOTH if SOAK else ["smollm2"])
def test_guesses_that_run_ahead_never_change_the_answer(model):
    exact = (MODELS[model], "--stages", 3, "--threads", 1, "--exact")
    with Serve(*exact) as plain:
        plain.wait_ready()
        expected = ask(plain)
    for sources in (["auto"], ["suffix", "--width", 3, "--depth", 4]):
        with Serve(*exact, "--link", "delay=2ms", "--speculate", *sources) as guessing:
            guessing.wait_ready()
            assert_same(ask(guessing), expected)
            timings = guessing.complete("The cat sat on the mat. " * 8, 32)["timings"]
            assert timings["draft_n"] >= timings["draft_n_accepted"] > 0, timings


@pytest.mark.parametrize("sources", ["draft", "auto,draft"] if SOAK else ["draft"])
def test_a_draft_model_never_changes_the_answer(sources):
    exact = (SMOLLM2, "--stages", 2, "--threads", 1, "--exact")
    warm = {"temperature": 0.8, "seed": 5, "top_p": 0.95, "logprobs": 2}
    samplers = ({}, warm, {**warm, "repeat_penalty": 1.1, "frequency_penalty": 0.2})
    prompts, tokens = (FIFTY, 128) if SOAK else (chosen()[0][:2], chosen()[1])

    def answers(serve):
        """Every prompt with every sampler, several at once; the guesses that were right."""
        one = lambda job: serve.complete(job[0], tokens, **job[1])
        with ThreadPoolExecutor(3) as pool:
            done = list(pool.map(one, [(prompt, sampler) for prompt in prompts for sampler in samplers]))
        return [answer["choices"] for answer in done], [answer["timings"]["draft_n_accepted"] for answer in done]

    with Serve(*exact) as plain:
        plain.wait_ready()
        expected, _ = answers(plain)
    # Pinned, since left to itself a line that several requests fill would guess nothing.
    guessing = ("--speculate", f"{sources}={SMOLLM2}", "--width", 2, "--depth", 4)
    with Serve(*exact, "--link", "delay=10ms", *guessing) as drafted:
        drafted.wait_ready()
        found, accepted = answers(drafted)
        assert found == expected
        assert sum(accepted) > 0, accepted


def test_guesses_and_a_tail_that_the_front_cannot_reach_give_the_same_answer(tmp_path):
    prompts = ["The cat sat on the mat. " * 8, *chosen()[0][:2]]
    answers = lambda serve: [serve.complete(prompt, 32, logprobs=2) for prompt in prompts]
    choices = lambda answers: [answer["choices"] for answer in answers]
    with Serve(SMOLLM2, "--stages", 1, "--threads", 1, "--exact") as plain:
        plain.wait_ready()
        expected = answers(plain)
        assert (plain.line()["mode"], metrics(plain)["paceline_relayed"]) == ("direct", 0)
    guessing = ("--threads", 1, "--exact", "--speculate", "auto", "--link", "delay=2ms")

    def check(serve):
        serve.wait_ready()
        assert (serve.line()["mode"], metrics(serve)["paceline_relayed"]) == ("relay", 1), serve.line()
        found = answers(serve)
        assert choices(found) == choices(expected)
        timings = found[0]["timings"]
        assert timings["draft_n"] >= timings["draft_n_accepted"] > 0, timings
        assert serve.line()["mode"] == "relay", serve.line()

    with Serve(SMOLLM2, "--stages", 3, *guessing, "--relay") as serve:
        check(serve)
    cluster, ports = Cluster(tmp_path), [free_port(), free_port()]
    near, far = (
        stage(cluster.enroll(name), port, "--models", SMOLLM2.parent, "--relayed")
        for name, port in zip(("near", "far"), ports)
    )
    with near, far, Gate(ports[1]) as gate:
        places = ("--front-only", "--stage", f"127.0.0.1:{ports[0]}", "--stage", f"127.0.0.1:{gate.port}")
        # Nobody but the first machine reaches the second one.
        gate.let_in = {near.pid}
        with Serve(SMOLLM2, *places, "--cluster", cluster.front, *guessing) as serve:
            check(serve)
            assert gate.turned_away > 0


def test_two_lines_at_once_on_one_machine_answer_independently(reference, tmp_path):
    expected = reference(SMOLLM2)
    # An empty cache: both cut the same model at the same time.
    env = environment(cache=tmp_path)
    args = (SMOLLM2, "--stages", 2, "--threads", 1)
    with Serve(*args, env=env) as first, Serve(*args, env=env) as second:
        first.wait_ready()
        second.wait_ready()
        assert not set(first.stage_pids()) & set(second.stage_pids())
        with ThreadPoolExecutor() as pool:
            for answers in pool.map(ask, (first, second)):
                assert_same(answers, expected)
        pids = first.stage_pids()
        first.stop()
        wait_until(lambda: second.readiness() is None, 10, "the other line is still ready")
        assert not set(pids) & set(second.stage_pids())
        prompts, tokens = chosen()
        assert second.text(prompts[0], tokens) == expected[0]["text"]
