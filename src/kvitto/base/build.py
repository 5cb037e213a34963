"""Which form of the data plane runs: compiled, or the same source interpreted."""

import importlib.util

PROBE = "kvitto.broker.queue"
"""A hot module: where it is compiled, all of them are, as setup.py builds all or none."""

HOW_TO_COMPILE = "install a C compiler (Debian: apt install gcc python3-dev) and install kvitto again"


def compiled() -> bool:
    """Whether the hot modules are extension modules; looks for the file, does not import it."""
    try:
        spec = importlib.util.find_spec(PROBE)
    except ModuleNotFoundError:
        return False
    return spec is not None and spec.origin is not None and spec.origin.endswith((".so", ".pyd"))
