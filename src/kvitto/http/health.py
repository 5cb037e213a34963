"""/healthz and RabbitMQ's health checks: 200 if the broker does all that it should, else 503 and why not."""

from __future__ import annotations

from kvitto.http.access import Access
from kvitto.http.api import Call
from kvitto.http.request import Response, answer


def healthz(call: Call) -> Response:
    """Anybody may ask; what the alarms say is for those who may log in."""
    count = len(call.api.alarms)
    if not count:
        return answer({"status": "ok"})
    return answer({"status": "failed", "reason": f"{count} alarm(s), see the log or `kvitto ctl alarms`"}, 503)


def alarms(call: Call) -> Response:
    found = [{"node": call.api.node, "alarm": text} for text in call.api.alarms]
    if not found:
        return answer({"status": "ok"})
    return answer({"status": "failed", "reason": found[0]["alarm"], "alarms": found}, 503)


ROUTES = (
    ("GET", "/healthz", Access.ANYBODY, healthz),
    ("GET", "/api/health/checks/alarms", Access.MANAGEMENT, alarms),
    ("GET", "/api/health/checks/local-alarms", Access.MANAGEMENT, alarms),
    ("GET", "/api/healthchecks/node", Access.MANAGEMENT, alarms),
)
