"""Another client: publishes to a queue of its own and waits for the confirm, one at a time, in a process of its own.

    python -m benchmarks.stalls.probe URI

A line on its standard input begins a phase; the next one ends it, and is answered with one line of JSON: the latencies in ms.
"""

from __future__ import annotations

import json
import select
import sys
import time

from kvitto.client import Connection

QUEUE = "stalls-probe"
PAUSE_S = 0.001
CONFIRM_S = 600.0


def asked() -> bool:
    return bool(select.select([sys.stdin], [], [], PAUSE_S)[0])


def main() -> int:
    with Connection(sys.argv[1], heartbeat_thread=False) as connection:
        channel = connection.channel()
        channel.queue_declare(QUEUE, durable=True, arguments={"x-max-length": 10})
        channel.confirm_select()
        latencies: list[float] = []
        measuring = False
        while True:
            began = time.perf_counter()
            channel.publish(bytes(100), routing_key=QUEUE)
            channel.wait_for_confirms(CONFIRM_S)
            latencies.append((time.perf_counter() - began) * 1000)
            if asked():
                if not sys.stdin.readline():
                    return 0
                print(json.dumps(latencies if measuring else []), flush=True)
                latencies, measuring = [], not measuring


if __name__ == "__main__":
    sys.exit(main())
