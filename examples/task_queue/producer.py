"""Puts six image-resize tasks into a durable queue.

Usage: python producer.py [--images DIR]      AMQP_URL says where the broker is

Makes six pictures when the directory has none, so that there is something to resize.
"""

import argparse
import json
import math
import os
from pathlib import Path

import pika
from PIL import Image

QUEUE = "image_resize_queue_1"
TASKS = 6
WIDTH = 320


def make_pictures(folder: Path) -> None:
    """Six pictures of 1600 x 1200 pixels, each with its own waves of colour."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(1, TASKS + 1):
        wave = [int(127 + 127 * math.sin(x * number / 60)) for x in range(400)]
        picture = Image.new("RGB", (400, 300))
        picture.putdata([(wave[x], (y * 255) // 300, wave[-x]) for y in range(300) for x in range(400)])
        picture.resize((1600, 1200)).save(folder / f"photo-{number}.png")


def main() -> None:
    parser = argparse.ArgumentParser(description="Puts six image-resize tasks into a durable queue.")
    parser.add_argument("--images", type=Path, default=Path("images"), help="directory with the pictures")
    folder: Path = parser.parse_args().images
    pictures = sorted(folder.glob("*.png")) + sorted(folder.glob("*.jpg"))
    if not pictures:
        make_pictures(folder)
        pictures = sorted(folder.glob("*.png"))
        print(f"[🖼️] No pictures in {folder}/, made {len(pictures)}")

    url = os.environ.get("AMQP_URL", "amqp://guest:guest@localhost:5672/%2f")
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    print("[✅] Connection over channel established")

    # A durable queue outlives the broker's restart; so do the persistent messages in it.
    channel.queue_declare(queue=QUEUE, durable=True)
    # With confirms, basic_publish returns once the broker has the message on disk, or raises.
    channel.confirm_delivery()

    for number in range(TASKS):
        picture = pictures[number % len(pictures)]
        task = {"task": f"Resize an image - {number + 1}", "picture": str(picture.resolve()), "width": WIDTH}
        channel.basic_publish(
            exchange="",
            routing_key=QUEUE,
            body=json.dumps(task).encode(),
            properties=pika.BasicProperties(
                delivery_mode=pika.spec.PERSISTENT_DELIVERY_MODE, content_type="application/json"
            ),
            mandatory=True,
        )
        print(f"[📥] Message sent to queue: {task['task']} ({picture.name})")

    connection.close()
    print("[❎] Connection closed")


if __name__ == "__main__":
    main()
