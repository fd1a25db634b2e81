#!/usr/bin/env python3
"""Adds up the test results in a log and prints two numbers: passed and failed.

Usage: count.py LOG

Understands the summaries of cargo-nextest and `cargo test`, and lines of the form `3 passed, 0 failed`. A test that was
ignored or skipped counts as failed: nothing here may be left out quietly.
"""

import re
import sys
from pathlib import Path

COLOUR = re.compile(r"\x1b\[[0-9;]*m")
NEXTEST = re.compile(r"^\s*Summary \[.*?\].*? run: (.*)$")
CARGO = re.compile(r"^test result: \S+ (.*)$")
PLAIN = re.compile(r"^(\d+ passed, \d+ failed)$")
FIGURE = re.compile(r"(\d+) (passed|failed|timed out|exec failed|ignored|skipped)")


def count(text: str):
    """Passed and failed tests of the whole log."""
    passed = failed = 0
    for line in COLOUR.sub("", text).splitlines():
        for form in (NEXTEST, CARGO, PLAIN):
            found = form.match(line)
            if not found:
                continue
            for number, what in FIGURE.findall(found.group(1)):
                if what == "passed":
                    passed += int(number)
                else:
                    failed += int(number)
    return passed, failed


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("usage: count.py LOG")
    print(*count(Path(sys.argv[1]).read_text(errors="replace")))
