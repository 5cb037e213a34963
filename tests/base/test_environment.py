"""Settings from environment variables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvitto.base.config import TYPES, Config, ConfigError
from kvitto.base.environment import notes, read, variable
from kvitto.base.limits import MIB

EXAMPLES = {
    "host": ("10.0.0.1, ::1", "10.0.0.1"),
    "port": ("0", 0),
    "http_port": ("off", None),
    "log_json": ("Yes", True),
    "disk_free_limit": ("2MiB", 2 * MIB),
    "memory_limit": ("1048576", MIB),
    "data_dir": ("/data", Path("/data")),
}


def test_every_setting_has_a_variable_and_takes_the_type_of_its_field() -> None:
    for name, kinds in TYPES.items():
        usual = ("off", False) if bool in kinds else ("7", 7 if int in kinds else "7")
        text, value = EXAMPLES.get(name, usual)
        found = read({variable(name): text})[name]
        assert str(found) == str(value), name
    assert read({}) == {}


def test_several_hosts_stand_with_commas() -> None:
    config = Config(**read({"KVITTO_HOST": "10.0.0.1, ::1"}))
    assert config.hosts == ("10.0.0.1", "::1")
    assert read({"KVITTO_HOST": "::"})["more_hosts"] == ()


def test_an_empty_variable_is_none() -> None:
    """As files for containers have them: `KVITTO_DEFAULT_USER=${NAME}`."""
    assert read(dict.fromkeys(map(variable, TYPES), "")) == {}


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("KVITTO_PORT", "x", "KVITTO_PORT must be a whole number, not 'x'"),
        ("KVITTO_PORT", "9" * 5000, "KVITTO_PORT must be a whole number"),
        ("KVITTO_HTTP_PORT", "9" * 5000, 'KVITTO_HTTP_PORT: http_port must be 0 to 65535 or "off"'),
        ("KVITTO_MEMORY_LIMIT", "9" * 5000, "KVITTO_MEMORY_LIMIT: memory_limit: '9+' is no size"),
        ("KVITTO_PORT", "99999", "KVITTO_PORT: port must be 0 to 65535"),
        ("KVITTO_SYNC", "maybe", "KVITTO_SYNC must be on or off, not 'maybe'"),
        ("KVITTO_LOG_JSON", "2", "KVITTO_LOG_JSON must be on or off"),
        ("KVITTO_DISK_FREE_LIMIT", "much", "KVITTO_DISK_FREE_LIMIT: disk_free_limit: 'much' is no size"),
        ("KVITTO_HTTP_PORT", "no", 'KVITTO_HTTP_PORT: http_port must be 0 to 65535 or "off"'),
    ],
)
def test_a_mistake_is_named(name: str, text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        read({name: text})


def test_addresses_that_kubernetes_puts_there_are_passed_over() -> None:
    """A service named kvitto gives all pods of its namespace KVITTO_PORT."""
    environ = {"KVITTO_PORT": "tcp://10.96.0.7:5672", "KVITTO_PORT_5672_TCP": "tcp://10.96.0.7:5672"}
    environ |= {"KVITTO_SERVICE_HOST": "10.96.0.7", "KVITTO_SERVICE_PORT": "5672", "KVITTO_PORT_5672_TCP_PORT": "5672"}
    assert read(environ) == {}
    (note,) = notes(environ)
    assert note.startswith("KVITTO_PORT is passed over")


def test_a_misspelt_variable_is_told() -> None:
    environ: dict[str, Any] = {"KVITTO_DATADIR": "x", "KVITTO_URI": "x", "KVITTO_THEME": "dark", "KVITTO_PORT": "1"}
    assert notes(environ) == ["KVITTO_DATADIR is passed over: is it KVITTO_DATA_DIR?"]
