"""The arguments of `kvitto pipeline`. Each job's module has an `add_parser` of its own.

Those modules load pyspark only when the job runs, so `kvitto --help` works without it.
"""

from __future__ import annotations

import argparse
from importlib import import_module

JOBS = ("land", "work", "publish", "ledger")
"""The modules of jobs, in the order of the help."""


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    """Add `pipeline` with its jobs. Each sets `run`, a function of the arguments that returns the exit code."""
    pipeline = subparsers.add_parser("pipeline", help="Spark jobs on queues and archives", description=__doc__)
    pipeline.description = (
        "Spark jobs on queues and archives; they need pip install 'kvitto[spark]' and Java 17 or newer."
    )
    commands = pipeline.add_subparsers(dest="job", required=True, metavar="JOB")
    for name in JOBS:
        import_module(f"kvitto.pipeline.{name}").add_parser(commands)
