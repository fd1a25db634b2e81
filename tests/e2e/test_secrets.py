"""What machines and clients must keep to themselves is in nothing that processes write for people to read."""

import contextlib
import re

from machines import Cluster, Invitation

from paceline import SMOLLM2, Process, Serve, environment, free_port, run

KEY = "sk-lighthouse-7d1f"
WRONG_KEY = "sk-shipwreck-42"
PROMPT = "The zebrawood casket of Quillermo holds"
# Everything is logged, what the libraries do underneath, too.
EVERYTHING = "-vvv"
# Commands that have little to say.
QUIET = ("invitation", "third")


def private_parts(*files):
    """The lines of private keys in these files: base64 without the words around them."""
    keys = []
    for file in files:
        for kind, body in re.findall(r"-----BEGIN ([A-Z ]+)-----\n(.*?)-----END", file.read_text(), re.DOTALL):
            keys += body.split() if "PRIVATE" in kind else []
    assert keys, files
    return keys


def test_no_key_ticket_or_text_is_logged_or_shown_however_much_is(tmp_path):
    cluster, port = Cluster(tmp_path), free_port()
    env = environment(config=tmp_path / "second")
    keys = tmp_path / "keys"
    keys.write_text(f"{KEY}\n")
    with contextlib.ExitStack() as stack:
        invitation = stack.enter_context(Invitation(cluster, EVERYTHING))
        ticket = invitation.ticket
        listening = ("stage", "--listen", f"127.0.0.1:{port}", "--threads", 1, "--models", SMOLLM2.parent, EVERYTHING)
        second = stack.enter_context(Process(*listening, "--join", ticket, env=env))
        second.wait_line(rf"waits for a front on 127\.0\.0\.1:{port}", 30)
        assert invitation.wait(10) == 0
        place = ("--stage", f"127.0.0.1:{port}", "--cluster", cluster.front)
        serve = stack.enter_context(Serve(SMOLLM2, *place, "--threads", 1, "--api-key-file", keys, EVERYTHING))
        serve.wait_ready()
        allowed, refused = ({"authorization": f"Bearer {key}"} for key in (KEY, WRONG_KEY))
        body = {"prompt": PROMPT, "max_tokens": 4, "user": "Quillermo"}
        assert serve.http.post("/v1/completions", json=body, headers=refused).status_code == 401
        answer = serve.http.post("/v1/completions", json=body, headers=allowed)
        assert answer.status_code == 200, answer.text
        shown = [serve.http.get(path, headers=allowed) for path in ("/metrics", "/v1/line", "/props")]
        assert [answer.status_code for answer in shown] == [200] * len(shown), shown
        # Who has been here once is refused, which is told to both.
        third = run("cluster", "join", ticket, EVERYTHING, env=environment(config=tmp_path / "third"))
        assert third.returncode == 1
        said = {
            # The ticket is what an invitation is there to print: once, on a line of its own.
            "invitation": [line for line in invitation.lines if line.strip() != ticket],
            "stage": second.lines,
            "front": serve.lines,
            "third": third.stderr.splitlines() + third.stdout.splitlines(),
            "shown": [line for answer in shown for line in answer.text.splitlines()],
        }
    of = lambda folder: [path for path in (tmp_path / folder).rglob("*") if path.is_file() and b"PRIVATE" in path.read_bytes()]
    assert len(of("front")) == 2 and of("second"), "the root's key, and one of each machine"
    secrets = [KEY, WRONG_KEY, ticket, ticket.partition(":")[2][:64], *private_parts(*of("front"), *of("second"))]
    secrets += ["Quillermo", answer.json()["choices"][0]["text"].strip()]
    for name, lines in said.items():
        assert name in QUIET or len(lines) > 20, (name, lines)
        for secret in secrets:
            assert not [line for line in lines if secret in line], (name, secret)
