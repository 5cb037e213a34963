"""`kvitto`, whose nodes do not give a silent leader up: `python -m tests.cluster.patient serve ...`."""

import sys

from kvitto.cli import candidate, leaders
from kvitto.cli.main import main

candidate.SILENCE_S = leaders.PROMISE_S = 600.0  # type: ignore[attr-defined]

if __name__ == "__main__":
    sys.exit(main())
