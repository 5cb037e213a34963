"""/api/backup: the broker's part of an online backup, for `kvitto backup`.

Only administrators may use it. It makes no file outside of the data directory: the caller copies the files itself, so it has to be on the
broker's machine and be allowed to read the directory.
"""

from __future__ import annotations

import os
from typing import Any

from kvitto.base.errors import StoreError
from kvitto.http.access import Access
from kvitto.http.api import Call
from kvitto.http.request import NO_CONTENT, Problem, Response, answer, not_found
from kvitto.store.cut import Cut


def begin(call: Call) -> Response:
    """Begin a backup: it has what the files of the broker have now, so all that has been confirmed."""
    backups = call.api.broker.backups
    if backups.running is not None:
        name = backups.running.name
        text = f"another backup is being taken ({name}): wait for its end, or cancel it with DELETE /api/backup/{name}"
        raise Problem(409, "conflict", text)
    try:
        cut = backups.begin()
    except StoreError as error:
        raise Problem(503, "store_failed", str(error)) from None
    call.api.host.schedule()
    return answer({**_state(cut), "data_dir": os.path.abspath(call.api.host.config.data_dir)}, 201)


def show(call: Call) -> Response:
    """Answer whether the backup has noted all files. The broker gives a backup up if its client does not ask for a while."""
    cut = _running(call)
    call.api.broker.backups.heard()
    return answer(_state(cut))


def end(call: Call) -> Response:
    _running(call)
    call.api.broker.backups.end()
    call.api.host.schedule()
    return NO_CONTENT


def _running(call: Call) -> Cut:
    """Return the backup that the path names. Raise Problem 404 or 410."""
    backups, name = call.api.broker.backups, call.name
    if backups.running is not None and backups.running.failure:
        backups.look()
    if name in backups.ended:
        raise Problem(410, "gone", f"the broker has given up the backup {name}: {backups.ended[name]}")
    if backups.running is None or backups.running.name != name:
        raise not_found(f"no backup {name} is being taken")
    return backups.running


def _state(cut: Cut) -> dict[str, Any]:
    return {"name": cut.name, "staging": cut.directory, "ready": cut.ready}


ROUTES = (
    ("POST", "/api/backup", Access.ADMINISTRATOR, begin),
    ("GET", "/api/backup/{name}", Access.ADMINISTRATOR, show),
    ("DELETE", "/api/backup/{name}", Access.ADMINISTRATOR, end),
)
