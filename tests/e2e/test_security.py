"""Who may talk to the front: certificates, keys that change, pages of other origins, files that are no good; and what a
stage says of those who may not talk to it."""

import contextlib
import re
import socket
import ssl

import httpx
import pytest
import trustme
from machines import Cluster, stage
from openai import OpenAI

from paceline import SMOLLM2, Process, Serve, complaint, free_port, run, wait_until

START = ("serve", SMOLLM2, "--listen", "127.0.0.1:0", "--threads", 1)


@pytest.fixture(scope="module")
def authority():
    """Who signs certificates."""
    return trustme.CA()


@pytest.fixture
def files(tmp_path, authority):
    """A certificate's and its key's file."""
    issued = authority.issue_cert("localhost", "127.0.0.1")
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    certificate.write_bytes(b"".join(part.bytes() for part in issued.cert_chain_pems))
    key.write_bytes(issued.private_key_pem.bytes())
    return certificate, key


def test_https_with_keys_that_change_and_a_page_that_may_call(tmp_path, authority, files):
    keys = tmp_path / "keys"
    keys.write_text("old\n")
    certificate, key = files
    more = ("--tls-cert", certificate, "--tls-key", key, "--api-key-file", keys, "--cors", "https://chat.example")
    with Process(*START, *more) as serve:
        url = serve.wait_line(r"is starting on (https://\S+)", 30)[1]
        trusting = ssl.create_default_context()
        authority.configure_trust(trusting)
        with httpx.Client(base_url=url, verify=trusting, timeout=60) as http:
            wait_until(lambda: http.get("/ready").status_code == 200, 90, lambda: serve.lines)
            client = OpenAI(base_url=f"{url}/v1", api_key="old", max_retries=0, http_client=http)
            answer = client.completions.create(model="default", prompt="One, two,", max_tokens=2, temperature=0)
            assert answer.choices[0].text
            chunks = client.completions.create(model="default", prompt="One, two,", max_tokens=2, stream=True)
            assert list(chunks)[-1].choices[0].finish_reason == "length"
            status = lambda word: http.get("/v1/models", headers={"authorization": f"Bearer {word}"}).status_code
            assert (status("old"), status("new")) == (200, 401)
            keys.write_text("new\nanother\n")
            assert (status("old"), status("new")) == (401, 200)
            page = {"origin": "https://chat.example"}
            asks = {**page, "access-control-request-method": "POST", "access-control-request-headers": "authorization"}
            allowed = http.options("/v1/chat/completions", headers=asks)
            assert allowed.headers["access-control-allow-origin"] == page["origin"]
            assert "authorization" in allowed.headers["access-control-allow-headers"]
            assert http.get("/health", headers=page).headers["access-control-allow-origin"] == page["origin"]
            other = http.get("/health", headers={"origin": "https://other.example"})
            assert "access-control-allow-origin" not in other.headers
        with pytest.raises(httpx.ConnectError):
            httpx.get(f"{url}/health")
        with pytest.raises(httpx.TransportError):
            httpx.get(url.replace("https://", "http://") + "/health", timeout=30)


def test_files_that_are_no_good_are_named(tmp_path, authority, files):
    certificate, key = files
    other = tmp_path / "other.pem"
    other.write_bytes(authority.issue_cert("localhost").private_key_pem.bytes())
    empty = tmp_path / "empty"
    empty.write_text("")
    missing = tmp_path / "missing"
    for more, code, said in [
        (("--tls-cert", certificate), 2, "--tls-key"),
        (("--tls-cert", missing, "--tls-key", key), 1, str(missing)),
        (("--tls-cert", empty, "--tls-key", key), 1, "no certificate"),
        (("--tls-cert", certificate, "--tls-key", certificate), 1, "no private key"),
        (("--tls-cert", certificate, "--tls-key", other), 1, "does not belong"),
        (("--api-key-file", missing), 1, str(missing)),
        (("--api-key-file", empty), 1, "holds no API key"),
        (("--cors", "chat.example"), 2, "is no origin"),
    ]:
        assert said in complaint(run(*START, *more), code)


def hung_up_on(port, first=b"", tls=None):
    """Connects to a stage, says something, and returns once the stage has hung up."""
    with socket.create_connection(("127.0.0.1", port), timeout=30) as stream:
        # It may hang up with an alert, or before it has read everything.
        with contextlib.suppress(ssl.SSLError, ConnectionError), tls.wrap_socket(stream) if tls else stream as carrier:
            carrier.sendall(first)
            while carrier.recv(4096):
                pass


def test_whoever_a_stage_refuses_again_and_again_is_logged_once_and_its_front_is_served(tmp_path):
    (tmp_path / "others").mkdir()
    cluster, others, port = Cluster(tmp_path), Cluster(tmp_path / "others"), free_port()
    second, stranger = cluster.enroll("second"), others.enroll("stranger", "observer")
    nameless = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    nameless.check_hostname = False
    nameless.verify_mode = ssl.CERT_NONE
    nameless.set_alpn_protocols(["paceline-control/1"])
    look = lambda member: complaint(run("cluster", "look", f"127.0.0.1:{port}", "--dir", member.parent), 1)
    with stage(second, port, "--models", SMOLLM2.parent) as process:
        for _ in range(5):
            hung_up_on(port, b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
            hung_up_on(port, tls=nameless)
            look(stranger)
            # A stage has no business to look at others.
            look(second)
        more = ("--stage", f"127.0.0.1:{port}", "--cluster", cluster.front, "--threads", 1)
        with Serve(SMOLLM2, "--front-only", *more) as serve:
            serve.wait_ready()
            assert serve.text("The capital of France is", 1) == " Paris"
        for reason in (
            "does not speak this protocol",
            "showed no membership",
            "belongs to another cluster",
            "a membership as stage is not for one who wants to observe",
        ):
            process.wait_line(rf"connection refused.*{reason}", 10)
            said = [line for line in process.lines if reason in line]
            assert len(said) == 1 and re.search(r"WARN.*127\.0\.0\.1:\d+", said[0]), said
        assert sum("connection refused" in line for line in process.lines) == 4, process.lines
