"""POST /api/definitions: imports a document of definitions for the broker or for one virtual host, as a whole or item by item."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kvitto.broker.administration.definitions.document import Document, Malformed
from kvitto.broker.administration.definitions.plan import Plan
from kvitto.http import multipart
from kvitto.http.access import Access
from kvitto.http.api import Call
from kvitto.http.request import NO_CONTENT, Problem, Response, answer, bad_request

SHOWN_MAX = 1000
"""The most refused items in one answer."""


async def import_definitions(call: Call) -> Response:
    """Answer when everything is on disk: 204, or 200 if there is something to say. Otherwise 400, and nothing was changed."""
    request, vhost = call.request, None
    if "vhost" in call.args:
        vhost = call.vhost()
        if vhost.deleting:
            raise bad_request(f"vhost '{vhost.name}' is being deleted")
    skip_errors = request.asks("skip_errors")
    start, end = 0, len(request.body)
    content_type = request.headers.get("content-type", "")
    if content_type.partition(";")[0].strip().lower() == "multipart/form-data":
        start, end = await multipart.file_of(call.api.slices, request.body, content_type)
    plan = Plan(call.api.broker, Document(request.body, start, end), vhost)
    try:
        await _work(call, plan.read())
    except Malformed as error:
        raise Problem(400, "not_json", str(error)) from None
    if plan.refusals and not skip_errors:
        await _work(call, plan.forget())
        return _refused(plan, 400, f"{plan.summary()}. Nothing was changed")
    checked = plan.refusals
    await call.api.perform(plan.apply())
    if plan.refusals > checked and not skip_errors:
        return _refused(plan, 409, f"{plan.summary()}. The others are there")
    if not plan.refusals and not plan.inert:
        return NO_CONTENT
    return answer({"taken": plan.taken, "refused": _items(plan), "without_effect": plan.inert})


async def _work(call: Call, steps: Iterator[None]) -> None:
    for _ in steps:
        await call.api.slices.rest()


def _refused(plan: Plan, status: int, reason: str) -> Response:
    return answer({"error": "bad_request", "reason": reason, "refused": _items(plan)}, status)


def _items(plan: Plan) -> list[dict[str, Any]]:
    return [refusal.value() for refusal in plan.refused[:SHOWN_MAX]]


LIMIT = "http_definitions_max"
ROUTES = (
    ("POST", "/api/definitions", Access.ADMINISTRATOR, import_definitions, LIMIT, True),
    ("POST", "/api/definitions/{vhost}", Access.ADMINISTRATOR, import_definitions, LIMIT, True),
    # RabbitMQ's older name
    ("POST", "/api/all-configuration", Access.ADMINISTRATOR, import_definitions, LIMIT, True),
)
