"""A shovel to an HTTP server. A message is acked behind a 2xx answer; after anything else it stays, and is tried again.

Headers and signature are those of Standard Webhooks (webhook-id, webhook-timestamp, webhook-signature). The id is the same
in each attempt; from a durable queue of Kvitto it is made of the offset, so it outlives restarts.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import hashlib
import hmac
import json
import random
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from kvitto.client.aio import IncomingMessage
from kvitto.client.aio.message import new_id
from kvitto.client.errors import AMQPError, ConnectionLost
from kvitto.shovel.endpoint import Endpoint, EndpointFailed
from kvitto.shovel.settings import Webhook, without_password
from kvitto.shovel.sources import QueueSource

if TYPE_CHECKING:
    from kvitto.shovel.worker import Shovel

BACKOFF_S, BACKOFF_MAX_S = 0.5, 60.0
POLL_S = 1.0
PREFIX = "whsec_"


async def carry_to_webhook(shovel: Shovel, source: QueueSource) -> None:
    """Carry until the source is lost (then its error is raised), or all is done."""
    assert shovel.settings.webhook is not None
    shovel.begin(source)
    hook = Hook(shovel, shovel.settings.webhook, shovel.settings.dest_uris[0], source)
    try:
        async with asyncio.TaskGroup() as group:
            watch = group.create_task(hook.watch())
            await hook.carry(group)
            watch.cancel()
    except BaseExceptionGroup as errors:
        raise next((e for e in errors.exceptions if isinstance(e, AMQPError | OSError)), errors) from None
    finally:
        hook.endpoint.close()


class Hook:
    """The webhook of one shovel, while the source's connection lasts."""

    def __init__(self, shovel: Shovel, webhook: Webhook, url: str, source: QueueSource) -> None:
        self.endpoint = Endpoint(url, webhook.timeout_s, webhook.cacertfile)
        self._shovel = shovel
        self._webhook = webhook
        self._source = source
        self._secret = key_of(webhook.secret)
        self._slots = asyncio.Semaphore(webhook.concurrency)
        self._under_way = 0
        self._not_before = 0.0

    async def watch(self) -> None:
        """Raise when the source is lost, also while all requests wait."""
        while True:
            self._source.check()
            await asyncio.sleep(POLL_S)

    async def carry(self, group: asyncio.TaskGroup) -> None:
        shovel, webhook = self._shovel, self._webhook
        shovel.arrived_count(0)
        tasks: set[asyncio.Task[None]] = set()
        while not shovel.done():
            await self._slots.acquire()
            most = (
                shovel.most(webhook.batch) - self._under_way if shovel.status.remaining is not None else webhook.batch
            )
            load = await self._source.take(most, POLL_S) if most > 0 else None
            if load is None or not load.messages:
                self._slots.release()
                if load is None:
                    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
                continue
            self._under_way += len(load.messages)
            task = group.create_task(self._deliver([(m, self._id(m)) for m in load.messages]))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    async def _deliver(self, messages: list[tuple[IncomingMessage, str]]) -> None:
        try:
            await self._settle(messages, 1)
        finally:
            self._under_way -= len(messages)
            self._slots.release()

    async def _settle(self, messages: list[tuple[IncomingMessage, str]], attempt: int) -> None:
        """Post until the server has taken the messages, or the attempts are used up."""
        limit = self._webhook.attempts
        pause_s = BACKOFF_S
        while True:
            await asyncio.sleep(max(0.0, self._not_before - time.monotonic()))
            problem, asked_s = await self._post(messages, attempt)
            if not problem:
                self._ack(messages)
                return
            if limit and attempt >= limit:
                if len(messages) == 1:
                    self._reject(messages[0][0], problem)
                else:  # one of them may be what the server does not take
                    for each in messages:
                        await self._settle([each], attempt)
                return
            self._shovel.blocked(problem)
            if asked_s:
                self._not_before = max(self._not_before, time.monotonic() + asked_s)
            await asyncio.sleep(pause_s * random.uniform(0.5, 1.0))
            pause_s = min(2 * pause_s, BACKOFF_MAX_S)
            attempt += 1

    async def _post(self, messages: list[tuple[IncomingMessage, str]], attempt: int) -> tuple[str, float]:
        """Return what went wrong, "" if nothing, and the seconds that the server asks to wait."""
        headers, body = self._request(messages, attempt)
        try:
            answer = await self.endpoint.post(headers, body)
        except EndpointFailed as error:
            return str(error), 0.0
        if 200 <= answer.status < 300:
            return "", 0.0
        if 300 <= answer.status < 400:
            return (
                f"the server answered {answer.status}, a redirect to {place(answer.location)}: it is not followed",
                0.0,
            )
        return f"the server answered {answer.status}", answer.retry_after_s

    def _request(
        self, messages: list[tuple[IncomingMessage, str]], attempt: int
    ) -> tuple[list[tuple[str, str]], bytes]:
        webhook = self._webhook
        message, id_ = messages[0]
        if webhook.batch == 1:
            body, content_type = message.body, message.properties.content_type or "application/octet-stream"
            more = [
                ("kvitto-exchange", quote(message.exchange)),
                ("kvitto-routing-key", quote(message.routing_key, errors="surrogateescape")),
                ("kvitto-redelivered", "true" if message.redelivered else "false"),
            ]
            if message.properties.message_id:
                more.append(("kvitto-message-id", quote(message.properties.message_id, errors="surrogateescape")))
        else:
            body, content_type = json.dumps([as_json(*each) for each in messages]).encode(), "application/json"
            id_, more = f"{id_}.{len(messages)}", [("kvitto-count", str(len(messages)))]
        now = str(int(time.time()))
        signed = f"{id_}.{now}.".encode() + body
        headers = [
            (
                "content-type",
                content_type if content_type.isprintable() and content_type.isascii() else "application/octet-stream",
            ),
            ("webhook-id", id_),
            ("webhook-timestamp", now),
            ("kvitto-attempt", str(attempt)),
            ("kvitto-shovel", quote(self._shovel.name)),
            *more,
            *webhook.headers.items(),
        ]
        if self._secret:
            digest = hmac.new(self._secret, signed, hashlib.sha256).digest()
            headers.append(("webhook-signature", "v1," + base64.b64encode(digest).decode()))
        return headers, body

    def _id(self, message: IncomingMessage) -> str:
        """Return what tells a message from all others, in each attempt the same."""
        offset = message.offset if self._source.incarnation else None
        return new_id() if offset is None else f"{self._source.incarnation}-{offset}"

    def _ack(self, messages: list[tuple[IncomingMessage, str]]) -> None:
        for message, _ in messages:
            if not message.ack():
                raise ConnectionLost("the source was lost before the ack")
        self._shovel.arrived_count(len(messages), sum(message.redelivered for message, _ in messages))

    def _reject(self, message: IncomingMessage, problem: str) -> None:
        if not message.reject():
            raise ConnectionLost("the source was lost before the reject")
        self._shovel.rejected(problem)


def as_json(message: IncomingMessage, id_: str) -> dict[str, Any]:
    """Return a message as an item of a batch. A body that is not UTF-8 comes as base64, in `body_base64`."""
    properties = message.properties
    found: dict[str, Any] = {
        "id": id_,
        "exchange": message.exchange,
        "routing_key": message.routing_key.encode(errors="replace").decode(),
        "redelivered": message.redelivered,
        "message_id": properties.message_id,
        "content_type": properties.content_type,
        "timestamp": properties.timestamp,
    }
    with contextlib.suppress(UnicodeDecodeError):
        return {**found, "body": message.body.decode()}
    return {**found, "body_base64": base64.b64encode(message.body).decode()}


def place(location: str) -> str:
    """Return where a redirect leads, as far as it may be shown."""
    return repr(without_password(location)[:200]) if "://" in location else "another path"


def key_of(secret: str) -> bytes:
    """Return the key in a secret: base64 behind `whsec_`, as Standard Webhooks has it, else its UTF-8."""
    if secret.startswith(PREFIX):
        with contextlib.suppress(binascii.Error, ValueError):
            return base64.b64decode(secret.removeprefix(PREFIX), validate=True)
    return secret.encode()
