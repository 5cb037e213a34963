"""A standalone Spark cluster: one master, workers of one core each, all children of this process.

Each worker has a loopback address of its own: Spark runs no second attempt of a task on the host of the first.
"""

from __future__ import annotations

import os
import signal
import socket
from pathlib import Path
from random import Random

import pyspark

from examples.flights.children import Child
from kvitto.base.process import session_members

SPARK_CLASS = Path(pyspark.__path__[0], "bin", "spark-class")
DEPLOY = "org.apache.spark.deploy"
EXECUTOR = "CoarseGrainedExecutorBackend"
START_S = 60.0


class Cluster:
    def __init__(self, place: Path, workers: int = 2) -> None:
        os.environ["SPARK_MASTER_OPTS"] = "-Dspark.deploy.maxExecutorRetries=-1"  # they are killed on purpose
        os.environ["SPARK_LOCAL_IP"] = "127.0.0.1"
        os.environ["SPARK_DAEMON_MEMORY"] = "256m"
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        self.url = f"spark://127.0.0.1:{port}"
        no_page = ["--webui-port", "0"]
        here = ["--host", "127.0.0.1", "--port", str(port)]
        self.master = start("master", [f"{DEPLOY}.master.Master", *here, *no_page], place)
        wait_for(self.master, "I have been elected leader")
        self.workers = []
        for number in range(workers):
            mine = ["--cores", "1", "--memory", "1g", "--work-dir", str(place / f"work-{number}")]
            mine += ["--host", f"127.0.0.{number + 1}"]
            worker = start(f"worker-{number}", [f"{DEPLOY}.worker.Worker", *no_page, *mine, self.url], place)
            self.workers.append(worker)
        for worker in self.workers:
            wait_for(worker, "Successfully registered with master")

    def kill_executor(self, rng: Random) -> bool:
        """SIGKILL for one executor; False if there is none just now."""
        found = [pid for worker in self.workers for pid in session_members(worker.pid) if EXECUTOR in command(pid)]
        if not found:
            return False
        try:
            os.kill(rng.choice(found), signal.SIGKILL)
        except ProcessLookupError:
            return False
        return True

    def stop(self) -> None:
        for child in (*self.workers, self.master):
            child.kill()


def start(name: str, arguments: list[str], place: Path) -> Child:
    return Child(name, arguments, place / f"{name}.log", [str(SPARK_CLASS)])


def wait_for(child: Child, text: str) -> None:
    """Spark's daemons write what they do to stderr."""
    deadline = START_S
    while text not in child.log.read_text(errors="replace"):
        if not child.running or deadline <= 0:
            raise RuntimeError(child.why(f"did not say {text!r}"))
        child.process.poll()
        signal.sigtimedwait([], 0.05)
        deadline -= 0.05


def command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""
