"""The compiled modules once more, with address and undefined-behaviour sanitizers and coverage, in build/sanitized.

Those of another checkout, which must have been built, are in a directory of their own beside them: nothing is written there.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import sysconfig
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path

import kvitto_checkout
import tests.protocol
import tests.sim
import tests.support

ROOT = Path(__file__).resolve().parents[2]
SANITIZED = ROOT / "build" / "sanitized"
COVERAGE = SANITIZED / "coverage.so"
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


def place(checkout: Path = ROOT) -> Path:
    """Where the sanitized modules of a checkout are."""
    if checkout.resolve() == ROOT:
        return SANITIZED
    return SANITIZED.with_name(f"sanitized-{sha256(str(checkout.resolve()).encode()).hexdigest()[:8]}")


def build(checkout: Path = ROOT) -> None:
    """Compile what has changed. BuildError if it cannot be."""
    if why := missing():
        raise BuildError(why)
    if checkout.resolve() == ROOT:
        subprocess.run([sys.executable, "scripts/build"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    compile_changed(checkout / "build" / "c" / "src", place(checkout))
    shutil.copyfile(checkout / "build" / "compiled" / "stamp", place(checkout) / "stamp")


def prepared(checkout: Path = ROOT) -> bool:
    """Build, and return whether there is a build now. If not, say why."""
    try:
        build(checkout)
    except BuildError as error:
        print(f"cannot build the modules with sanitizers: {error}", file=sys.stderr)
        return False
    return True


def compile_changed(c_files: Path, target: Path) -> None:
    """Each C file whose contents, or whose recipe, are others than last time."""
    target.mkdir(parents=True, exist_ok=True)
    made = target / "made.json"
    before: dict[str, str] = json.loads(made.read_text()) if made.exists() else {}
    now: dict[str, str] = {}
    commands = []
    include, suffix = f"-I{sysconfig.get_path('include')}", sysconfig.get_config_var("EXT_SUFFIX")
    for source in [SOURCE, *sorted(c_files.rglob("*.c"))]:
        checks = [] if source is SOURCE else [*SANITIZERS, "-fsanitize-coverage=trace-pc"]
        module = target / COVERAGE.name
        if source is not SOURCE:
            module = target / source.relative_to(c_files).with_suffix(suffix)
        now[str(module)] = sha256(source.read_bytes() + repr((COMPILER, FLAGS, checks)).encode()).hexdigest()
        if before.get(str(module)) != now[str(module)] or not module.exists():
            module.parent.mkdir(parents=True, exist_ok=True)
            commands.append([COMPILER, *FLAGS, *checks, include, str(source), "-o", str(module)])
    for module in (Path(name) for name in before if name not in now):
        module.unlink(missing_ok=True)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for done in pool.map(compile_one, commands):
            if done.returncode:
                raise BuildError(f"{' '.join(done.args)}: {done.stderr}")
    whole = made.with_name(f"made.{os.getpid()}")  # several runs may begin side by side
    whole.write_text(json.dumps(now))
    whole.replace(made)


def compile_one(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, capture_output=True, text=True, check=False)


def environment(checkout: Path = ROOT) -> dict[str, str]:
    """For a process that runs the sanitized build: `use` is to be its first call."""
    options = (
        "detect_leaks=0:abort_on_error=1:allocator_may_return_null=1:max_allocation_size_mb=512:hard_rss_limit_mb=3072"
        ":malloc_context_size=4:quarantine_size_mb=32"  # stacks of allocations are most of the cost else
    )
    target = place(checkout)
    return {
        **os.environ,
        "LD_PRELOAD": " ".join([library("libasan.so"), library("libubsan.so"), str(target / COVERAGE.name)]),
        "PYTHONPATH": str(checkout / "src"),
        "PYTHONMALLOC": "malloc",
        "PYTHONHASHSEED": "0",
        "ASAN_OPTIONS": options,
        "UBSAN_OPTIONS": "print_stacktrace=1:halt_on_error=1:abort_on_error=1",
    }


def use(checkout: Path = ROOT) -> None:
    """Have this process import the sanitized modules; none may be imported yet."""
    assert not any(name.startswith("kvitto.") for name in sys.modules), "too late"
    assert checkout.resolve() / "src" == kvitto_checkout.SOURCES, "another checkout was found first"
    for package in (tests.protocol, tests.support, tests.sim):  # how a broker is driven belongs to its version
        package.__path__.insert(0, str(checkout / "tests" / package.__name__.rpartition(".")[2]))
    kvitto_checkout.COMPILED = place(checkout)
    kvitto_checkout.STAMP = place(checkout) / "stamp"
