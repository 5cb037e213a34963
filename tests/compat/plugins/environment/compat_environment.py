"""Writes the file from which aiorabbit's tests read where the broker is: their own script makes it with containers.

They look for `build/test-environment` below the directory in which they run, which is that of the suite's sources.
"""

import os
from pathlib import Path

_file = Path("build/test-environment")
_file.parent.mkdir(exist_ok=True)
_file.write_text(f"export RABBITMQ_URI={os.environ['RABBITMQ_URI']}\n")
