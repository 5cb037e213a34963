"""Consumer A: should send notifications by e-mail, and never manages to.

Usage: python email_consumer.py nack|crash      AMQP_URL says where the broker is

`nack` gives each notification back; `crash` ends the process with the notification in hand.
"""

import os
import sys

import pika
from pika.adapters.blocking_connection import BlockingChannel

QUEUE = "notifications"
PAUSE_S = 0.5  # between failures: a consumer that fails at once would only hand the same message round and round


def send_email(text: str) -> None:
    raise ConnectionError(f"the mail server does not answer; {text!r} was not sent")


def main() -> None:
    way = sys.argv[1] if len(sys.argv) > 1 else "nack"
    if way not in ("nack", "crash"):
        sys.exit(f"no way of failing called {way!r}: say nack or crash")
    url = os.environ.get("AMQP_URL", "amqp://guest:guest@localhost:5672/%2f")
    connection = pika.BlockingConnection(pika.URLParameters(url))
    channel = connection.channel()
    channel.queue_declare(queue=QUEUE, durable=True)
    channel.basic_qos(prefetch_count=1)

    def on_notification(
        channel: BlockingChannel, method: pika.spec.Basic.Deliver, _: pika.BasicProperties, body: bytes
    ) -> None:
        print(f"[📧] A received {body.decode()}", flush=True)
        try:
            send_email(body.decode())
        except ConnectionError as problem:
            print(f"[❌] A failed: {problem}", flush=True)
            if way == "crash":
                os._exit(1)  # no goodbye: the broker learns of it when the socket closes
            connection.sleep(PAUSE_S)
            channel.basic_nack(method.delivery_tag, requeue=True)
        else:
            channel.basic_ack(method.delivery_tag)

    channel.basic_consume(QUEUE, on_notification)
    print("[✅] A is waiting for notifications", flush=True)
    try:
        channel.start_consuming()
    except KeyboardInterrupt:
        connection.close()


if __name__ == "__main__":
    main()
