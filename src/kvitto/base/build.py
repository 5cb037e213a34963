"""Which form of the data plane runs: compiled, or the same source interpreted."""

import importlib.util
import os
import sys
from pathlib import Path

PROBE = "kvitto.broker.queues.queue"
"""A hot module. If it is compiled, all of them are, because setup.py builds all or none."""

CHECKOUT = Path(__file__).parents[3]


def compiled() -> bool:
    """Return whether the hot modules are extension modules. This looks for the file and does not import it."""
    try:
        spec = importlib.util.find_spec(PROBE)
    except ModuleNotFoundError:
        return False
    return spec is not None and spec.origin is not None and spec.origin.endswith((".so", ".pyd"))


def how_to_compile() -> str:
    """Return what to do to get the compiled form; "" if kvitto_checkout has said so already."""
    if getattr(sys.modules.get("kvitto_checkout"), "told", False):
        return ""
    if not (CHECKOUT / "setup.py").exists():
        return "install a C compiler (Debian: apt install gcc python3-dev) and install kvitto again"
    if os.environ.get("KVITTO_PURE", "0") not in ("", "0"):
        return "unset KVITTO_PURE"
    return "run `make build`"
