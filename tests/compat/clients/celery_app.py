"""The application of test_celery.py: quorum queues everywhere, as Celery's documents tell to set it up."""

import os

from celery import Celery

app = Celery("compat", broker=os.environ["BROKER_URL"], backend="rpc://")
app.conf.update(
    task_default_queue=os.environ["TASK_QUEUE"],
    task_default_exchange=os.environ["TASK_QUEUE"],
    task_default_queue_type="quorum",
    task_default_exchange_type="topic",
    broker_transport_options={"confirm_publish": True},
    worker_detect_quorum_queues=True,
    task_acks_late=True,
    worker_prefetch_multiplier=2,
    broker_connection_retry_on_startup=True,
)


@app.task
def add(a, b):
    return a + b


@app.task(bind=True, max_retries=3)
def fails_twice(self):
    if self.request.retries < 2:
        raise self.retry(countdown=1)
    return self.request.retries
