"""SIGINT in processes that tests start."""

from __future__ import annotations

import signal


def heed_interrupts() -> None:
    """Take SIGINT, which a shell has the programs in its background ignore, and these hand on to their children. For `preexec_fn`."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
