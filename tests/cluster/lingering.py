"""`kvitto`, whose end waits ten minutes for clients and followers that do not answer: `python -m tests.cluster.lingering serve ...`."""

import sys

from kvitto.cli.main import main
from kvitto.server import followers, server

server.DRAIN_S = followers.FINISH_S = 600.0

if __name__ == "__main__":
    sys.exit(main())
