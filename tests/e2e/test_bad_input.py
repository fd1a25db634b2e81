"""Wrong files, ports, arguments and bytes: one sentence that says what to do, and nothing that hangs or leaks."""

import os
import socket
import ssl
import struct
import subprocess

import psutil
import pytest
from machines import Cluster

from paceline import BINARY, GEMMA, SMOLLM2, SOAK, Process, Serve, complaint, run, wait_until
from streams import PROMPT, Stream

# Of the test model: everything before the tensors' data.
HEAD_BYTES = 4 << 20
# Strangers that come during one answer, and tokens of that answer.
BESIDE, BESIDE_TOKENS = 200, 60
COMMANDS = ["serve", "stage", "cluster", "split", "inspect", "verify"]


def head():
    """The beginning of the test model."""
    with SMOLLM2.open("rb") as file:
        return file.read(HEAD_BYTES)


def model_with(path, beginning):
    """A file of the test model's size with another beginning; the rest is a hole."""
    with path.open("wb") as file:
        file.write(beginning)
        file.truncate(os.path.getsize(SMOLLM2))
    return path


def gguf(n_tensors, n_values, rest=b""):
    """The fixed part of a GGUF file, version 3."""
    return b"GGUF" + struct.pack("<IQQ", 3, n_tensors, n_values) + rest


def string(text):
    """A GGUF string."""
    return struct.pack("<Q", len(text)) + text


def key(name, kind, payload):
    """A GGUF key with its value."""
    return string(name) + struct.pack("<I", kind) + payload


HOSTILE = {
    "empty": b"",
    "only-magic": b"GGUF",
    "wrong-magic": b"GGML" + gguf(0, 0)[4:],
    "other-endian": b"GGUF" + struct.pack(">IQQ", 3, 1, 1),
    "future-version": b"GGUF" + struct.pack("<IQQ", 99, 0, 0),
    "huge-tensor-count": gguf(2**63, 0),
    "huge-value-count": gguf(0, 2**62),
    "huge-key": gguf(0, 1, struct.pack("<Q", 2**61) + b"abc"),
    "huge-string": gguf(0, 1, key(b"general.architecture", 8, struct.pack("<Q", 2**63 - 1))),
    "huge-array": gguf(0, 1, key(b"a", 9, struct.pack("<IQ", 4, 2**62))),
    "nested-arrays": gguf(0, 1, key(b"a", 9, struct.pack("<IQ", 9, 1) * 5000)),
    "unknown-value-type": gguf(0, 1, key(b"a", 77, b"")),
    "huge-dimensions": gguf(
        1,
        1,
        key(b"general.architecture", 8, string(b"llama"))
        + string(b"t")
        + struct.pack("<I4QIQ", 4, 2**40, 2**40, 2**40, 2**40, 0, 0),
    ),
    "no-architecture": gguf(0, 0),
}


def refused_model(path, command):
    """What a command says of a file, with 2 GiB of address space at most."""
    args = {"serve": ["--listen", "127.0.0.1:0"], "split": ["--stages", "2", "--out", f"{path}.out"]}.get(command, [])
    limited = ["bash", "-c", f'ulimit -v {2 << 20}; exec "$@"', "-", BINARY, command, path, *args]
    done = subprocess.run([*map(str, limited)], capture_output=True, text=True, timeout=30, stdin=subprocess.DEVNULL)
    return complaint(done, 1)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_model_file_is_refused_in_one_sentence(name, tmp_path):
    path = tmp_path / f"{name}.gguf"
    path.write_bytes(HOSTILE[name])
    # A model without an architecture can be looked at.
    for command in ("inspect", "serve", "verify")[name == "no-architecture" :]:
        sentence = refused_model(path, command)
        assert len(sentence) < 400, sentence


def test_a_truncated_model_is_refused(tmp_path):
    path = tmp_path / "half.gguf"
    whole = head()
    for size in (100, 5000, HEAD_BYTES):
        path.write_bytes(whole[:size])
        for command in ("serve", "split", "verify"):
            refused_model(path, command)
    os.truncate(model_with(path, whole), os.path.getsize(SMOLLM2) - 1)
    for command in ("serve", "split", "verify"):
        refused_model(path, command)


def test_an_unknown_architecture_is_refused_by_its_name(tmp_path):
    beginning = head()
    mark = string(b"general.architecture") + struct.pack("<I", 8)
    assert beginning.count(mark + string(b"llama")) == 1
    path = model_with(
        tmp_path / "new.gguf",
        beginning.replace(mark + string(b"llama"), mark + string(b"blama")).replace(b"llama.", b"blama."),
    )
    for command in ("serve", "split", "verify"):
        assert "blama" in refused_model(path, command)


def test_a_model_that_is_not_there_is_named(tmp_path):
    for command in ("serve", "inspect", "verify"):
        assert "nowhere.gguf" in refused_model(tmp_path / "nowhere.gguf", command)


def test_a_port_in_use_is_named():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        sentence = complaint(run("serve", SMOLLM2, "--listen", f"127.0.0.1:{port}", within=20), 1)
        assert port in sentence and "use" in sentence, sentence


def test_a_port_in_use_is_named_by_a_stage(tmp_path):
    member = Cluster(tmp_path).enroll("second")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        sentence = complaint(run("stage", "--listen", f"127.0.0.1:{port}", "--cluster", member, within=20), 1)
        assert port in sentence and "use" in sentence, sentence


@pytest.mark.parametrize(
    "args",
    [
        ["fly"],
        ["--fly"],
        ["serve"],
        ["serve", "m.gguf", "--fly"],
        ["serve", "m.gguf", "--stages", "0"],
        ["serve", "m.gguf", "--stages", "many"],
        ["serve", "m.gguf", "--cuts", "9,3"],
        ["serve", "m.gguf", "--listen", "nowhere"],
        ["serve", "m.gguf", "--link", "delay=soon"],
        ["serve", "m.gguf", "--draft-len", "2"],
        ["serve", "m.gguf", "--stage", "a:1", "--stages", "2"],
        ["stage", "--threads", "0"],
        ["split", "m.gguf"],
        ["cluster", "fly"],
        ["bench"],
        ["inspect"],
    ],
    ids=" ".join,
)
def test_wrong_usage_is_told_in_one_sentence(args):
    complaint(run(*args, within=10), 2)


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_explains_itself(command):
    done = run(command, "--help", within=10)
    assert done.returncode == 0 and f"{BINARY.name} {command}" in done.stdout and not done.stderr
    if command != "inspect":
        assert "Usage:" in done.stdout and len(done.stdout.splitlines()) > 8


def test_the_version_is_told():
    done = run("--version", within=10)
    assert done.returncode == 0 and done.stdout.startswith("paceline ")


def strangers(port):
    """Endless connections that are no members, of many kinds. Each yields the open socket."""
    request = b"GET / HTTP/1.1\r\nhost: x\r\n\r\n"
    hello = bytes.fromhex("16030100500100004c0303") + bytes(70)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.set_alpn_protocols(["paceline-control/1"])
    number = 0
    while True:
        number += 1
        kind = number % 6
        stream = socket.create_connection(("127.0.0.1", port), timeout=10)
        try:
            if kind == 0:
                stream.sendall(request)
            elif kind == 1:
                stream.sendall(os.urandom(1 + number % 3000))
            elif kind == 2:
                stream.sendall(hello[: 3 + number % 60])
            elif kind == 3:
                stream.sendall(hello + b"\xff" * 5000)
            elif kind == 4:
                stream = context.wrap_socket(stream)
                stream.sendall(b"\0" * 100)
        except OSError:
            pass  # It hung up first, as it may.
        yield stream


def abuse(port, count):
    """Lets so many strangers connect, some of them at the same time."""
    open_ones = []
    for stream, _ in zip(strangers(port), range(count)):
        open_ones.append(stream)
        if len(open_ones) > 40:
            open_ones.pop(0).close()
    for stream in open_ones:
        stream.close()


def abused_under_an_answer(serve, port, expected):
    """Lets strangers connect while an answer comes, which must be the one that nothing disturbs."""
    stream = Stream(serve, BESIDE_TOKENS)
    stream.wait_events(2)
    abuse(port, BESIDE)
    assert stream.ended_at is None, "over before the last stranger came"
    stream.wait_end(60)
    assert stream.text() == expected


def test_garbage_to_the_port_of_a_stage_costs_nothing_and_nobody_anything():
    # Each token crosses two slow links, so that an answer lasts longer than the strangers that come meanwhile.
    with Serve(SMOLLM2, "--stages", 2, "--threads", 1, "--exact", "--link", "delay=5ms") as serve:
        serve.wait_ready()
        expected = serve.text(PROMPT, BESIDE_TOKENS)
        status = serve.line()["stages"][1]
        port, process = int(status["address"].rpartition(":")[2]), psutil.Process(status["pid"])
        # Buffers that are made once are no leak.
        abuse(port, 60)
        wait_until(lambda: len(process.net_connections()) <= 4, 15, "connections stay")
        files, memory = process.num_fds(), process.memory_info().rss
        for _ in range(10 if SOAK else 1):
            abused_under_an_answer(serve, port, expected)
        wait_until(lambda: process.num_fds() <= files, 15, lambda: f"{process.num_fds()} open files, {files} before")
        assert process.memory_info().rss < memory + (8 << 20), (memory, process.memory_info().rss)
        assert serve.stage_pids()[1] == status["pid"]
        assert serve.readiness() is None and serve.line()["resumed"] == 0
        assert serve.text(PROMPT, BESIDE_TOKENS) == expected


def test_plain_http_to_the_port_of_a_stage_is_hung_up_on(line):
    port = int(line.line()["stages"][1]["address"].rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=5) as stream:
        stream.sendall(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n")
        answer = bytearray()
        try:
            while part := stream.recv(4096):
                answer += part
        except ConnectionResetError:
            pass
        assert b"HTTP" not in answer


def test_a_stranger_who_says_nothing_is_hung_up_on(line):
    port = int(line.line()["stages"][2]["address"].rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=15) as stream:
        assert stream.recv(4096) == b""


def test_unknown_settings_are_named(tmp_path):
    config = tmp_path / "paceline.toml"
    config.write_text("[serve]\nstagess = 3\n")
    sentence = complaint(run("serve", SMOLLM2, "--config", config, within=10), 2)
    assert "stagess" in sentence and "line 2" in sentence, sentence


def test_settings_from_a_file_are_used(tmp_path):
    config = tmp_path / "paceline.toml"
    config.write_text(f'[serve]\nmodel = "{SMOLLM2}"\nlisten = "127.0.0.1:0"\nmodel-id = "small"\nthreads = 1\n')
    with Process("serve", "--config", config) as process:
        process.wait_line("small is starting on http://127.0.0.1:", 20)
        process.wait_line("Ready: small at", 60)


def test_a_draft_model_must_speak_the_same_language(tmp_path):
    other = f"suffix,draft={GEMMA}"
    said = complaint(run("serve", SMOLLM2, "--listen", "127.0.0.1:0", "--speculate", other), 1)
    assert f"{GEMMA} cannot draft for {SMOLLM2}: it has 262144 tokens instead of 49152" in said, said
    missing = tmp_path / "missing.gguf"
    said = complaint(run("serve", SMOLLM2, "--listen", "127.0.0.1:0", "--speculate", f"draft={missing}"), 1)
    assert str(missing) in said, said
    said = complaint(run("serve", SMOLLM2, "--speculate", "draft"), 2)
    assert "draft=PATH" in said, said
