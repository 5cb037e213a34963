"""`kvitto ctl`: administer a running broker."""

from __future__ import annotations

from typing import Any


def add_parser(commands: Any) -> None:
    commands.add_parser("ctl", help="administer a running broker")
