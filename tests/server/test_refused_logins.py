"""What the log says of a login that was refused."""

from __future__ import annotations

import pytest

from tests.protocol.sansio import ProtocolHarness


@pytest.mark.parametrize(
    ("user", "loopback", "hint"), [("guest", False, True), ("guest", True, False), ("ada", False, False)]
)
def test_only_users_who_may_not_come_from_elsewhere_are_told_so(
    user: str, loopback: bool, hint: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """W7"""
    connection = ProtocolHarness().wire(login=False).connection
    connection.loopback = loopback
    connection.why_refused(user)
    assert f"login of user '{user}' refused" in caplog.text
    assert ("only from loopback" in caplog.text) is hint
