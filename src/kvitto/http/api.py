"""What every handler gets: the running broker, the caller, and the means to answer a change only when it is durable.

Handlers read the broker's objects directly, because one event loop owns them, and change them only through the calls
that AMQP uses. `Host` is the part of the server that handlers need; the server itself is a layer above.
"""

from __future__ import annotations

import asyncio
import platform
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Protocol, TypeVar

from kvitto.base.config import Config
from kvitto.base.errors import StoreError
from kvitto.broker.administration.auth import User
from kvitto.broker.administration.operations import Operations
from kvitto.broker.broker import Broker
from kvitto.broker.changes import Changes
from kvitto.broker.queues.queue import Queue
from kvitto.broker.vhost import VHost
from kvitto.cluster.standing import node_name
from kvitto.http.history import Spans
from kvitto.http.rates import Rates
from kvitto.http.request import Problem, Request, bad_request, not_authorised, not_found
from kvitto.http.slices import Slices
from kvitto.store.store import Store

T = TypeVar("T")


class Host(Protocol):
    """The part of the server that handlers use. `hub` has the connections, `logins` checks passwords."""

    config: Config
    clock: Any
    store: Store
    broker: Broker
    hub: Any
    logins: Any
    shovels: Any
    followers: Any
    """None without --followers."""
    started_ms: int
    port: int
    tls_port: int
    http_port: int
    https_port: int

    @property
    def uptime_ms(self) -> int: ...

    def schedule(self) -> None:
        """Schedule a turn: deliver, write, sync."""

    def held(self, channel: Any, queue: Queue) -> Iterator[Any]:
        """Yield the deliveries of a queue's messages that a channel holds (protocol/unacked.py), and None between pieces of work."""

    def hand_over(self, successor: str) -> None: ...

    def fail(self, error: Exception) -> None:
        """Stop the broker, because the disk cannot be trusted any more."""


class Api:
    def __init__(self, host: Host) -> None:
        self.host = host
        self.rates = Rates()
        self.slices = Slices()
        tenure = host.followers.tenure if host.followers is not None else None
        self.node = f"kvitto@{platform.node() or 'localhost'}" if tenure is None else node_name(tenure.seat.member)

    @property
    def broker(self) -> Broker:
        return self.host.broker

    @property
    def connections(self) -> list[Any]:
        """The connections that have logged in and opened a virtual host."""
        return [c for c in self.host.hub.connections if c.vhost is not None]

    @property
    def alarms(self) -> list[str]:
        """The reasons why this broker does not do all that it should, as sentences."""
        store, hub = self.host.store, self.host.hub
        failed = [] if store.failed is None else [f"the disk failed: {store.failed}"]
        blocked = [] if hub.alarms.blocked is None else [f"publishers are blocked: {hub.alarms.blocked}"]
        followers = self.host.followers
        tenure = followers.tenure if followers is not None else None
        register = [tenure.alarm] if tenure is not None and tenure.alarm else []
        return [*failed, *blocked, *register, *store.alarms, *self.broker.inert.values()]

    async def change(self, make: Callable[[], T]) -> T:
        """Run `make`, which may change definitions; return once they are on disk (D2)."""
        changes = Changes(self.broker)
        try:
            with changes:
                result = make()
        finally:
            self.host.schedule()
        if changes.made:
            await self.defined()
        return result

    async def perform(self, steps: Iterator[object]) -> None:
        """Run a job that may change definitions; return once it is done and they are on disk (D2)."""
        work, changes = _Work(), Changes(self.broker)
        await self.change(lambda: self.broker.jobs.start(changes.each(steps), work.ended.set, work))
        if not work.ended.is_set():
            await work.ended.wait()
            if work.error is not None:
                raise work.error
            if changes.made:
                await self.defined()

    async def defined(self) -> None:
        """Wait until all definitions made so far are durable. This never returns if the disk fails."""
        done = asyncio.Event()
        self.host.store.when_defined(done.set, announced=True)
        self.host.schedule()
        await done.wait()

    async def write(self) -> None:
        """Write the data that queues hold in memory now. Raise Problem 503 if the disk refuses."""
        changes = self.broker.changes
        try:
            self.host.hub.turn()
        except StoreError as error:
            self.host.fail(error)
            raise Problem(503, "store_failed", str(error)) from None
        while self.broker.written < changes:
            self.host.schedule()
            await asyncio.sleep(0)
        self.host.schedule()


class _Work:
    """A job that a request waits for. The request is answered with the exception that the job raises."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        self.error: Exception | None = None

    def contain(self, error: Exception) -> None:
        self.error = error
        self.ended.set()


class Call:
    """One request in a handler. `args` are the decoded parts of the path."""

    def __init__(self, api: Api, request: Request, args: Mapping[str, str], user: User | None) -> None:
        self.api = api
        self.request = request
        self.args = args
        self._user = user
        self.spans = Spans.of(request.query)
        self.now_s = asyncio.get_running_loop().time()
        api.broker.read_clock()

    @property
    def user(self) -> User:
        assert self._user is not None, "a route without login has no user"
        return self._user

    @property
    def name(self) -> str:
        return self.args["name"]

    # -- objects that the caller may see -------------------------------------------------------------------------

    @property
    def sees_all(self) -> bool:
        return bool({"administrator", "monitoring"}.intersection(self.user.tags))

    def sees(self, vhost: str) -> bool:
        return self.sees_all or self.user.may_open(vhost)

    def vhosts(self) -> list[VHost]:
        """The virtual host that the path names, or all that the caller may see."""
        if "vhost" in self.args:
            return [self.vhost()]
        return [v for v in self.api.broker.vhosts.values() if self.sees(v.name)]

    def vhost(self) -> VHost:
        """The virtual host that the path names. Raises Problem 404 or 401."""
        name = self.args["vhost"]
        found = self.api.broker.vhosts.get(name)
        if found is None:
            raise not_found(f"there is no vhost '{name}'")
        if not self.sees(name):
            raise not_authorised(f"user '{self.user.name}' may not open vhost '{name}'")
        return found

    def queue(self) -> Queue:
        return self.vhost().queue(self.name)

    # -- objects that the caller may change ----------------------------------------------------------------------

    def own_vhost(self) -> VHost:
        """Return the path's virtual host for use as over AMQP: the user must be able to open it. Raise Problem 404 or 401."""
        vhost = self.vhost()
        if not self.user.may_open(vhost.name):
            raise not_authorised(f"user '{self.user.name}' has no permissions in vhost '{vhost.name}'")
        return lasting(vhost)

    def governed_vhost(self) -> VHost:
        """Return the path's virtual host to set its policies or parameters: administrators may do so everywhere, others where they have
        permissions. Raise Problem 404 or 401."""
        return lasting(self.vhost()) if self.user.is_administrator else self.own_vhost()

    def operations(self) -> Operations:
        """Return the operations of the caller in the path's virtual host. Raise Problem 404 or 401."""
        return Operations(self.own_vhost(), self.user)


def lasting(vhost: VHost) -> VHost:
    """Return the virtual host. Raise Problem 400 if it is being deleted: what comes now could be left behind in the definitions."""
    if vhost.deleting:
        raise bad_request(f"vhost '{vhost.name}' is being deleted")
    return vhost
