"""/healthz and RabbitMQ's health checks: 200 if the broker does all that it should, else 503 with the reason."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

from kvitto.http.access import Access
from kvitto.http.api import Call
from kvitto.http.certificates import expires_at
from kvitto.http.nodes import listeners
from kvitto.http.request import Response, answer, bad_request

UNIT_DAYS = {"days": 1, "weeks": 7, "months": 30, "years": 365}
WITHIN_MAX = 10_000
PROTOCOLS = {"amqps": "amqp/ssl", "amqp091": "amqp"}
"""Other names of protocols that RabbitMQ accepts."""


def ok(**more: Any) -> Response:
    return answer({"status": "ok", **more})


def failed(reason: str, **more: Any) -> Response:
    return answer({"status": "failed", "reason": reason, **more}, 503)


def healthz(call: Call) -> Response:
    """Answer anybody. Only users who may log in see the texts of the alarms."""
    count = len(call.api.alarms)
    return failed(f"{count} alarm(s), see the log or `kvitto ctl alarms`") if count else ok()


def alarms(call: Call) -> Response:
    found = [{"node": call.api.node, "alarm": text} for text in call.api.alarms]
    return failed(found[0]["alarm"], alarms=found) if found else ok()


def leads(call: Call) -> Response:
    """Answer 200 if this node leads, or belongs to no cluster: for load balancers that want to send clients to the leader alone.

    A connection that another node has passed on was meant for that one.
    """
    if call.request.passed:
        return failed(f"this node follows, {call.api.node} leads")
    return ok()


def up(_call: Call) -> Response:
    """Answer 200: a broker that answers has started with all its virtual hosts, and accepts connections."""
    return ok()


def single_node(_call: Call) -> Response:
    return ok(reason="single node cluster")


def of_vhost(call: Call) -> Response:
    call.vhost()
    return single_node(call)


def port_listener(call: Call) -> Response:
    given, ports = call.args["port"], [found["port"] for found in listeners(call)]
    if not (given.isascii() and given.isdigit() and len(given) < 6):
        raise bad_request("the port must be a number")
    port = int(given)
    return ok(port=port) if port in ports else failed("No active listener", missing=port, ports=ports)


def protocol_listener(call: Call) -> Response:
    given = call.args["protocol"].lower()
    protocol, found = PROTOCOLS.get(given, given), sorted({found["protocol"] for found in listeners(call)})
    return ok(protocol=given) if protocol in found else failed("No active listener", missing=protocol, protocols=found)


def certificate_expiration(call: Call) -> Response:
    """Check whether the TLS certificate expires within this number of days, weeks, months or years. Without TLS none does."""
    within, unit = call.args["within"], call.args["unit"]
    if not (within.isascii() and within.isdigit() and len(within) < 6 and int(within) <= WITHIN_MAX):
        raise bad_request(f"Invalid expiration value: a number up to {WITHIN_MAX} is needed.")
    if unit not in UNIT_DAYS:
        raise bad_request(f"Time unit not recognised. Supported units: {', '.join(UNIT_DAYS)}.")
    host = call.api.host
    path = host.config.tls_cert
    if not host.config.uses_tls or path is None:
        return ok()
    try:
        until = expires_at(path)
    except (OSError, ValueError, IndexError) as error:
        return failed(f"the certificate {path} cannot be read: {error}")
    now = datetime.fromtimestamp(call.api.broker.now_ms / 1000, UTC)
    if until - now > timedelta(days=int(within) * UNIT_DAYS[unit]):
        return ok()
    expired = [{"node": call.api.node, "protocol": "amqp/ssl", "port": host.tls_port, "cert_expiration": str(until)}]
    return failed("Certificates expiring", expired=expired)


def below_connection_limit(call: Call) -> Response:
    host = call.api.host
    limit, count = host.config.max_connections, len(host.hub.connections)
    shown = {"limit": "infinity" if limit is None else limit, "connections": count}
    if limit is None or count < limit:
        return ok(**shown)
    return failed("node connection limit is reached", **shown)


CHECKS: tuple[tuple[str, Callable[[Call], Response]], ...] = (
    ("alarms", alarms),
    ("local-alarms", alarms),
    ("virtual-hosts", up),
    ("port-listener/{port}", port_listener),
    ("protocol-listener/{protocol}", protocol_listener),
    ("certificate-expiration/{within}/{unit}", certificate_expiration),
    ("node-is-quorum-critical", single_node),
    ("node-is-mirror-sync-critical", single_node),
    ("ready-to-serve-clients", below_connection_limit),
    ("is-in-service", up),
    ("below-node-connection-limit", below_connection_limit),
    ("metadata-store/initialized", up),
    ("metadata-store/initialized/with-data", up),
    ("reached-target-cluster-size", single_node),
    ("quorum-queues-without-elected-leaders/all-vhosts", single_node),
    ("quorum-queues-without-elected-leaders/all-vhosts/pattern/{pattern}", single_node),
    ("quorum-queues-without-elected-leaders/vhost/{vhost}", of_vhost),
    ("quorum-queues-without-elected-leaders/vhost/{vhost}/pattern/{pattern}", of_vhost),
)

ROUTES = (
    ("GET", "/healthz", Access.ANYBODY, healthz),
    ("GET", "/healthz/live", Access.ANYBODY, up),
    ("GET", "/healthz/ready", Access.ANYBODY, up),
    ("GET", "/healthz/leader", Access.ANYBODY, leads),
    *(("GET", f"/api/health/checks/{path}", Access.MANAGEMENT, check) for path, check in CHECKS),
    # monitoring made for RabbitMQ before 3.8 asks for these
    ("GET", "/api/healthchecks/node", Access.MANAGEMENT, alarms),
    ("GET", "/api/healthchecks/node/{node}", Access.MANAGEMENT, alarms),
)
