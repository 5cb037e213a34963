"""The Spark side of the run, in one session: `kvitto pipeline land` until it is stopped, then `kvitto pipeline ledger`.

A process of its own: `python -m examples.flights.query URI DIR MAX_OFFSETS [MASTER]`. Each line on stdout that begins with {
is a message for the run; SIGTERM ends the landing in order.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Final

from examples.flights.data import QUEUE

FLIGHT: Final = (
    "year INT, month INT, day INT, dep_time INT, sched_dep_time INT, dep_delay DOUBLE, arr_time INT, sched_arr_time INT,"
    " arr_delay DOUBLE, carrier STRING, flight INT, tailnum STRING, origin STRING, dest STRING, air_time DOUBLE,"
    " distance DOUBLE, hour INT, minute INT, time_hour TIMESTAMP"
)
SETTINGS: Final = {
    "spark.sql.shuffle.partitions": "2",
    # a program that runs for a minute: the better compiler would cost more than it gives
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
TRIGGER_S: Final = 0.5
LISTED: Final = 3


def tell(**what: object) -> None:
    print(json.dumps(what), flush=True)


def main(uri: str, directory: str, max_offsets: int, master: str = "local[2]") -> int:
    """Land until SIGTERM, or the end of the run that started this process; then the ledger. What goes wrong is told."""
    from kvitto.pipeline.land import land
    from kvitto.pipeline.ledger import ledger
    from kvitto.pipeline.ledger_report import page, text
    from kvitto.pipeline.session import first_line, session
    from kvitto.pipeline.stopping import Stop

    parent = os.getppid()
    place = Path(directory)
    try:
        with session("flights", master, SETTINGS) as spark, Stop() as stop:
            land(
                spark,
                uri,
                [QUEUE],
                str(place / "table"),
                str(place / "checkpoint"),
                schema=FLIGHT,
                drop_duplicates=True,
                trigger_s=TRIGGER_S,
                batch_size=max_offsets,
                stop=lambda: stop() or os.getppid() != parent,
                progress=lambda said: tell(event="progress", said=said),
            )
            if os.getppid() != parent:
                return 1
            found = ledger(spark, place / "data", [place / "receipts.txt"], LISTED)
            (place / "ledger.html").write_text(page(found), encoding="utf-8")
            queue = found.queues[0]
            tell(
                event="ledger",
                text=text(found),
                stored=found.published,
                settled=sum(queue.settled.values()),
                doubled=found.doubled.count,
                lost=found.lost.count if found.lost else None,
                sample=found.doubled.listed[0].message_id if found.doubled.listed else "",
            )
    except Exception as error:  # noqa: BLE001 - top of a process: py4j and Spark raise many kinds
        tell(event="failed", why=first_line(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), *sys.argv[4:]))
