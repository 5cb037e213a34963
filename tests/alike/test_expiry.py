"""Times to live that do not fit into 32 bits."""

import pytest

from tests.protocol.raw import Raw
from tests.support.wait import wait_until

TEN_YEARS_MS = 315_360_000_000


@pytest.mark.parametrize("expiration", ["4294967296", "134217728000", str(TEN_YEARS_MS)])
def test_a_message_may_live_for_ten_years(raw: Raw, name: str, expiration: str) -> None:
    raw.declare(name)
    raw.put_in(name, b"x", expiration=expiration)
    found = raw.get(name)
    assert found is not None and found.properties.expiration == expiration


@pytest.mark.parametrize("expiration", [str(TEN_YEARS_MS + 1), "9" * 100, "-1", "1.0", ""])
def test_an_expiration_that_cannot_be_closes_the_channel(raw: Raw, name: str, expiration: str) -> None:
    raw.declare(name, exclusive=True)
    raw.publish(1, "", name, b"x", expiration=expiration)
    assert raw.channel_error(406).reply_text.startswith("PRECONDITION_FAILED - invalid expiration")


def test_a_queue_whose_messages_live_for_ten_years_dead_letters_what_has_an_hour_less(raw: Raw, name: str) -> None:
    """Of both times to live the shorter one counts, also where one has more than 32 bits."""
    raw.declare(name + ".dead")
    arguments = {
        "x-message-ttl": TEN_YEARS_MS,
        "x-dead-letter-exchange": "",
        "x-dead-letter-routing-key": name + ".dead",
    }
    raw.declare(name, arguments=arguments)
    raw.put_in(name, b"stays", b"stays too", expiration=str(1 << 32))
    raw.put_in(name + ".dead", b"first")
    assert raw.count(name) == 2
    raw.declare(name + ".short", arguments={**arguments, "x-message-ttl": 1})
    raw.put_in(name + ".short", b"goes", expiration=str(1 << 32))
    assert wait_until(lambda: raw.count(name + ".dead") == 2)
    assert raw.count(name) == 2
