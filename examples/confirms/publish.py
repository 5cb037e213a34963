"""Streams persistent messages and keeps the set of those that the broker has not confirmed yet.

Usage: python publish.py [COUNT]      AMQP_URL says where the broker is

The publisher never waits for one message. At any moment, the set holds exactly what would have to be published again;
when the connection is lost, that is what happens, and the program ends when the set is empty.
"""

import os
import sys
import time
from bisect import bisect_right

import pika
from pika.channel import Channel

QUEUE = "confirmed_messages"
WINDOW = 2000  # most messages on their way at a time: bounds the set, and what is sent again after a failure
RETRY_S = 0.5


class Publisher:
    """Publishes the messages 1 to `count`, each until it is confirmed."""

    def __init__(self, url: str, count: int) -> None:
        self.parameters = pika.URLParameters(url)
        self.to_send = list(range(count, 0, -1))  # the next one is the last
        self.unconfirmed: dict[int, int] = {}  # publish number on this channel -> message; insertion keeps it sorted
        self.published = 0
        self.confirmed = 0
        self.connections = 0

    def run(self) -> None:
        """Returns when the broker has taken responsibility for every message."""
        while self.to_send or self.unconfirmed:
            self.connection = pika.SelectConnection(
                self.parameters,
                on_open_callback=lambda connection: connection.channel(on_open_callback=self.on_channel),
                on_open_error_callback=self.on_lost,
                on_close_callback=self.on_lost,
            )
            self.connection.ioloop.start()
            if self.to_send or self.unconfirmed:
                time.sleep(RETRY_S)

    def on_channel(self, channel: Channel) -> None:
        self.channel = channel
        self.connections += 1
        channel.queue_declare(QUEUE, durable=True, callback=self.on_queue)

    def on_queue(self, _: object) -> None:
        # The broker numbers publishes from here on: 1, 2, 3, ...
        self.channel.confirm_delivery(self.on_confirm, callback=lambda _: self.fill())
        self.number = 0

    def fill(self) -> None:
        """Publishes until the window is full or nothing is left."""
        while self.to_send and len(self.unconfirmed) < WINDOW:
            message = self.to_send.pop()
            self.number += 1
            self.unconfirmed[self.number] = message
            self.published += 1
            self.channel.basic_publish(
                "",
                QUEUE,
                f"message {message}".encode(),
                pika.BasicProperties(
                    delivery_mode=pika.spec.PERSISTENT_DELIVERY_MODE,
                    message_id=str(message),  # lets a consumer see a message that was published twice
                ),
            )

    def on_confirm(self, frame: pika.frame.Method) -> None:
        """basic.ack: the broker has them on disk. basic.nack: it could not take them; they are sent again."""
        confirm = frame.method
        if confirm.multiple:
            numbers = list(self.unconfirmed)
            numbers = numbers[: bisect_right(numbers, confirm.delivery_tag)]
        else:
            numbers = [confirm.delivery_tag]
        for number in numbers:
            message = self.unconfirmed.pop(number)
            if isinstance(confirm, pika.spec.Basic.Nack):
                self.to_send.append(message)
            else:
                self.confirmed += 1
        if self.to_send:
            self.fill()
        elif not self.unconfirmed:
            self.connection.close()

    def on_lost(self, _: object, reason: BaseException) -> None:
        """The connection ended. Whatever is in the set may or may not have arrived: it is published again."""
        if self.unconfirmed or self.to_send:
            print(f"[⚠️] Connection lost, {len(self.unconfirmed)} unconfirmed are sent again ({reason})", flush=True)
        self.to_send.extend(reversed(self.unconfirmed.values()))
        self.unconfirmed.clear()
        self.connection.ioloop.stop()


def main() -> None:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    publisher = Publisher(os.environ.get("AMQP_URL", "amqp://guest:guest@localhost:5672/%2f"), count)
    print(f"[📥] Publishing {count} persistent messages to {QUEUE}", flush=True)
    started = time.perf_counter()
    publisher.run()
    seconds = time.perf_counter() - started
    again = publisher.published - count
    print(f"[✅] {publisher.confirmed} confirmed in {seconds:.2f} s, {again} of them were published again", flush=True)


if __name__ == "__main__":
    main()
