"""Logins by password: a slow hash in a thread, and delayed refusals after failures (W7). The hub calls `Logins.check`.

A password that has been right before costs nothing. Others are checked in two threads: one for addresses without
failures, one for the rest, so that guessers wait for guessers. From the sixth failure within a minute on, from an
address or for a user's name, refusals are delayed more and more, and meanwhile the address has one try less under way.
A right password is never delayed: only guesses from the user's own address can make the user wait.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from ipaddress import IPv6Address, ip_address

from kvitto.broker.administration.auth import Attempt, User, Users

log = logging.getLogger("kvitto")

FREE = 5
"""The number of failures within FORGET_S without a delay, because people mistype."""
DELAY_S = 0.25
"""The delay of the next refusal. It doubles with each further one, up to DELAY_MAX_S."""
DELAY_MAX_S = 4.0
"""An AMQP connection has to be open within 10 s, and should get the refusal before."""
FORGET_S = 60.0
"""The time after the last failure when the failures are forgotten."""
KEPT = 10_000
"""The maximum number of addresses and names with failures; of more the oldest are forgotten."""
AT_ONCE = 2
"""The number of tries of an address under way; more wait."""
WAITING_MAX = 20
"""The maximum number of waiting tries of an address that has failed too often. More are refused without a check, after
the maximum delay."""


class Failures:
    """Counts recent failures by key."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._counts: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._counts)

    def count(self, key: str) -> int:
        count, at = self._counts.get(key, (0, 0.0))
        return count if self._now() - at < FORGET_S else 0

    def add(self, key: str) -> int:
        """Count a failure and return the number of failures of this key."""
        count = self.count(key) + 1
        self._counts[key] = count, self._now()
        self._counts.move_to_end(key)
        if len(self._counts) > KEPT:
            self._counts.popitem(last=False)
        return count


class Gate:
    """The tries of one address: at most AT_ONCE of them are under way."""

    def __init__(self) -> None:
        self.free = asyncio.Semaphore(AT_ONCE)
        self.users = 0


class Logins:
    def __init__(self, users: Users, now: Callable[[], float]) -> None:
        self._users = users
        self._addresses = Failures(now)
        self._names = Failures(now)
        self._gates: dict[str, Gate] = {}
        self._clean = ThreadPoolExecutor(1, "kvitto-login")
        self._failed = ThreadPoolExecutor(1, "kvitto-login-again")
        self.refused = 0
        self.delayed = 0

    def close(self) -> None:
        for threads in (self._clean, self._failed):
            threads.shutdown(wait=False, cancel_futures=True)

    async def check(self, attempt: Attempt) -> User | None:
        """Return the user, or None, perhaps after a delay."""
        address = network(attempt.address)
        gate = self._gates.setdefault(address, Gate())
        if gate.users >= AT_ONCE + WAITING_MAX and self._addresses.count(address) > FREE:
            self.refused += 1
            self.delayed += 1
            await asyncio.sleep(DELAY_MAX_S)  # without the delay it would come again at once
            return None
        gate.users += 1
        try:
            async with gate.free:
                return await self._try(attempt, address)
        finally:
            gate.users -= 1
            if not gate.users:
                self._gates.pop(address, None)

    async def _try(self, attempt: Attempt, address: str) -> User | None:
        if not attempt.wanted():
            return None
        if attempt.is_remembered:
            return attempt.check()
        suspect = self._addresses.count(address) > 0
        threads = self._failed if suspect else self._clean
        user = await asyncio.get_running_loop().run_in_executor(threads, attempt.check)
        if user is not None and self._users.get(attempt.name) is user:
            self._users.replace_foreign(user)
            return user
        self.refused += 1
        delay = self._delay(attempt.name, address)
        if delay:
            self.delayed += 1
            await asyncio.sleep(delay)
        return None

    def _delay(self, name: str, address: str) -> float:
        """Count a failure and return the delay of the refusal in seconds."""
        of_address, of_name = self._addresses.add(address), self._names.add(name)
        for count, what in ((of_address, f"from {address}"), (of_name, f"for user {name!r}")):
            if count == FREE + 1:
                log.warning("%d failed logins %s: from now on refusals are delayed", count, what)
        over = max(of_address, of_name) - FREE
        return min(DELAY_S * 2.0 ** min(over - 1, 10), DELAY_MAX_S) if over > 0 else 0.0


def network(address: str) -> str:
    """Return the part of an address that belongs to one peer: an IPv4 address, or 64 bits of an IPv6 one."""
    try:
        ip = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if not isinstance(ip, IPv6Address):
        return str(ip)
    if ip.ipv4_mapped is not None:
        return str(ip.ipv4_mapped)
    return f"{IPv6Address(int(ip) >> 64 << 64)}/64"
