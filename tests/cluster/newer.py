"""`kvitto` of a later time, which knows one more level: `python -m tests.cluster.newer serve ...`."""

import sys

from kvitto.cli.main import main
from kvitto.cluster import levels

levels.LEVEL += 1

if __name__ == "__main__":
    sys.exit(main())
