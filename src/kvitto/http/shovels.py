"""/api/shovels: what the shovels do. They are set and deleted as parameters of the component `shovel`."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from kvitto.http.access import Access
from kvitto.http.api import Call
from kvitto.http.listing import answer_list
from kvitto.http.request import NO_CONTENT, Response, answer, bad_request, not_found
from kvitto.shovel.settings import COMPONENT, shown

AMQP, HTTP = "amqp091", "http"
FIGURES = ("moved", "rejected", "again", "failures", "remaining")


def view(call: Call, item: tuple[str, str, Any, dict[str, Any]]) -> dict[str, Any]:
    """Return a shovel as RabbitMQ shows it, with figures of our own."""
    vhost, name, value, state = item
    since = datetime.fromtimestamp(state.get("since", 0), UTC)
    settings = {key.replace("-", "_"): setting for key, setting in shown(value).items()}
    return {
        "src_protocol": AMQP,
        "dest_protocol": protocol(settings.get("dest_uri")),
        **settings,
        "node": call.api.node,
        "name": name,
        "vhost": vhost,
        "type": "dynamic",
        "state": state["state"],
        "reason": state["reason"],
        "timestamp": f"{since:%Y-%m-%d %H:%M:%S}",
        **{figure: state[figure] for figure in FIGURES if state.get(figure) is not None},
    }


def protocol(uri: Any) -> str:
    """Return what is spoken at a URI, or at the first of a list."""
    first = uri[0] if isinstance(uri, list) and uri else uri
    return HTTP if str(first).startswith("http") else AMQP


async def list_shovels(call: Call) -> Response:
    allowed = {vhost.name for vhost in call.vhosts()}
    found = (item for item in call.api.host.shovels.list() if item[0] in allowed)
    return await answer_list(call, found, lambda item: view(call, item), lambda item: item[1])


def find(call: Call, vhost: str) -> tuple[str, str, Any, dict[str, Any]]:
    found: tuple[str, str, Any, dict[str, Any]] | None = call.api.host.shovels.find(vhost, call.name)
    if found is None:
        raise not_found(f"there is no shovel '{call.name}' in vhost '{vhost}'")
    return found


def get_shovel(call: Call) -> Response:
    return answer(view(call, find(call, call.vhost().name)))


async def delete_shovel(call: Call) -> Response:
    vhost, name, _, _ = find(call, call.governed_vhost().name)
    await call.api.change(lambda: call.api.broker.parameters.clear(vhost, COMPONENT, name))
    return NO_CONTENT


async def restart_shovel(call: Call) -> Response:
    vhost, name, _, _ = find(call, call.governed_vhost().name)
    call.api.host.shovels.restart(vhost, name)
    return NO_CONTENT


async def pause_shovel(call: Call) -> Response:
    return await _set_paused(call, True)


async def resume_shovel(call: Call) -> Response:
    return await _set_paused(call, False)


async def _set_paused(call: Call, paused: bool) -> Response:
    vhost, name, value, _ = find(call, call.governed_vhost().name)
    if not isinstance(value, dict):
        raise bad_request(f"shovel '{name}' has settings that are no object: set it again")
    changed = {**{key: item for key, item in value.items() if key != "paused"}, **({"paused": True} if paused else {})}
    await call.api.change(lambda: call.api.broker.parameters.set(vhost, COMPONENT, name, changed))
    return NO_CONTENT


ROUTES = (
    ("GET", "/api/shovels", Access.MONITORING, list_shovels),
    ("GET", "/api/shovels/{vhost}", Access.MONITORING, list_shovels),
    ("GET", "/api/shovels/vhost/{vhost}/{name}", Access.MONITORING, get_shovel),
    ("DELETE", "/api/shovels/vhost/{vhost}/{name}", Access.POLICYMAKER, delete_shovel),
    ("DELETE", "/api/shovels/vhost/{vhost}/{name}/restart", Access.POLICYMAKER, restart_shovel),
    ("PUT", "/api/shovels/{vhost}/{name}/pause", Access.POLICYMAKER, pause_shovel),
    ("PUT", "/api/shovels/{vhost}/{name}/resume", Access.POLICYMAKER, resume_shovel),
)
