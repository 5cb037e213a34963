"""The compiled data plane: hot modules are plain .py files with a sibling .pxd, listed once, here.

Building is optional: where no C compiler works, Kvitto installs interpreted and says so. All are compiled or none.
An editable install compiles nothing; in a checkout, `make build` does (see src/kvitto_checkout.py).
"""

import os
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import CompileError, ExecError, LinkError, PlatformError

ROOT = Path(__file__).parent
HOT = [
    "kvitto/base/clock.py",
    "kvitto/base/turn_part.py",
    "kvitto/wire/buf.py",
    "kvitto/wire/check.py",
    "kvitto/wire/fields.py",
    "kvitto/wire/field_writer.py",
    "kvitto/wire/message_key.py",
    "kvitto/store/batch.py",
    "kvitto/store/settlements.py",
    "kvitto/store/segment.py",
    "kvitto/store/properties_scan.py",
    "kvitto/store/log.py",
    "kvitto/store/commit.py",
    "kvitto/store/inventory.py",
    "kvitto/store/room.py",
    "kvitto/store/disk.py",
    "kvitto/store/store.py",
    "kvitto/broker/timers.py",
    "kvitto/broker/latencies.py",
    "kvitto/broker/state.py",
    "kvitto/broker/queues/later_writes.py",
    "kvitto/broker/queues/consumer.py",
    "kvitto/broker/queues/rota.py",
    "kvitto/broker/queues/counted.py",
    "kvitto/broker/queues/tail.py",
    "kvitto/broker/queues/queue.py",
    "kvitto/broker/queues/backlog.py",
    "kvitto/broker/queues/work_queue.py",
    "kvitto/broker/queues/key_table.py",
    "kvitto/broker/queues/deduplicating.py",
    "kvitto/broker/routing/canonical.py",
    "kvitto/broker/routing/route.py",
    "kvitto/broker/turning.py",
    "kvitto/protocol/driver.py",
    "kvitto/protocol/crowd.py",
    "kvitto/protocol/output.py",
    "kvitto/protocol/delivery.py",
    "kvitto/protocol/channel.py",
    "kvitto/protocol/connection.py",
    "kvitto/protocol/confirms.py",
    "kvitto/protocol/hub.py",
    "kvitto/server/gathering.py",
    "kvitto/server/pacing.py",
    "kvitto/server/syncer.py",
    "kvitto/server/served.py",
    "kvitto/server/peer.py",
    "kvitto/server/poller.py",
    "kvitto/server/driving.py",
    "kvitto/client/codec.py",
    "kvitto/client/columns.py",
    "kvitto/client/aio/core.py",
    "kvitto/perf/workers.py",
    "kvitto/perf/callers.py",
    "kvitto/client/fields.py",
]
CHECKED = {
    "kvitto/store/segment.py",
    "kvitto/store/log.py",
    "kvitto/store/commit.py",
    "kvitto/store/inventory.py",
    "kvitto/store/room.py",
    "kvitto/store/disk.py",
    "kvitto/store/store.py",
    "kvitto/broker/timers.py",
    "kvitto/broker/state.py",
    "kvitto/broker/queues/later_writes.py",
    "kvitto/broker/turning.py",
    "kvitto/protocol/confirms.py",
    "kvitto/protocol/hub.py",
    "kvitto/server/gathering.py",
    "kvitto/server/pacing.py",
    "kvitto/server/poller.py",
    "kvitto/server/driving.py",
}
"""Those that run once per turn and not per message: a wrong index or a None in them raises, as in the interpreter."""
DIRECTIVES = {
    "language_level": 3,
    # types come from the .pxd alone; annotations are for mypy
    "annotation_typing": False,
    "boundscheck": False,
    "wraparound": False,
    "initializedcheck": False,
}
CHECKS = {"boundscheck": True, "wraparound": True, "initializedcheck": True, "nonecheck": True}
FLAGS = [
    "-O3",
    "-g0",  # Python asks for debugging information, which is a third of the compiler's time
    # Joined loads of arguments that the caller has just stored one by one wait for those stores: 10 % of a flood's CPU.
    "-fno-tree-slp-vectorize",
    "-Wno-sign-compare",  # Cython compares its loop counters with what the .pxd declares
]
COMPILERS_MAX = 8
REQUIRED = bool(os.environ.get("KVITTO_REQUIRE_COMPILED"))
"""Set where an interpreted result would be a failure: `make build`, wheels for release."""


def extensions() -> list[Extension]:
    """The hot modules as C extensions; fails on a mistake in their source, needs no C compiler yet."""
    from Cython.Build import cythonize

    present = [path for path in HOT if (ROOT / "src" / path).exists()]
    for path in sorted(set(HOT) - set(present)):
        print(f"setup.py: hot module src/{path} is not there, skipped", file=sys.stderr)
    units: list[Extension] = []
    for paths, directives in (
        ([path for path in present if path not in CHECKED], DIRECTIVES),
        ([path for path in present if path in CHECKED], DIRECTIVES | CHECKS),
    ):
        units += cythonize(
            [
                Extension(path.removesuffix(".py").replace("/", "."), [f"src/{path}"], extra_compile_args=FLAGS)
                for path in paths
            ],
            build_dir="build/c",
            include_path=["src"],
            compiler_directives=directives,
            annotate=bool(os.environ.get("KVITTO_ANNOTATE")),
            quiet=True,
        )
    return units


def refuse_free_threading() -> None:
    """A build for a Python without the global lock would look as if it could be used."""
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        sys.exit(
            "Kvitto does not support free-threaded Python: its modules rely on the global interpreter lock (docs/releases.md).\n"
            "Install it with the usual build of the same version."
        )


class BuildOrInterpret(build_ext):
    """Build all extensions, or report why not and leave none behind."""

    def finalize_options(self) -> None:
        """Compile with several cores, unless somebody says with how many. Each compiler needs up to 350 MB."""
        super().finalize_options()
        if self.parallel is None:
            cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
            self.parallel = min(cores, COMPILERS_MAX)

    def run(self) -> None:
        """Compile into the build directory; never beside the sources, where an edit would leave them stale."""
        if self.editable_mode:
            return
        self.inplace = False
        try:
            super().run()
        except (CompileError, ExecError, LinkError, PlatformError, OSError) as error:
            if REQUIRED:
                raise
            self.fall_back(error)

    def fall_back(self, error: Exception) -> None:
        """A mix of compiled and interpreted modules does not work: remove what was built so far."""
        for path in self.get_outputs():
            Path(path).unlink(missing_ok=True)
        self.extensions = []
        print(
            f"\n*** Kvitto was NOT compiled: {error}\n"
            "*** It is installed interpreted: it works, about 30 times slower. For full speed install a C compiler\n"
            "*** and Python's headers (Debian: apt install gcc python3-dev) and install kvitto again.\n",
            file=sys.stderr,
        )


if __name__ == "__main__":
    # metadata needs no compiler and an editable install no extensions: translate only when something is built
    building = bool({"build_ext", "bdist_wheel", "build", "install"} & set(sys.argv))
    if building:
        refuse_free_threading()
    setup(ext_modules=extensions() if building else [], cmdclass={"build_ext": BuildOrInterpret})
