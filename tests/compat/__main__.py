"""`python -m tests.compat`: see run.py."""

import sys

from tests.compat.run import main

sys.exit(main())
