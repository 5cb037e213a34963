"""`python -m kvitto` is the `kvitto` command."""

import sys

from kvitto.cli.main import main

sys.exit(main())
