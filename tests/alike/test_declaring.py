"""What may be declared, and which two declarations are the same."""

from collections.abc import Callable
from typing import Any

import pytest

from kvitto.wire import methods as m
from tests.protocol.raw import Raw

TEN_YEARS_MS = 315_360_000_000
CELERYS_LONGEST_MS = 134_217_728_000


def inequivalent(raw: Raw, name: str, arguments: dict[str, Any], **options: Any) -> str:
    """The text with which a second declaration is refused."""
    raw.put(1, m.QueueDeclare(name, arguments=arguments, **options))
    return raw.channel_error(406).reply_text


# -- x-queue-type --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("first", [{}, {"x-queue-type": "classic"}])
@pytest.mark.parametrize("second", [{}, {"x-queue-type": "classic"}])
def test_no_queue_type_and_classic_are_the_same(
    raw: Raw, name: str, first: dict[str, Any], second: dict[str, Any]
) -> None:
    raw.declare(name, arguments=first)
    assert raw.declare(name, arguments=second) == name


@pytest.mark.parametrize("kind", ["quorum", "stream"])
def test_no_queue_type_and_another_one_are_not_the_same(raw: Raw, name: str, kind: str) -> None:
    raw.declare(name, durable=True, arguments={"x-queue-type": kind})
    text = inequivalent(raw, name, {}, durable=True)
    assert text == (
        f"PRECONDITION_FAILED - inequivalent arg 'x-queue-type' for queue '{name}' in vhost '/': "
        f"received none but current is the value '{kind}' of type 'longstr'"
    )


def test_classic_is_not_quorum(raw: Raw, name: str) -> None:
    raw.declare(name, durable=True, arguments={"x-queue-type": "classic"})
    text = inequivalent(raw, name, {"x-queue-type": "quorum"}, durable=True)
    assert text.endswith("received 'quorum' but current is 'classic'")


# -- numbers -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("argument", ["x-message-ttl", "x-expires"])
@pytest.mark.parametrize("value", [1 << 32, CELERYS_LONGEST_MS, TEN_YEARS_MS])
def test_a_time_to_live_may_be_ten_years(raw: Raw, name: str, argument: str, value: int) -> None:
    """Celery with quorum queues and NServiceBus declare 134,217,728,000 ms."""
    raw.declare(name, arguments={argument: value})
    assert raw.declare(name, arguments={argument: value}) == name


@pytest.mark.parametrize("argument", ["x-message-ttl", "x-expires"])
def test_a_time_to_live_above_ten_years_is_refused(raw: Raw, name: str, argument: str) -> None:
    raw.put(1, m.QueueDeclare(name, arguments={argument: TEN_YEARS_MS + 1}))
    assert f"invalid arg '{argument}' for queue '{name}'" in raw.channel_error(406).reply_text


def test_a_whole_number_and_a_float_are_not_the_same(raw: Raw, name: str) -> None:
    raw.declare(name, arguments={"x-message-ttl": 10})
    text = inequivalent(raw, name, {"x-message-ttl": 10.0})
    assert text.endswith("received '10.0' but current is '10'")


# -- names ---------------------------------------------------------------------------------------------------


def test_names_are_declared_bound_and_deleted_without_line_ends(raw: Raw, name: str) -> None:
    broken = name[:5] + "\r\n" + name[5:] + "\n"
    assert raw.declare(broken) == name
    assert raw.call(1, m.QueueDeclare(broken, passive=True), m.QueueDeclareOk).queue == name
    raw.call(1, m.ExchangeDeclare(broken, "direct"), m.ExchangeDeclareOk)
    raw.call(1, m.ExchangeDeclare(name, passive=True), m.ExchangeDeclareOk)
    raw.call(1, m.ExchangeDeclare(name + ".2", "direct"), m.ExchangeDeclareOk)
    raw.call(1, m.ExchangeBind(broken, name + ".2\n", "k"), m.ExchangeBindOk)
    raw.call(1, m.ExchangeUnbind(name + "\r", name + ".2", "k"), m.ExchangeUnbindOk)
    raw.call(1, m.QueueBind(broken, broken, "k"), m.QueueBindOk)
    raw.publish(1, name, "k", b"through the binding")
    found = raw.get(name)
    assert found is not None and found.body == b"through the binding"
    raw.call(1, m.QueueUnbind(broken, broken, "k"), m.QueueUnbindOk)
    raw.call(1, m.QueueDelete(broken), m.QueueDeleteOk)
    raw.call(1, m.ExchangeDelete(broken), m.ExchangeDeleteOk)
    raw.call(1, m.ExchangeDelete(name + ".2"), m.ExchangeDeleteOk)
    raw.put(1, m.QueueDeclare(name, passive=True))
    raw.channel_error(404)


@pytest.mark.parametrize(
    "use", [m.BasicGet, lambda name: m.BasicConsume(name, "c"), m.QueuePurge], ids=["get", "consume", "purge"]
)
def test_names_are_used_as_they_come(raw: Raw, name: str, use: Callable[[str], m.Method]) -> None:
    raw.declare(name, exclusive=True)
    raw.put(1, use(name + "\n"))
    raw.channel_error(404)


def test_a_name_of_line_ends_is_no_name(raw: Raw) -> None:
    assert raw.declare("\r\n", exclusive=True).startswith("amq.gen-")
