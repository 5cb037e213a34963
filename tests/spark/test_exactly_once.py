"""Exactly once, from queue to table and from queue to queue, whatever is killed meanwhile (the short form of chaos/run.py)."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kvitto.client import Connection, Properties
from tests.spark.chaos.cluster import Cluster
from tests.spark.chaos.run import Chaos, Landed, Single, body_of, compare

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]


def test_nothing_is_lost_or_doubled_whoever_is_killed(cluster: Cluster, tmp_path: Path) -> None:
    kills = {"driver": 2, "executor": 2, "broker": 1}
    report = Chaos(tmp_path, 100_000, kills, Random().randrange(1 << 32), cluster).run()
    print(report)
    assert report.right, str(report)


def test_the_comparison_finds_what_is_planted(tmp_path: Path) -> None:
    """A table as `land` makes it, with mistakes, and the archive of a broker that stored 0 to 9 under offsets 0 to 9."""
    broker = Single(tmp_path)
    try:
        with Connection(broker.url) as connection:
            channel = connection.channel()
            channel.queue_declare("c", durable=True, arguments={"x-archive": True})
            channel.confirm_select()
            for n in range(10):
                channel.publish(body_of(n), "", "c", Properties(delivery_mode=2))
            assert channel.wait_for_confirms(30)
    finally:
        broker.close()

    def compared(numbers: list[int], offsets: list[int]) -> Landed:
        table = tmp_path / "landed"
        for place in (table, tmp_path / "landed.bad"):
            place.mkdir(exist_ok=True)
        pq.write_table(pa.table({"n": numbers, "_offset": offsets}), table / "query-00000000-00000.parquet")
        bad = pa.table({"body": [body_of(9)], "offset": [9]})
        pq.write_table(bad, tmp_path / "landed.bad" / "query-00000000-00000.parquet")
        return compare(table, broker.copies(), 10)

    whole = list(range(9))
    assert compared(whole, whole) == Landed(rows=9, bad=1, batches=1, archives=1)
    assert compared([*whole, 8], [*whole, 8]).doubled == 1
    lost = compared(whole[:-1], whole[:-1])
    assert (lost.lost, lost.doubled, lost.invented, lost.reused) == (2, 0, 0, 0), "number 8, and offset 8"
    assert compared([*whole, 8], [*whole, 10]).invented == 1
    assert compared([*whole, 77], [*whole, 10]).invented == 2
    assert compared([0, 1, 2, 4, 3, 5, 6, 7, 8], whole).reused == 2
