"""A segment that holds nothing but its header is read like any other: nothing is taken for verified that nobody has counted (D3)."""

from __future__ import annotations

from kvitto.store import paths
from kvitto.store.segment import HEADER
from tests.store.logs import DIRECTORY, LogHarness


def test_a_segment_that_was_cut_behind_its_header_is_damaged() -> None:
    made = LogHarness()
    made.write(b"a", b"b")
    made.settle_down()
    file = made.disk.open(paths.segment(DIRECTORY, 0))
    file.truncate(HEADER)
    made.kill()
    assert any("its end is damaged" in text for text in made.store.alarms)


def test_a_header_alone_does_not_say_that_what_is_before_it_was_synced() -> None:
    """A power cut leaves a torn batch in one segment and the header of the next one: nobody was promised either."""
    made = LogHarness()
    made.write(b"a")
    made.settle_down()
    made.write(bytes(5000))
    made.log.fill(made.log.segments[-1])
    made.log.create(made.log.next)
    file = made.disk.open(paths.segment(DIRECTORY, 0))
    whole = file.size()
    made.disk = made.disk.kill()
    file = made.disk.open(paths.segment(DIRECTORY, 0))
    file.truncate(whole - 100)
    boot = made.disk.open(paths.BOOT)
    boot.write_at(0, [b"unknown"])
    made.start()
    assert made.store.ending.power_cut and not made.store.alarms
