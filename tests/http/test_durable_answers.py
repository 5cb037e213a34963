"""D2: whichever route changes definitions, its answer waits until they are durable. The disk here syncs only when it is told to."""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kvitto.base.config import Config
from kvitto.http.api import Api, Call
from kvitto.http.request import Problem, Request, Response
from kvitto.http.router import Router
from tests.protocol.sansio import ProtocolHarness

Q, X, Y = "/api/queues/%2F/q", "/api/exchanges/%2F/x", "/api/exchanges/%2F/y"
TO_QUEUE, TO_EXCHANGE = "/api/bindings/%2F/e/x/q/q", "/api/bindings/%2F/e/x/e/y"
EVERYTHING = {"configure": ".*", "write": ".*", "read": ".*"}
POLICY = {"pattern": "q", "definition": {"max-length": 5}}
TOPIC = {"exchange": "x", "write": ".*", "read": ".*"}
DOCUMENT: dict[str, Any] = {"queues": [{"name": "new", "vhost": "v", "durable": True}]}
SETUP: list[tuple[str, str, dict[str, Any]]] = [
    ("PUT", Q, {"durable": True}),
    ("PUT", X, {"durable": True}),
    ("PUT", Y, {"durable": True}),
    ("POST", TO_QUEUE, {"routing_key": "k"}),
    ("POST", TO_EXCHANGE, {"routing_key": "k"}),
    ("PUT", "/api/policies/%2F/p", POLICY),
    ("PUT", "/api/operator-policies/%2F/p", POLICY),
    ("PUT", "/api/users/u", {"tags": "", "password_hash": ""}),
    ("PUT", "/api/vhosts/v", {}),
    ("PUT", "/api/vhosts/p", {"protected_from_deletion": True}),
    ("PUT", "/api/permissions/v/u", EVERYTHING),
    ("PUT", "/api/topic-permissions/v/u", TOPIC),
    ("PUT", "/api/topic-permissions/%2F/u", TOPIC),
    ("PUT", "/api/parameters/federation-upstream/%2F/s", {"value": {}}),
    ("PUT", "/api/parameters/shovel/%2F/s", {"value": {"paused": True}}),
    ("PUT", "/api/parameters/shovel/%2F/t", {"value": {}}),
    ("PUT", "/api/global-parameters/g", {"value": {}}),
    ("PUT", "/api/vhost-limits/v/max-queues", {"value": 5}),
    ("PUT", "/api/user-limits/u/max-channels", {"value": 5}),
]
CHANGING: list[tuple[str, str, dict[str, Any]]] = [
    ("PUT", "/api/queues/%2F/new", {"durable": True}),
    ("DELETE", Q, {}),
    ("PUT", "/api/exchanges/%2F/new", {"durable": True}),
    ("DELETE", X, {}),
    ("POST", TO_QUEUE, {"routing_key": "new"}),
    ("DELETE", TO_QUEUE + "/k", {}),
    ("POST", TO_EXCHANGE, {"routing_key": "new"}),
    ("DELETE", TO_EXCHANGE + "/k", {}),
    ("PUT", "/api/policies/%2F/new", POLICY),
    ("DELETE", "/api/policies/%2F/p", {}),
    ("PUT", "/api/operator-policies/%2F/new", POLICY),
    ("DELETE", "/api/operator-policies/%2F/p", {}),
    ("PUT", "/api/users/new", {"tags": "", "password_hash": ""}),
    ("DELETE", "/api/users/u", {}),
    ("POST", "/api/users/bulk-delete", {"users": ["u"]}),
    ("PUT", "/api/vhosts/new", {}),
    ("DELETE", "/api/vhosts/v", {}),
    ("PUT", "/api/permissions/%2F/u", EVERYTHING),
    ("DELETE", "/api/permissions/v/u", {}),
    ("PUT", "/api/cluster-name", {"name": "new"}),
    ("POST", "/api/vhosts/v/deletion/protection", {}),
    ("DELETE", "/api/vhosts/p/deletion/protection", {}),
    ("PUT", "/api/topic-permissions/%2F/u", {**TOPIC, "exchange": "new"}),
    ("DELETE", "/api/topic-permissions/%2F/u", {}),
    ("DELETE", "/api/topic-permissions/%2F/u/x", {}),
    ("PUT", "/api/parameters/federation-upstream/%2F/new", {"value": {}}),
    ("DELETE", "/api/parameters/federation-upstream/%2F/s", {}),
    ("PUT", "/api/shovels/%2F/t/pause", {}),
    ("PUT", "/api/shovels/%2F/s/resume", {}),
    ("DELETE", "/api/shovels/vhost/%2F/s", {}),
    ("PUT", "/api/global-parameters/new", {"value": {}}),
    ("DELETE", "/api/global-parameters/g", {}),
    ("PUT", "/api/vhost-limits/v/max-queues", {"value": 6}),
    ("DELETE", "/api/vhost-limits/v/max-queues", {}),
    ("PUT", "/api/user-limits/u/max-channels", {"value": 6}),
    ("DELETE", "/api/user-limits/u/max-channels", {}),
    ("POST", "/api/definitions", DOCUMENT),
    ("POST", "/api/all-configuration", DOCUMENT),
    ("POST", "/api/definitions/v", {"queues": DOCUMENT["queues"]}),
    ("GET", "/api/aliveness-test/%2F", {}),
]
UNCHANGING = {
    ("DELETE", "/api/connections/{name}"),
    ("DELETE", "/api/connections/username/{username}"),
    ("DELETE", "/api/queues/{vhost}/{name}/contents"),
    ("POST", "/api/queues/{vhost}/{name}/get"),
    ("POST", "/api/exchanges/{vhost}/{name}/publish"),
    ("DELETE", "/api/exchanges/{vhost}/{name}/delayed"),
    ("DELETE", "/api/exchanges/{vhost}/{name}/delayed/{message_id}"),
    ("POST", "/api/exchanges/{vhost}/{name}/delayed/{message_id}/run"),
    ("PUT", "/api/settings/log"),
    ("POST", "/api/cluster/transfer"),
    ("POST", "/api/cluster/remove"),
    ("POST", "/api/cluster/upgrade"),
    ("POST", "/api/queues/{vhost}/{name}/actions"),
    ("DELETE", "/api/consumers/{vhost}/{connection}/{channel}/{tag}"),
    ("POST", "/api/vhosts/{vhost}/start/{node}"),
    ("PUT", "/api/feature-flags/{name}/enable"),
    ("POST", "/api/rebalance/queues"),
    ("DELETE", "/api/reset"),
    ("DELETE", "/api/reset/{node}"),
    ("DELETE", "/api/auth/attempts/{node}"),
    ("DELETE", "/api/auth/attempts/{node}/source"),
    ("DELETE", "/api/shovels/vhost/{vhost}/{name}/restart"),
    ("POST", "/api/backup"),
    ("DELETE", "/api/backup/{name}"),
}
"""Routes that are no GET, and change no definition."""


class Shovels:
    """Shovels that only exist."""

    def __init__(self, harness: ProtocolHarness) -> None:
        self.harness = harness

    def list(self) -> Iterator[Any]:
        for vhost, (component, name), value in self.harness.broker.parameters.list():
            if component == "shovel":
                yield vhost, name, value, {"state": "running", "reason": ""}

    def find(self, vhost: str, name: str) -> Any:
        return next((item for item in self.list() if item[:2] == (vhost, name)), None)


class Host:
    """The server: a turn runs when the test says so."""

    tls_port = http_port = https_port = port = uptime_ms = started_ms = 0

    def __init__(self, harness: ProtocolHarness) -> None:
        self.config = Config()
        self.store, self.broker, self.hub, self.logins = harness.store, harness.broker, harness.hub, None
        self.clock, self.shovels = harness.clock, Shovels(harness)
        self.followers = None

    def schedule(self) -> None:
        pass

    def held(self, channel: Any, queue: Any) -> Iterator[Any]:
        return iter(())

    def hand_over(self, successor: str) -> None: ...

    def fail(self, error: Exception) -> None:
        raise error


class Caller:
    """guest, who calls handlers without sockets."""

    def __init__(self, harness: ProtocolHarness) -> None:
        self.harness = harness
        self.api = Api(Host(harness))
        self.router = Router()

    async def begin(self, method: str, path: str, body: dict[str, Any]) -> asyncio.Task[Response]:
        """A call that has gone as far as it gets without a sync."""
        route, args = self.router.find(method, path)
        request = Request(method, path, {}, {}, True, "test", body, body=json.dumps(body).encode())
        handled = route.handler(Call(self.api, request, args, self.harness.broker.users.get("guest")))

        async def finish() -> Response:
            return await handled if inspect.isawaitable(handled) else handled

        task = asyncio.create_task(finish())
        for _ in range(20):
            await asyncio.sleep(0)
            self.harness.turn()
        return task

    async def end(self, task: asyncio.Task[Response]) -> Response:
        while not task.done():
            self.harness.settle_down()
            await asyncio.sleep(0)
        return task.result()


def test_every_route_is_looked_at() -> None:
    router, every, patterns = Router(), set(), {}
    for found in router._by_length.values():
        for parts, methods in found.items():
            for method, route in methods.items():
                patterns[id(route)] = (method, "/" + "/".join(parts))
                every.add(patterns[id(route)])
    every = {each for each in every if each[0] != "GET"}
    changing = {patterns[id(router.find(method, path)[0])] for method, path, _ in CHANGING if method != "GET"}
    assert not changing & UNCHANGING
    assert changing | UNCHANGING == every


@pytest.mark.parametrize(
    ("method", "path", "body"), CHANGING, ids=lambda value: value if isinstance(value, str) else ""
)
def test_the_answer_waits_for_the_definition(method: str, path: str, body: dict[str, Any]) -> None:
    """D2"""

    async def scenario() -> None:
        harness = ProtocolHarness()
        caller = Caller(harness)
        for other in SETUP:
            assert (await caller.end(await caller.begin(*other))).status in (201, 204)
        before = harness.store.definitions.file.size()
        task = await caller.begin(method, path, body)
        assert harness.store.definitions.file.size() > before, "this route changes no definition"
        assert not task.done()
        assert (await caller.end(task)).status in (200, 201, 204)

    asyncio.run(scenario())


def test_so_does_the_answer_to_a_job_of_several_turns() -> None:
    """D2"""

    async def scenario() -> None:
        harness = ProtocolHarness()
        caller = Caller(harness)
        for other in SETUP:
            await caller.end(await caller.begin(*other))
        for n in range(200):
            harness.broker.vhosts["/"].bind("amq.direct", harness.broker.vhosts["/"].queues["q"], f"k{n}", {})
        harness.settle_down()
        task = await caller.begin("DELETE", Q, {})
        assert "q" not in harness.broker.vhosts["/"].queues and not task.done()
        assert (await caller.end(task)).status == 204

    asyncio.run(scenario())


DELAYING = {"type": "x-delayed-message", "durable": True, "arguments": {"x-delayed-type": "direct"}}
DELAYED = "/api/exchanges/%2F/later/delayed"


async def delaying(caller: Caller) -> None:
    """Have a message with the id `m` wait in an exchange."""
    properties = {"message_id": "m", "headers": {"x-delay": 1_000_000}}
    message = {"routing_key": "k", "payload": "x", "payload_encoding": "string", "properties": properties}
    await caller.end(await caller.begin("PUT", "/api/exchanges/%2F/later", DELAYING))
    await caller.end(await caller.begin("POST", "/api/exchanges/%2F/later/publish", message))


@pytest.mark.parametrize("second", ["DELETE", "POST"])
@pytest.mark.parametrize("first", ["DELETE", "POST"])
def test_a_delayed_message_that_is_being_cancelled_is_not_said_to_be_gone(first: str, second: str) -> None:
    """A second request was told with 404 that the message is not there, before this was durable: a crash could still bring it back."""
    path = {"DELETE": DELAYED + "/m", "POST": DELAYED + "/m/run"}

    async def scenario() -> None:
        caller = Caller(ProtocolHarness())
        await delaying(caller)
        tasks = [await caller.begin(method, path[method], {}) for method in (first, second, second)]
        assert not any(task.done() for task in tasks)
        assert (await caller.end(tasks[0])).status == 200
        for task in tasks[1:]:
            with pytest.raises(Problem, match="no message with the id 'm' waits"):
                await caller.end(task)

    asyncio.run(scenario())


def test_a_second_cancel_does_what_the_first_one_could_not(monkeypatch: pytest.MonkeyPatch) -> None:
    async def scenario() -> None:
        harness = ProtocolHarness()
        caller = Caller(harness)
        await delaying(caller)
        refused: list[Callable[[], None]] = []
        with monkeypatch.context() as patch:
            patch.setattr(harness.broker.records, "write", lambda _record, _applied, full: refused.append(full))
            tasks = [await caller.begin("DELETE", DELAYED + "/m", {}) for _ in range(2)]
        assert not any(task.done() for task in tasks)
        refused[0]()
        with pytest.raises(Problem, match="0 of 1 messages are cancelled: the others stay"):
            await caller.end(tasks[0])
        assert json.loads((await caller.end(tasks[1])).body) == {"cancelled": 1}
        assert len(refused) == 1

    asyncio.run(scenario())


def test_the_second_cancel_in_an_exchange_that_goes_out_of_service_is_not_told_404(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def scenario() -> None:
        harness = ProtocolHarness()
        caller = Caller(harness)
        await delaying(caller)
        monkeypatch.setattr(harness.broker.records, "write", lambda *_: None)
        tasks = [await caller.begin("DELETE", DELAYED + "/m", {}) for _ in range(2)]
        waiting = harness.broker.vhosts["/"].exchange("later").waiting
        assert waiting is not None
        monkeypatch.setattr(waiting, "fault", RuntimeError("broken"))
        for task in tasks:
            with pytest.raises(Problem) as problem:
                await caller.end(task)
            assert problem.value.status == 503

    asyncio.run(scenario())
