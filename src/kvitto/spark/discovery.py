"""Option queuePattern: finds the queues. AMQP 0-9-1 cannot list them, but the broker's management API can."""

from __future__ import annotations

import base64
import http.client
import json
import logging
import re
import ssl
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote, unquote, urlsplit

from kvitto.client import parse_uri
from kvitto.spark.errors import DataLossError, SourceError
from kvitto.spark.link import Patience
from kvitto.spark.options import AUTO, STREAM, Options

log = logging.getLogger("kvitto.spark")
TIMEOUT_S: Final = 30.0
PORT, TLS_PORT = 15672, 15671
NAMES_SHOWN: Final = 5
NAME_THEM: Final = (
    "set option managementUri to the address of the broker's management API, or name the queues in option queues"
)


@dataclass(frozen=True, slots=True)
class Api:
    """The address of the management API for these options. `prefix` is the part of the path before /api."""

    host: str
    port: int
    prefix: str
    user: str
    password: str
    tls: ssl.SSLContext | None

    def __str__(self) -> str:
        return f"{'https' if self.tls else 'http'}://{self.host}:{self.port}{self.prefix}"


def matching(options: Options, mode: str, known: Iterable[str], timeout_s: float) -> tuple[str, ...]:
    """Return the queues that match and can be read in that mode, by name. `known` are those that the query has read.

    Raises SourceError if the broker does not answer, or nothing matches and nothing is known; DataLossError if a known
    queue is missing.
    """
    there = queues_of(options, timeout_s)
    known = set(known)
    if gone := sorted(known - there.keys()):
        text = (
            f"queue {', '.join(map(repr, gone))} is gone since this query read it, and with it what was not read: declare"
            " it again and start with a new checkpoint, or set failOnDataLoss = false to go on without it"
        )
        if options.fail_on_data_loss:
            raise DataLossError(text)
        log.warning("%s; going on because failOnDataLoss = false", text)
    fit = {name for name, kind in there.items() if mode == AUTO or (kind == "stream") == (mode == STREAM)}
    found = sorted(name for name in fit if re.fullmatch(options.pattern, name))
    if not found and not known:
        some = ", ".join(map(repr, sorted(fit)[:NAMES_SHOWN]))
        rest = f" and {len(fit) - NAMES_SHOWN} more" if len(fit) > NAMES_SHOWN else ""
        raise SourceError(
            f"option queuePattern: no durable queue in virtual host {options.vhost!r} has a name that is wholly matched by"
            f" {options.pattern!r}; there {f'are {some}{rest}' if some else 'is none'}"
        )
    return tuple(found)


def queues_of(options: Options, timeout_s: float) -> dict[str, str]:
    """Return name -> type of the durable, not exclusive queues of the virtual host. Try for `timeout_s`, then raise SourceError."""
    api = _api(options)
    patience = Patience(timeout_s, advice=NAME_THEM[0].upper() + NAME_THEM[1:])
    path = f"{api.prefix}/api/queues/{quote(options.vhost, safe='')}?columns=name,durable,exclusive,type,arguments"
    while True:
        try:
            status, body = _get(api, path)
            if status < 500:
                break
            raise OSError(f"status {status}")  # the broker is starting, or a proxy has lost it
        except (OSError, http.client.HTTPException) as error:
            why = str(error) or type(error).__name__
            patience.wait(OSError(f"option queuePattern needs the list of queues, and {api} does not give it: {why}"))
    if status == 401:
        raise SourceError(
            f"option queuePattern: {api} refuses user {api.user!r}: correct user and password in option managementUri (default:"
            " those of option uri), and give the user the tag management"
        )
    try:
        listed = json.loads(body)
        if status == 200 and isinstance(listed, list):
            return {each["name"]: _type(each) for each in listed if each["durable"] and not each.get("exclusive")}
        reason = listed.get("reason") or listed.get("error")
    except (ValueError, KeyError, TypeError, AttributeError):
        reason = None
    said = f" ({reason})" if reason else ""
    raise SourceError(
        f"option queuePattern: {api} answers with status {status}{said}, not with the queues of virtual host"
        f" {options.vhost!r}: {NAME_THEM}"
    )


def _type(queue: dict[str, Any]) -> str:
    """Return the type of a queue; some brokers list it in `arguments` only."""
    return str(queue.get("type") or (queue.get("arguments") or {}).get("x-queue-type") or "classic")


def _api(options: Options) -> Api:
    broker = parse_uri(options.uri)
    given = urlsplit(options.management) if options.management else None
    tls = given.scheme == "https" if given else broker.tls
    context = None
    if tls:
        context = broker.ssl_context() if broker.tls else ssl.create_default_context()
    user, password = broker.user, broker.password
    if given and given.username is not None:
        user, password = unquote(given.username), unquote(given.password or "")
    host = given.hostname if given and given.hostname else broker.host
    port = (given.port if given else None) or (TLS_PORT if tls else PORT)
    return Api(host, port, given.path.rstrip("/") if given else "", user, password, context)


def _get(api: Api, path: str) -> tuple[int, bytes]:
    if api.tls is None:
        connection = http.client.HTTPConnection(api.host, api.port, timeout=TIMEOUT_S)
    else:
        connection = http.client.HTTPSConnection(api.host, api.port, timeout=TIMEOUT_S, context=api.tls)
    login = base64.b64encode(f"{api.user}:{api.password}".encode()).decode()
    try:
        connection.request("GET", path, headers={"Authorization": f"Basic {login}"})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()
