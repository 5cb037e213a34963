"""The application of `benchmarks.celery`: one task that does nothing and has no result."""

from __future__ import annotations

import os
import sys

from celery import Celery

QUEUE = "bench-celery"

app = Celery("bench", broker=os.environ.get("BROKER_URL", "amqp://"))
app.conf.update(
    task_default_queue=QUEUE,
    task_ignore_result=True,
    worker_hijack_root_logger=False,
    broker_connection_retry_on_startup=True,
)


@app.task  # type: ignore[untyped-decorator]
def noop() -> None:
    """Do nothing."""


if "." not in __name__:
    sys.exit("this is an application for Celery: run python -m benchmarks.celery")
