"""The base of those parts of the broker that rarely have work for a turn.

Each turn asks all of them whether they have any, and the answer is nearly always no. So the base is a class of C when compiled, and the
turn reads its field without looking up a name (docs/adr/0023).
"""

from __future__ import annotations

from typing import Any


class TurnPart:
    """A part of the broker that leaves work for later turns. Each part sets `waiting` in its constructor."""

    waiting: Any
    """What waits to be done in a turn; it is false if nothing does."""
