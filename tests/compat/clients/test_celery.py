"""A Celery worker on quorum queues: its delayed delivery declares 28 queues with times to live up to 134,217,728,000 ms."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def worker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Any, Path]]:
    """The application, and the log of a worker that serves it."""
    log = tmp_path_factory.mktemp("celery") / "worker.log"
    os.environ["BROKER_URL"] = f"amqp://guest:guest@{os.environ['COMPAT_HOST']}:{os.environ['COMPAT_PORT']}//"
    os.environ["TASK_QUEUE"] = f"compat-celery-{os.getpid()}"
    command = [sys.executable, "-m", "celery", "-A", "celery_app", "worker", "-P", "solo", "-l", "INFO", "-n", "w@%%h"]
    with log.open("w") as output:
        process = subprocess.Popen(command, cwd=HERE, stdout=output, stderr=subprocess.STDOUT, start_new_session=True)
    sys.path.insert(0, str(HERE))
    import celery_app

    try:
        end = time.monotonic() + 60
        while "ready." not in log.read_text():
            assert process.poll() is None and time.monotonic() < end, log.read_text()[-3000:]
            time.sleep(0.05)
        yield celery_app, log
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def test_a_task_runs(worker: tuple[Any, Path]) -> None:
    app, _ = worker
    assert app.add.delay(2, 3).get(timeout=30) == 5


def test_a_countdown_waits_in_the_broker(worker: tuple[Any, Path]) -> None:
    app, log = worker
    started = time.monotonic()
    result = app.add.apply_async((2, 3), countdown=3)
    assert result.get(timeout=60) == 5
    assert time.monotonic() - started >= 2
    assert "Native delayed delivery will not be available" not in log.read_text()


def test_a_retry_comes_back(worker: tuple[Any, Path]) -> None:
    app, _ = worker
    assert app.fails_twice.delay().get(timeout=60) == 2


def test_the_worker_found_nothing_wrong(worker: tuple[Any, Path]) -> None:
    _, log = worker
    text = log.read_text()
    assert "CRITICAL" not in text and "ERROR" not in text, text[-3000:]
