"""The compiled modules once more, with address and undefined-behaviour sanitizers and coverage, in build/sanitized."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import kvitto_checkout

ROOT = Path(__file__).resolve().parents[2]
C_FILES = ROOT / "build" / "c" / "src"
SANITIZED = ROOT / "build" / "sanitized"
COVERAGE = SANITIZED / "coverage.so"
STAMP = SANITIZED / "stamp"
RECIPE = SANITIZED / "recipe"
SOURCE = Path(__file__).with_name("coverage.c")
SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize-recover=undefined"]
FLAGS = ["-shared", "-fPIC", "-g1", "-O1", "-w", "-fno-omit-frame-pointer", "-fwrapv"]
COMPILER = "gcc"


class BuildError(RuntimeError):
    """There is no sanitized build; the text says why."""


def missing() -> str:
    """What this machine lacks for the sanitized build; "" for nothing."""
    if shutil.which(COMPILER) is None:
        return f"{COMPILER} is not installed"
    if not Path(library("libasan.so")).is_absolute():
        return f"{COMPILER} has no libasan"
    return ""


def library(name: str) -> str:
    command = [COMPILER, f"-print-file-name={name}"]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()


def build() -> None:
    """Compile what has changed. BuildError if it cannot be."""
    if why := missing():
        raise BuildError(why)
    subprocess.run([sys.executable, "scripts/build"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    fingerprint, recipe = kvitto_checkout.fingerprint(), f"{FLAGS} {SANITIZERS} {SOURCE.read_text()}"
    if STAMP.exists() and (STAMP.read_text(), RECIPE.read_text()) == (fingerprint, recipe):
        return
    shutil.rmtree(SANITIZED, ignore_errors=True)
    SANITIZED.mkdir(parents=True)
    include = f"-I{sysconfig.get_path('include')}"
    commands = [[COMPILER, *FLAGS, include, str(SOURCE), "-o", str(COVERAGE)]]
    suffix = sysconfig.get_config_var("EXT_SUFFIX")
    for source in sorted(C_FILES.rglob("*.c")):
        target = SANITIZED / source.relative_to(C_FILES).with_suffix(suffix)
        target.parent.mkdir(parents=True, exist_ok=True)
        checks = [*SANITIZERS, "-fsanitize-coverage=trace-pc"]
        commands.append([COMPILER, *FLAGS, *checks, include, str(source), "-o", str(target)])
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for done in pool.map(compile_one, commands):
            if done.returncode:
                raise BuildError(f"{' '.join(done.args)}: {done.stderr}")
    RECIPE.write_text(recipe)
    STAMP.write_text(fingerprint)


def compile_one(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)


def environment() -> dict[str, str]:
    """For a process that runs the sanitized build: `use` is to be its first call."""
    options = (
        "detect_leaks=0:abort_on_error=1:allocator_may_return_null=1:max_allocation_size_mb=512:hard_rss_limit_mb=3072"
        ":malloc_context_size=4:quarantine_size_mb=32"  # stacks of allocations are most of the cost else
    )
    return {
        **os.environ,
        "LD_PRELOAD": " ".join([library("libasan.so"), library("libubsan.so"), str(COVERAGE)]),
        "PYTHONMALLOC": "malloc",
        "PYTHONHASHSEED": "0",
        "ASAN_OPTIONS": options,
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1:abort_on_error=1",
    }


def use() -> None:
    """Have this process import the sanitized modules; none may be imported yet."""
    assert not any(name.startswith("kvitto.") for name in sys.modules), "too late"
    kvitto_checkout.COMPILED = SANITIZED
    kvitto_checkout.STAMP = STAMP
