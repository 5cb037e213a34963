"""Gives a suite the transport kvitto:// of this checkout, and takes it for pyamqp:// too, which kombu's suite names.

The suite's environment has kombu and not Kvitto: hence a `sitecustomize`, which Python imports at start when this
directory is on PYTHONPATH.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[4] / "src"))

from kombu.transport import TRANSPORT_ALIASES

from kvitto_checkout import install

install()
TRANSPORT_ALIASES["kvitto"] = TRANSPORT_ALIASES["pyamqp"] = "kvitto.kombu.transport:Transport"
