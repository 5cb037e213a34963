"""What a turn of the broker asks of the parts that rarely have work for it.

Each turn asks all of them, nearly always in vain, and in the traffic of most applications a turn has one message. So the base is a class
of C when compiled, whose field the turn reads without looking up a name.
"""

from __future__ import annotations

from typing import Any


class TurnPart:
    """The base of a part that leaves work for later turns. Each part sets `waiting` when it is made."""

    waiting: Any
    """What waits to be done in a turn; it is false if nothing does."""
