"""What `kvitto migrate` prints: the plan, the progress, and the report."""

from __future__ import annotations

import time
from dataclasses import fields
from typing import Any

from kvitto.base.table import UNKNOWN, counted, printable, table
from kvitto.cli.migrate.moving import Wait
from kvitto.cli.migrate.plan import Item, Plan
from kvitto.pipeline.stopping import Progress as Line


class Progress:
    """A line on stderr that says how far the messages are."""

    def __init__(self, plan: Plan) -> None:
        self._items = [item for item in plan.items if item.moves]
        self._line = Line()
        self._since = time.monotonic()

    def __call__(self, item: Item) -> None:
        moved = sum(each.tally.moved for each in self._items)
        total = max(moved, sum(max(each.ready, each.tally.moved) for each in self._items))
        seconds = max(time.monotonic() - self._since, 0.001)
        share = moved / total if total else 1.0
        bar = "#" * int(20 * share)
        place = self._items.index(item) + 1
        self._line(
            f"[{bar:<20}] {moved:,} of {total:,} messages, {moved / seconds:,.0f}/s, "
            f"queue {place} of {len(self._items)}: {printable(item.name)}"
        )

    def waits(self, item: Item, wait: Wait) -> None:
        """Tell the user what the command waits for."""
        self._line(f"{printable(item.label)} {printable(str(wait))}")

    def __enter__(self) -> Progress:
        self._line.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._line.__exit__(*error)


def planned(plan: Plan) -> str:
    """Return what would be done."""
    lines = [f"From {plan.source.product} at {plan.source.place} to {plan.target.product} at {plan.target.place}:"]
    if plan.new:
        lines.append(f"definitions: {_definitions(plan)}")
    rows = [
        (
            item.vhost,
            item.name,
            "stream" if item.stream else "queue",
            item.ready,
            item.unacked,
            "yes" if item.moves else "no",
        )
        for item in plan.items
    ]
    if rows:
        lines.append(table(("vhost", "queue", "kind", "ready", "unacked", "moves"), rows))
    return "\n".join([*lines, *_notes(plan), "Nothing was changed (--dry-run)."])


def _definitions(plan: Plan) -> str:
    """Return how many objects of each kind there are, and how many of them the new broker lacks, or lacked."""
    parts = []
    for kind, new in plan.new.items():
        count = len(plan.definitions[kind])
        noun = kind if count != 1 else "policy" if kind == "policies" else kind.removesuffix("s")
        parts.append(f"{count:,} {noun.replace('_', ' ')} ({new:,} new)")
    return ", ".join(parts)


def summary(plan: Plan) -> str:
    """Return what was done, and what is left."""
    items = [item for item in plan.items if item.moves]
    rows = [
        (
            item.vhost,
            item.name,
            item.state,
            item.tally.moved,
            UNKNOWN if item.before is None else item.before,
            UNKNOWN if item.after is None else item.after,
            UNKNOWN if item.once is None else "once" if item.once else "at least once",
            item.tally.redelivered,
            item.tally.doubled,
        )
        for item in items
        if item.state not in ("empty",) or item.problem
    ]
    lines = []
    if rows:
        columns = ("vhost", "queue", "state", "moved", "before", "after", "arrives", "redelivered", "doubled")
        lines.append(table(columns, rows))
    if plan.messages:
        moved = sum(item.tally.moved for item in items)
        empty = sum(item.state == "empty" for item in items)
        lines.append(
            f"{counted(moved, 'message')} of {counted(len(items), 'queue')} {'was' if moved == 1 else 'were'} moved in this "
            f"run; {counted(empty, 'queue')} {'was' if empty == 1 else 'were'} empty."
        )
    elif plan.new:
        lines.append(
            f"The new broker has the definitions: {_definitions(plan)}. No messages were moved (--skip-messages)."
        )
    else:
        lines.append("Nothing was to be done (--skip-definitions and --skip-messages, or no definitions).")
    problems = [f"{printable(item.label)}: {printable(item.problem)}" for item in plan.items if item.problem]
    return "\n".join([*lines, *_notes(plan), *(f"LEFT: {text}" for text in problems)])


def _notes(plan: Plan) -> list[str]:
    of_items = [f"{item.label}: {note}" for item in plan.items for note in item.notes]
    return [f"note: {printable(text)}" for text in [*plan.notes, *of_items]]


def as_json(plan: Plan) -> dict[str, Any]:
    """Return the same for programs."""
    items = []
    for item in plan.items:
        shown = {each.name: getattr(item, each.name) for each in fields(item) if each.name != "tally"}
        counts = {name: getattr(item.tally, name) for name in ("moved", "redelivered", "doubled", "interruptions")}
        items.append({**shown, **counts})
    return {
        "source": plan.source.product,
        "target": plan.target.product,
        "new": plan.new,
        "queues": items,
        "notes": plan.notes,
    }
