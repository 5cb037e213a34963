"""The common part of all jobs: a quiet Spark session, the check that there can be one, and errors as one line for people."""

from __future__ import annotations

import importlib.util
import logging
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

JAVA_MIN: Final = 17
COULD_NOT_RUN: Final = 2
"""Exit code of a job that could not run; argparse has the same for wrong arguments."""


class JobError(Exception):
    """The job cannot be done; the text says what happened, where, and what to do."""


def java_missing() -> str | None:
    """Return why Spark cannot start here, or None."""
    home = os.environ.get("JAVA_HOME")
    java = str(Path(home, "bin", "java")) if home else shutil.which("java")
    hint = f"Spark needs Java {JAVA_MIN} or newer: apt-get install openjdk-17-jre-headless (or your system's package)"
    if java is None:
        return f"there is no java on PATH. {hint}"
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, check=False).stderr
    except OSError as error:
        return f"{java} does not run ({error.strerror}); is JAVA_HOME right? {hint}"
    match = re.search(r'version "(\d+)', said)
    if match is None or int(match[1]) < JAVA_MIN:
        return f"{java} is version {match[1] if match else 'unknown'}. {hint}"
    return None


def open_session(name: str, master: str, settings: dict[str, str] | None = None) -> SparkSession:
    """Return a quiet session with this Python for its workers. Raise JobError if Spark or Java is missing or does not start."""
    for package in ("pyspark", "pyarrow", "numpy"):
        if importlib.util.find_spec(package) is None:
            raise JobError(f"the package {package} is not installed: pip install 'kvitto[spark]'")
    if problem := java_missing():
        raise JobError(problem)
    from pyspark.errors import PySparkException
    from pyspark.sql import SparkSession

    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    builder = SparkSession.builder.master(master).appName(f"kvitto {name}")
    defaults = {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": str(sys.stderr.isatty()).lower(),
        "spark.sql.session.timeZone": "UTC",
        "spark.log.level": "ERROR",
        "spark.sql.redaction.options.regex": "(?i)url|uri",  # a URI may contain a password, and plans show options
        "spark.python.unix.domain.socket.enabled": "true",  # rows to and from Python: a tenth less CPU than over TCP
    }
    if master.startswith("local"):
        defaults |= {"spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1"}
    for key, value in (defaults | (settings or {})).items():
        builder = builder.config(key, value)
    try:
        spark: SparkSession = builder.getOrCreate()
    except (PySparkException, OSError, RuntimeError) as error:
        raise JobError(f"Spark did not start with --master {master}: {first_line(error)}") from None
    spark.sparkContext.setLogLevel("OFF")
    for name in ("py4j", "DataFrameQueryContextLogger", "SQLQueryContextLogger"):
        logging.getLogger(name).setLevel(
            logging.CRITICAL
        )  # they print tracebacks of errors that run_job prints as one line
    return spark


@contextmanager
def told() -> Iterator[None]:
    """Return an error of Spark as a JobError of one line."""
    from pyspark.errors import PySparkException

    try:
        yield
    except PySparkException as error:
        raise JobError(first_line(error)) from None


@contextmanager
def session(name: str, master: str, settings: dict[str, str] | None = None) -> Iterator[SparkSession]:
    """Like open_session. The session is stopped at the end, unless there was one before: then that one is used and stays."""
    if importlib.util.find_spec("pyspark") is not None:
        from pyspark.sql import SparkSession

        if (active := SparkSession.getActiveSession()) is not None:
            yield active
            return
    spark = open_session(name, master, settings)
    try:
        yield spark
    finally:
        spark.stop()


def run_job(name: str, job: Callable[[], int]) -> int:
    """Run a job's command. An error becomes one line on stderr and exit code COULD_NOT_RUN."""
    try:
        return job()
    except JobError as error:
        print(f"kvitto pipeline {name}: {error}", file=sys.stderr)
    except Exception as error:  # noqa: BLE001 - top of a command: py4j and Spark raise many kinds
        print(f"kvitto pipeline {name}: {first_line(error)}", file=sys.stderr)
    return COULD_NOT_RUN


def first_line(error: BaseException) -> str:
    """Return the useful line of Spark's error: the one that a Kvitto source or else a task's Python raised, or the first one."""
    text = str(error).splitlines()
    lines = [line.strip() for line in text if line.strip()]
    ours = [match[1] for line in lines if (match := re.match(r"kvitto\.[\w.]+: (.+)", line))]
    raised = [line for line in text if re.match(r"[A-Za-z_][\w.]*(Error|Exception|Invalid): ", line)]
    return (ours or raised or lines[:1] or [type(error).__name__])[-1]
