"""Takes image-resize tasks from the queue, one at a time, and acknowledges each when it is done.

Usage: python worker.py [--out DIR] [--slow SECONDS]      AMQP_URL says where the broker is

Start as many as you like: each task goes to one of them. Kill one in the middle of a task, and another gets the task.
"""

import argparse
import json
import os
from pathlib import Path

import pika
from pika.adapters.blocking_connection import BlockingChannel
from PIL import Image, UnidentifiedImageError

QUEUE = "image_resize_queue_1"


def resize(picture: Path, width: int, out: Path) -> Path:
    """Writes the small picture under its final name in one step: done twice, or broken off, it does no harm."""
    target = out / f"{picture.stem}-{width}.jpg"
    with Image.open(picture) as image:
        small = image.convert("RGB").resize((width, max(1, image.height * width // image.width)))
    unfinished = target.with_suffix(f".{os.getpid()}.part")
    small.save(unfinished, "JPEG")
    unfinished.replace(target)
    return target


def main() -> None:
    parser = argparse.ArgumentParser(description="Takes image-resize tasks from the queue.")
    parser.add_argument("--out", type=Path, default=Path("resized"), help="directory for the small pictures")
    parser.add_argument(
        "--slow", type=float, default=0.0, help="seconds to linger in each task: time to kill the worker"
    )
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)

    url = os.environ.get("AMQP_URL", "amqp://guest:guest@localhost:5672/%2f")
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    channel.queue_declare(queue=QUEUE, durable=True)
    # One task at a time: the next one goes to whichever worker is free.
    channel.basic_qos(prefetch_count=1)

    def on_task(
        channel: BlockingChannel, method: pika.spec.Basic.Deliver, _: pika.BasicProperties, body: bytes
    ) -> None:
        again = " (once more: a worker did not finish it)" if method.redelivered else ""
        try:
            task = json.loads(body)
            print(f"[✅] Received {task['task']}{again}", flush=True)
            connection.sleep(args.slow)
            target = resize(Path(task["picture"]), int(task["width"]), args.out)
        except (ValueError, KeyError, TypeError, OSError, UnidentifiedImageError) as problem:
            # It would fail in the same way for every worker: give it up rather than hand it round for ever.
            channel.basic_reject(method.delivery_tag, requeue=False)
            print(f"[❌] Cannot do {body[:80]!r}: {problem}", flush=True)
            return
        # Only now may the broker forget the task. The line is printed behind the ack, so a worker that is killed after it
        # does not leave the task to another one.
        channel.basic_ack(delivery_tag=method.delivery_tag)
        print(f"[✅] Image resized: {target.name}", flush=True)

    channel.basic_consume(QUEUE, on_task)
    print("[✅] Waiting for tasks. Ctrl-C ends me", flush=True)
    try:
        channel.start_consuming()
    except KeyboardInterrupt:
        connection.close()
        print("[❎] Connection closed", flush=True)


if __name__ == "__main__":
    main()
