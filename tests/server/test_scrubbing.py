"""What a broker and a node make of damage that is found by verifying files."""

from __future__ import annotations

from kvitto.cluster.state import RESIGNED_MAX, RESIGNED_MS, Member, read_member, write_member
from kvitto.server.scrubbing import in_words, place_of
from kvitto.store.scrub import Damage
from tests.support.simdisk import SimDisk


def test_nobody_gives_the_lead_up_twice_for_one_damage_within_an_hour() -> None:
    disk = SimDisk()
    member = Member("cluster", "etcd")
    assert not member.has_resigned("x, byte 1", 1000)
    member.resign("x, byte 1", 1000)
    write_member(disk, member)
    again = read_member(disk)
    assert again is not None and again.has_resigned("x, byte 1", 1000 + RESIGNED_MS - 1)
    assert not again.has_resigned("x, byte 2", 2000)
    assert not again.has_resigned("x, byte 1", 1000 + RESIGNED_MS)
    assert not again.has_resigned("x, byte 1", 0), "the clock was set back"
    for number in range(RESIGNED_MAX):
        again.resign(f"y, byte {number}", RESIGNED_MS)
    assert again.has_resigned("z, byte 1", RESIGNED_MS + 1)
    again.resign("z, byte 1", 5 * RESIGNED_MS)
    assert len(again.resigned) == 1


def test_one_damage_is_known_again_by_where_it_is() -> None:
    damage = Damage("queues/q/0.log", 72, 99, "27 bytes cannot be read", (3, 5))
    text = in_words(damage, "queue 'a; b' in vhost '/'")
    assert place_of(text) == place_of(f"{damage}. It was found") == str(damage)
    assert (
        place_of("queues/q/0.log: offsets 3 to 4 cannot be read; a copy is in x")
        == "queues/q/0.log: offsets 3 to 4 cannot be read"
    )
