#!/usr/bin/env python3
"""Makes a Python environment with the packages of a list, once.

Usage: python_env.py FOLDER REQUIREMENTS

One process at a time (a file lock beside the folder). A marker inside says that the environment is complete; one that
was left half made is made anew.
"""

import fcntl
import shutil
import subprocess
import sys
import venv
from pathlib import Path


def make(folder: Path, requirements: Path) -> None:
    """Builds the environment and marks it complete."""
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, with_pip=True, symlinks=True)
    command = [str(folder / "bin" / "python"), "-m", "pip", "install", "--disable-pip-version-check", "--quiet"]
    subprocess.run([*command, "--requirement", str(requirements)], check=True)


def main(folder: Path, requirements: Path) -> None:
    """Makes `folder` unless it is complete."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    marker = folder / ".complete"
    with folder.with_name(folder.name + ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not marker.exists():
            make(folder, requirements)
            marker.touch()


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python_env.py FOLDER REQUIREMENTS")
    try:
        main(Path(sys.argv[1]), Path(sys.argv[2]))
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"python_env: {error}")
