"""Who may read a file with a secret."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kvitto.base import private
from kvitto.base.config import ConfigError


def found(mode: int, owner: int) -> os.stat_result:
    return os.stat_result((0o100000 | mode, 0, 0, 1, owner, 0, 0, 0, 0, 0))


@pytest.mark.parametrize(
    ("mode", "owner", "user", "good"),
    [
        (0o600, 1000, 1000, True),
        (0o400, 1000, 1000, True),
        (0o640, 1000, 1000, False),
        (0o604, 1000, 1000, False),
        (0o610, 1000, 1000, False),
        (0o440, 0, 10001, True),  # a secret that Kubernetes has mounted for a group
        (0o460, 0, 10001, False),
        (0o444, 0, 10001, False),
        (0o600, 0, 0, True),
        (0o640, 0, 0, False),
        (0o440, 1001, 1000, False),
    ],
)
def test_a_secret_is_its_users_alone_and_one_of_roots_may_be_its_groups(
    mode: int, owner: int, user: int, good: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    try:
        private.refuse_readable("--key", Path("file"), found(mode, owner))
    except ConfigError as error:
        assert not good and "--key file can be read by other users of this machine: chmod 600 file" in str(error)
    else:
        assert good


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--key \S+none: No such file or directory"):
        private.read("--key", tmp_path / "none", 10)
    file = tmp_path / "file"
    file.touch(0o600)
    file.write_bytes(b"0123456789abcdef")
    assert private.read("--key", file, 10) == b"0123456789"
