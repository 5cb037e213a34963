"""Publishes the flights with streamed confirms and loses none: the confirms algorithm of 2011.

Every message that was sent waits in `unconfirmed` under its publish number until the broker's receipt takes it out. A
lost connection leaves exactly those that have to be sent again; some of them the broker has already, which is why
each flight has a message id and the table is deduplicated by it.

A process of its own: `python -m examples.flights.publisher URI FLIGHTS RATE RECEIPTS`; each line on stdout is a count as JSON. The
file RECEIPTS gets the message id of each flight with a receipt, a line each, as `kvitto pipeline ledger` takes them.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections import deque
from collections.abc import Iterator
from typing import TextIO

from examples.flights.data import EXCHANGE, Flight, flights
from kvitto.client import Channel, ConnectFailed, Connection, ConnectionLost, Properties, Returned

UNCONFIRMED_MAX = 20_000
STEP_S = 0.02
REPORT_S = 0.2
AWAY_S_MAX = 60.0


class Publisher:
    """`published`: flights sent at least once; `republished`: sent again; `confirmed`: flights with a receipt."""

    def __init__(self, uri: str, source: Iterator[Flight], rate: float, receipts: TextIO) -> None:
        self.uri = uri
        self.source = source
        self.rate = rate
        self.receipts = receipts
        self.unconfirmed: dict[int, Flight] = {}
        self.again: deque[Flight] = deque()
        self.published = self.republished = self.confirmed = self.nacked = 0
        self.exhausted = False
        self.next_number = 1
        self._parent = os.getppid()
        self._reported = 0.0

    def run(self) -> None:
        """Until every flight is confirmed; raises ConnectFailed if the broker stays away."""
        away_since: float | None = None
        while not self.exhausted or self.again or self.unconfirmed:
            try:
                with Connection(self.uri, name="flights publisher", buffer_bytes=1 << 16) as connection:
                    away_since = None
                    self._publish_all(connection)
            except (ConnectFailed, ConnectionLost) as error:
                # what was on its way is sent again, in its old order, before anything new
                self.again.extendleft(reversed(self.unconfirmed.values()))
                self.unconfirmed.clear()
                away_since = away_since or time.monotonic()
                if time.monotonic() - away_since > AWAY_S_MAX or getattr(error, "code", 0) == 403:
                    raise
                self._report(False)
                time.sleep(0.1)
        self._report(True, force=True)

    def _publish_all(self, connection: Connection) -> None:
        channel = connection.channel()
        self.next_number = 1  # publish numbers count per channel
        channel.confirm_select(on_confirm=self._on_confirm, on_return=_on_return)
        last = time.monotonic()
        allowed = 0.0
        while not self.exhausted or self.again or self.unconfirmed:
            now = time.monotonic()
            allowed = min(allowed + (now - last) * self.rate, self.rate / 2)
            last = now
            count = min(int(allowed), UNCONFIRMED_MAX - len(self.unconfirmed))
            allowed -= self._send(channel, count)
            connection.process(STEP_S)
            self._report(True)

    def _send(self, channel: Channel, most: int) -> int:
        """Send up to `most` messages; how many there were."""
        for k in range(most):
            first_time = not self.again
            flight = next(self.source, None) if first_time else self.again.popleft()
            if flight is None:
                self.exhausted = True
                return k
            properties = Properties(
                content_type="application/json",
                delivery_mode=2,
                message_id=flight.message_id,
                timestamp=int(time.time()),
            )
            # noted before it is sent: its receipt may come, or the connection go, while `publish` still runs
            self.unconfirmed[self.next_number] = flight
            self.next_number += 1
            self.published += first_time
            self.republished += not first_time
            channel.publish(flight.body, EXCHANGE, flight.routing_key, properties, mandatory=True)
        return max(most, 0)

    def _on_confirm(self, tag: int, multiple: bool, ok: bool) -> None:
        """A receipt: for one message, or (multiple) for all up to it."""
        numbers = [tag]
        if multiple:
            numbers = []
            for number in self.unconfirmed:  # in the order of publishing: dicts keep it
                if tag and number > tag:
                    break
                numbers.append(number)
        for number in numbers:
            flight = self.unconfirmed.pop(number)
            if ok:
                self.confirmed += 1
                self.receipts.write(flight.message_id + "\n")
            else:
                self.nacked += 1
                self.again.append(flight)

    def _report(self, connected: bool, force: bool = False) -> None:
        now = time.monotonic()
        if not force and now - self._reported < REPORT_S:
            return
        self._reported = now
        counts = {name: getattr(self, name) for name in ("published", "republished", "confirmed", "nacked")}
        print(
            json.dumps(counts | {"unconfirmed": len(self.unconfirmed), "connected": connected, "done": force}),
            flush=True,
        )
        if os.getppid() != self._parent:
            sys.exit("publisher: the run that started this process is gone")


def _on_return(message: Returned) -> None:
    sys.exit(f"publisher: no queue took {message.routing_key}: {message.reply_text}")


if __name__ == "__main__":
    with open(sys.argv[4], "w", encoding="utf-8") as file:
        Publisher(sys.argv[1], flights(int(sys.argv[2])), float(sys.argv[3]), file).run()
