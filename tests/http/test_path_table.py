"""docs/management-api.md says of each call of RabbitMQ's API whether it is answered: the page is up to date, and true of a broker."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import kvitto
from kvitto.client import Connection
from tests.http.test_access import World
from tests.http.test_wrong_values import RIGHT, WITHOUT_BODY
from tests.http.test_wrong_values import World as Changing

SCRIPT = Path(__file__).parents[2] / "scripts" / "management_api.py"


def load() -> ModuleType:
    spec = importlib.util.spec_from_file_location("management_api", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look it up
    spec.loader.exec_module(module)
    return module


TABLE = load()
CALLS = [call for _, found in TABLE.sections(TABLE.CALLS.read_text()) for call in found]
OURS = TABLE.routes()
THERE = [call for call in CALLS if (call.method, call.path) in OURS]
MISSING = [call for call in CALLS if call not in THERE]


def named(call: Any) -> str:
    return f"{call.method} {call.path}"


@pytest.fixture(scope="module")
def world() -> Iterator[World]:
    with kvitto.Broker(http_port=0) as broker, Connection(broker.url) as connection:
        yield World(broker, connection)


def test_the_page_is_up_to_date() -> None:
    assert TABLE.PAGE.read_text() == TABLE.page(), "run .venv/bin/python scripts/management_api.py"


def test_no_call_is_listed_twice_and_what_is_missing_has_a_reason() -> None:
    assert len({named(call) for call in CALLS}) == len(CALLS) > 130
    assert [named(call) for call in MISSING if not call.note] == []


@pytest.mark.parametrize("call", [call for call in THERE if call.method == "GET"], ids=named)
def test_what_is_shown_is_shown(world: World, call: Any) -> None:
    if "aliveness" in call.path:
        return  # it declares a queue: tests/http/test_health.py
    answer = world.admin.call("GET", world.path(call.path))
    assert answer.status == 200 and answer.headers["Content-Type"] == "application/json"
    assert answer.json is not None


@pytest.mark.parametrize("call", [call for call in THERE if call.method != "GET"], ids=named)
def test_what_changes_something_is_done(call: Any) -> None:
    with kvitto.Broker(http_port=0) as broker, Connection(broker.url) as connection:
        changing = Changing(broker, connection)
        body = {**RIGHT, **WITHOUT_BODY}[named(call)]
        assert changing.send((call.method, changing.path(call.path), body)) in (200, 201, 204)


@pytest.mark.parametrize("call", MISSING, ids=named)
def test_what_is_missing_says_so(world: World, call: Any) -> None:
    path = "/".join("x" if part[:1] == "{" else part for part in call.path.split("/"))
    answer = world.admin.call(call.method, path, None if call.method == "GET" else {})
    assert answer.status in (404, 405) and answer.reason
