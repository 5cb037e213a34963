"""Tests of clients and frameworks that bring no suite of their own; they run in an environment with these clients alone.

The broker under test is at COMPAT_HOST and COMPAT_PORT, with guest/guest and vhost `/`.
"""

import os
import uuid

import pytest

HOST, PORT = os.environ["COMPAT_HOST"], int(os.environ["COMPAT_PORT"])


@pytest.fixture
def url() -> str:
    return f"amqp://guest:guest@{HOST}:{PORT}/%2f"


@pytest.fixture
def name() -> str:
    """A name of its own for a queue or exchange."""
    return f"compat-{uuid.uuid4().hex[:12]}"
