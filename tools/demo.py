#!/usr/bin/env python3
"""Serves a model from three processes on this machine, asks one question and prints the answer.

Usage: demo.py PACELINE MODEL

The answer and its figures go to standard output, everything else to standard error. Whatever was started is stopped
before the end.
"""

import json
import queue
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request

QUESTION = "What is the capital of France? Answer in one sentence."
STAGES = 3
LISTEN_S = 20
# A bare machine cuts the model first; a warm one is ready within seconds.
READY_S = 120
ANSWER_S = 60


class Failed(Exception):
    """One sentence for a person."""


def get(url: str, body=None, timeout: float = 5.0):
    """The JSON that the server answers with."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=timeout) as response:
        return json.load(response)


def start(paceline: str, model: str):
    """The front process and the address that it prints once its port is open."""
    command = [paceline, "serve", model, "--stages", str(STAGES), "--listen", "127.0.0.1:0"]
    print("starting:", *command, file=sys.stderr)
    front = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    addresses = queue.Queue()
    threading.Thread(target=forward, args=(front.stdout, addresses), daemon=True).start()
    try:
        return front, addresses.get(timeout=LISTEN_S)
    except queue.Empty:
        stop(front)
        raise Failed(f"paceline did not listen within {LISTEN_S} s") from None


def forward(said, addresses: queue.Queue) -> None:
    """Passes on what the front says, for as long as it lives, and the addresses in it."""
    for line in said:
        print(line, end="", file=sys.stderr, flush=True)
        for word in line.split():
            if word.startswith("http://"):
                addresses.put(word.rstrip("/.,;"))


def wait_ready(front, address: str) -> None:
    """Returns once a token has passed through every stage."""
    deadline = time.monotonic() + READY_S
    said = None
    while time.monotonic() < deadline:
        if front.poll() is not None:
            raise Failed(f"paceline ended with status {front.returncode} before it was ready")
        try:
            get(f"{address}/ready")
            return
        except urllib.error.HTTPError as error:
            reason = json.load(error)["error"]["message"]
            if reason != said:
                print(reason, file=sys.stderr)
            said = reason
        except OSError as error:
            said = str(error)
        time.sleep(0.1)
    raise Failed(f"the line was not ready within {READY_S} s: {said}")


def ask(address: str) -> None:
    """Sends the question and prints what comes back."""
    body = {
        "model": "default",
        "messages": [{"role": "user", "content": QUESTION}],
        "temperature": 0,
        "max_tokens": 64,
    }
    answer = get(f"{address}/v1/chat/completions", body, ANSWER_S)
    stages = get(f"{address}/v1/line")["stages"]
    timings = answer["timings"]
    print(f"question: {QUESTION}")
    print(f"answer:   {answer['choices'][0]['message']['content'].strip()}")
    for number, stage in enumerate(stages):
        first, end = stage["layers"]
        where = stage["address"] or "answers HTTP"
        print(f"stage {number}:  {end - first:2} layers from {first}, process {stage['pid']}, {where}")
    print(
        f"figures:  {timings['prompt_n']} prompt tokens at {timings['prompt_per_second']:.1f} per second, "
        f"{timings['predicted_n']} answer tokens at {timings['predicted_per_second']:.1f} per second"
    )


def stop(front) -> None:
    """Ends the front; its children end with it."""
    front.send_signal(signal.SIGINT)
    try:
        front.wait(10)
    except subprocess.TimeoutExpired:
        front.kill()
        front.wait()


def main(paceline: str, model: str) -> None:
    """Start, wait, ask, stop."""
    front, address = start(paceline, model)
    try:
        wait_ready(front, address)
        ask(address)
    finally:
        stop(front)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: demo.py PACELINE MODEL")
    try:
        main(sys.argv[1], sys.argv[2])
    except (Failed, OSError, KeyError, ValueError) as error:
        sys.exit(f"demo: {error}")
