"""Publishes persistent notifications into the durable queue "notifications".

Usage: python publisher.py [COUNT]      AMQP_URL says where the broker is
"""

import os
import sys

import pika

QUEUE = "notifications"


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    url = os.environ.get("AMQP_URL", "amqp://guest:guest@localhost:5672/%2f")
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    channel.queue_declare(queue=QUEUE, durable=True)
    channel.confirm_delivery()
    for number in range(1, count + 1):
        channel.basic_publish(
            exchange="",
            routing_key=QUEUE,
            body=f"Notification {number}".encode(),
            properties=pika.BasicProperties(delivery_mode=pika.spec.PERSISTENT_DELIVERY_MODE),
            mandatory=True,
        )
        print(f"[📥] Notification {number} is safe in the queue", flush=True)
    connection.close()


if __name__ == "__main__":
    main()
