"""What a connection has declared: exchanges, queues and bindings, to declare them again after a reconnect."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from kvitto.wire import methods as m

if TYPE_CHECKING:
    from kvitto.client.aio.queue import Queue


class Topology:
    """The requests of this connection whose effect should last, in an order in which they can be repeated."""

    def __init__(self) -> None:
        self.exchanges: dict[str, m.ExchangeDeclare] = {}
        self.queues: dict[str, m.QueueDeclare] = {}
        self.named_by_server: dict[str, Queue] = {}
        """Queues whose name the broker chose: they get another one when they are declared again."""
        self.exchange_bindings: dict[Any, m.ExchangeBind] = {}
        self.queue_bindings: dict[Any, m.QueueBind] = {}

    def requests(self) -> Iterator[tuple[str, m.Method, type[m.Method]]]:
        """Yield what has to be declared again, each with its answer, and before it the last name of a queue whose name
        the broker chooses, else ""."""
        for exchange in list(self.exchanges.values()):
            yield "", exchange, m.ExchangeDeclareOk
        for name, queue in list(self.queues.items()):
            if name in self.named_by_server:
                yield name, m.QueueDeclare("", *_flags(queue)), m.QueueDeclareOk
            else:
                yield "", queue, m.QueueDeclareOk
        for exchange_binding in list(self.exchange_bindings.values()):
            yield "", exchange_binding, m.ExchangeBindOk
        for queue_binding in list(self.queue_bindings.values()):
            yield "", queue_binding, m.QueueBindOk

    def rename(self, old: str, new: str) -> None:
        """Note the new name of a queue whose name the broker chose."""
        self.queues[new] = self.queues.pop(old)
        queue = self.named_by_server[new] = self.named_by_server.pop(old)
        queue.name = new
        for binding in self.queue_bindings.values():
            if binding.queue == old:
                binding.queue = new
        self.queue_bindings = {key_of(binding): binding for binding in self.queue_bindings.values()}

    def forget_queue(self, name: str) -> None:
        self.queues.pop(name, None)
        self.named_by_server.pop(name, None)
        self.queue_bindings = {key: bind for key, bind in self.queue_bindings.items() if bind.queue != name}

    def forget_exchange(self, name: str) -> None:
        self.exchanges.pop(name, None)
        self.queue_bindings = {key: bind for key, bind in self.queue_bindings.items() if bind.exchange != name}
        self.exchange_bindings = {
            key: bind for key, bind in self.exchange_bindings.items() if name not in (bind.source, bind.destination)
        }


def key_of(bind: m.QueueBind | m.QueueUnbind | m.ExchangeBind | m.ExchangeUnbind) -> tuple[str, ...]:
    """Return what a binding and its unbinding have in common."""
    arguments = repr(sorted(bind.arguments.items()))
    if isinstance(bind, m.QueueBind | m.QueueUnbind):
        return ("queue", bind.queue, bind.exchange, bind.routing_key, arguments)
    return ("exchange", bind.destination, bind.source, bind.routing_key, arguments)


def _flags(queue: m.QueueDeclare) -> tuple[Any, ...]:
    return (queue.passive, queue.durable, queue.exclusive, queue.auto_delete, queue.no_wait, queue.arguments)
