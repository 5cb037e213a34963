"""`kvitto promote DIR`: makes a warm standby's directory one that a broker starts on.

Exit codes: 0 done, 1 refused, and nothing has been changed. `main.main` calls it.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Any

from kvitto.base.errors import StoreError
from kvitto.base.table import printable
from kvitto.cluster.handshake import Refused
from kvitto.cluster.promotion import promote
from kvitto.store.disk import RealDisk


def add_parser(commands: Any) -> None:
    text = "end the role of a warm standby, so that `kvitto serve` starts a broker on its directory; stop the old broker first"
    parser = commands.add_parser("promote", help="make a broker's directory of a standby's", description=text)
    parser.add_argument("directory", type=Path, metavar="DIR", help="directory of `kvitto serve --follow`")
    parser.set_defaults(run=run)


def run(args: argparse.Namespace) -> int:
    try:
        epoch = promote(RealDisk(str(args.directory)))
    except (StoreError, Refused) as error:
        print(f"kvitto promote: {printable(str(error))}", file=sys.stderr)
        return 1
    print(f"{args.directory} leads (epoch {epoch}): `kvitto serve --data-dir {args.directory}` starts the broker")
    return 0
