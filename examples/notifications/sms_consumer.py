"""Consumer B: sends notifications by SMS (prints them), and acknowledges each.

Usage: python sms_consumer.py      AMQP_URL says where the broker is
"""

import os

import pika
from pika.adapters.blocking_connection import BlockingChannel

QUEUE = "notifications"


def on_notification(
    channel: BlockingChannel, method: pika.spec.Basic.Deliver, _: pika.BasicProperties, body: bytes
) -> None:
    before = " (somebody had it before me and did not finish)" if method.redelivered else ""
    print(f"[📱] B sent by SMS: {body.decode()}{before}", flush=True)
    channel.basic_ack(method.delivery_tag)


def main() -> None:
    url = os.environ.get("AMQP_URL", "amqp://guest:guest@localhost:5672/%2f")
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    channel.queue_declare(queue=QUEUE, durable=True)
    channel.basic_qos(prefetch_count=1)
    channel.basic_consume(QUEUE, on_notification)
    print("[✅] B is waiting for notifications", flush=True)
    try:
        channel.start_consuming()
    except KeyboardInterrupt:
        connection.close()


if __name__ == "__main__":
    main()
