"""The commands of `kvitto ctl` that bring all definitions of a broker into a file, and those of a file into a broker."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from kvitto.base.table import printable
from kvitto.cli.lists import Shown
from kvitto.cli.management import IMPORT_S, REFUSED, USAGE, Failure, Management

STDIO = "-"
CANNOT = " cannot be taken"
ENDS = (". Nothing was changed", ". The others are there")
"""How the broker ends the reason of a refused import."""


def add_commands(add: Callable[..., argparse.ArgumentParser]) -> None:
    text = "write all definitions into FILE, or to stdout for -: users, vhosts, queues, bindings, ..."
    sub = add("export_definitions", export_definitions, text, "file")
    sub.add_argument("-p", "--vhost", help="only this virtual host, for any other one")
    text = "take over the definitions in FILE, or on stdin for -, of Kvitto, RabbitMQ or LavinMQ"
    sub = add("import_definitions", import_definitions, text, "file")
    sub.add_argument("-p", "--vhost", help="into this virtual host")
    sub.add_argument(
        "--skip-errors", action="store_true", help="leave out what cannot be taken, in place of everything"
    )


def export_definitions(api: Management, args: argparse.Namespace) -> str | Shown:
    found = api.get(*_path(args))
    text = in_lines(found)
    if args.file == STDIO:
        return found, text.rstrip("\n"), 0
    try:
        _write(Path(args.file), text)
    except OSError as error:
        raise Failure(USAGE, f"cannot write {args.file}: {error.strerror or error}") from None
    return f"{_count(found)} definitions are in {args.file}"


def _write(path: Path, text: str) -> None:
    """Write a file for its owner only, since it has the hashes of passwords. An existing file is replaced as a whole; a device or a
    pipe, such as /dev/stdout, is written to. Raises OSError."""
    target = path.resolve()
    if target.exists() and not target.is_file():
        target.write_text(text, encoding="utf-8")
        return
    part = target.with_name(f"{target.name}.part")
    part.unlink(missing_ok=True)
    try:
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            file.write(text)
        part.replace(target)
    except OSError:
        part.unlink(missing_ok=True)
        raise


def import_definitions(api: Management, args: argparse.Namespace) -> Shown:
    try:
        if args.file == STDIO:
            body = sys.stdin.buffer.read()
        else:
            with open(args.file, "rb") as file:
                body = file.read()
    except OSError as error:
        raise Failure(USAGE, f"cannot read {args.file}: {error.strerror or error}") from None
    query = "?skip_errors=true" if args.skip_errors else ""
    answer = api.upload(*_path(args), content=body, query=query, accept=(400, 409), timeout_s=IMPORT_S)
    found = answer if isinstance(answer, dict) else {}
    refused = found.get("refused", [])
    lines = [printable(f"not taken: {text}") for text in _sentences(refused)]
    lines += [printable(f"without effect here: {what}") for what in found.get("without_effect", ())]
    if "error" in found:
        raise Failure(REFUSED, "\n".join((printable(_reason(found)), *lines)))
    taken = f"{found['taken']} definitions are there" if "taken" in found else "all definitions are there"
    lines.append(f"{taken}, {len(refused)} are not" if refused else taken)
    return found or {"refused": [], "without_effect": []}, "\n".join(lines), REFUSED if refused else 0


def in_lines(definitions: dict[str, Any]) -> str:
    """Return the document with one item on a line, as people and version control like to read it."""
    members = []
    for name, value in definitions.items():
        text = json.dumps(value)
        if isinstance(value, list) and value:
            text = "[\n" + ",\n".join(f"  {json.dumps(item)}" for item in value) + "\n ]"
        members.append(f" {json.dumps(name)}: {text}")
    return "{\n" + ",\n".join(members) + "\n}\n"


def _path(args: argparse.Namespace) -> tuple[str, ...]:
    return ("definitions",) if args.vhost is None else ("definitions", args.vhost)


def _count(definitions: dict[str, Any]) -> int:
    return sum(len(value) for value in definitions.values() if isinstance(value, list))


def _reason(found: dict[str, Any]) -> str:
    """Return the reason of a refusal without the items that it names, which follow in lines of their own."""
    reason: str = found["reason"]
    if not found.get("refused"):
        return reason
    count, verb, rest = reason.partition(CANNOT)
    end = next((end for end in ENDS if rest.endswith(end)), "")
    return f"{count}{verb}{end}" if verb else reason


def _sentences(refused: list[dict[str, str]]) -> Iterator[str]:
    """Yield a sentence on each refused item. A list of all that is possible is in the first one that has it."""
    lists = set()
    for item in refused:
        where = f" in vhost '{item['vhost']}'" if item["vhost"] else ""
        reason, these, names = item["reason"].partition("; these are: ")
        yield f"{item['kind']} '{item['name']}'{where}: {reason}{these + names if names not in lists else ''}"
        lists.add(names)
