"""Reading a configuration file."""

import re
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from kvitto.base import limits
from kvitto.base.config import Config, ConfigError, read
from kvitto.base.limits import MIB, Limits


def written(folder: Path, text: str) -> Path:
    path = folder / "kvitto.toml"
    path.write_text(text)
    return path


def test_settings_take_the_types_of_their_fields(tmp_path: Path) -> None:
    text = 'data-dir = "d"\nport = 0\nsync = "off"\nlog_json = true\n'
    config = Config(**read(written(tmp_path, text)))
    assert config == Config(data_dir=Path("d"), port=0, sync=False, log_json=True)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("prot = 1", "unknown setting 'prot'; is it port\\? known are data-dir"),
        ('port = "1"', "port must be int, not str"),
        ("xyz = 1", "unknown setting 'xyz'; known are data-dir"),
        ('data-dir = ""', "data-dir: the path is empty"),
        ('tls-cert = ""', "tls-cert: the path is empty"),
        ("port = true", "port must be int, not bool"),
        ('sync = "maybe"', "sync must be"),
        ("port = ", "cannot read the configuration"),
        ("port = 99999", "port must be 0 to 65535, not 99999"),
        ("tls-port = -1", "tls-port must be 0 to 65535, not -1"),
        ('max-queues = "many"', "max-queues must be int, not str"),
        ("limits = 3", "limits must be a table"),
        ("[limits]\nbody = 1", "unknown limit 'body'; is it body-max\\? known are handshake-s"),
        ("[limits]\nbody-max = true", "body-max must be a number, not True"),
        ("[limits]\nunacked-max = 1.5", "unacked-max must be a number, not 1.5"),
        ('[limits]\nbody-max = "much"', "body-max: 'much' is no size"),
        ("http_port = 65536", 'http_port must be 0 to 65535 or "off", not 65536'),
        ('http_port = "no"', "http_port must be 0 to 65535 or \"off\", not 'no'"),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        read(written(tmp_path, text))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """Once."""
    with pytest.raises(
        ConfigError, match=r"^cannot read the configuration [^:]*none\.toml: No such file or directory$"
    ):
        read(tmp_path / "none.toml")


def test_http_can_be_off_or_elsewhere(tmp_path: Path) -> None:
    config = Config(**read(written(tmp_path, 'http_port = "off"\nhttp-host = "10.0.0.1"')))
    assert (config.http_port, config.http_host) == (None, "10.0.0.1")


@pytest.mark.parametrize(
    ("settings", "says"),
    [
        ({"port": 70000}, "--port must be 0 to 65535, not 70000"),
        ({"http_port": -1}, "--http-port must be 0 to 65535, not -1"),
        ({"max_connections": 0}, "--max-connections must be 1 to"),
        ({"max_channels": 2048}, "--max-channels must be 1 to 2047, not 2048"),
        ({"tls_port": 5671, "tls_cert": Path("c")}, "--tls-port needs --tls-cert and --tls-key"),
        ({"tls_cert": Path("c"), "tls_key": Path("k")}, "--tls-cert needs --tls-port"),
        ({"host": ""}, "--host is empty: 0.0.0.0 stands for all"),
        ({"log_level": "trace"}, "--log-level must be one of debug, info, warning, error, not trace"),
        ({"default_user": "ops"}, "--default-user and its password belong together"),
        ({"default_pass": "x"}, "--default-user and its password belong together"),
        ({"default_user": "guest", "default_pass": "x"}, "must not be guest, who may log in from this machine only"),
        ({"default_user": "o", "default_pass": "x", "default_pass_file": Path("f")}, "is given twice"),
        ({"default_user": "o" * 256, "default_pass": "x"}, "--default-user is longer than 255 bytes"),
        ({"default_vhost": ""}, "--default-vhost is empty"),
    ],
)
def test_what_cannot_be_is_no_configuration(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Config(**settings)


def test_limits_have_a_table_of_their_own(tmp_path: Path) -> None:
    text = 'port = 1\n[limits]\nbody-max = "16MiB"\nunacked_max = 10\nhandshake-s = 2.5\n'
    config = Config(**read(written(tmp_path, text)))
    assert (config.port, config.limits) == (1, {"body_max": 16 * MIB, "unacked_max": 10, "handshake_s": 2.5})


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"body_max": 1000}, "body_max must be 131072 to 536870912, not 1000"),
        ({"body_max": 512 * MIB}, "body_max is 536870912, more than unfinished_max, 268435456, which it counts in"),
        ({"buffered_max": 300 * MIB}, "transactions_max is 536870912, more than buffered_max"),
        ({"body": 1}, "unknown limit 'body'"),
        ({"body_max": "16MiB"}, "body_max must be a whole number, not '16MiB'"),
        ({"body_max": 1e6}, "body_max must be a whole number, not 1000000.0"),
        ({"consumers_max": True}, "consumers_max must be a whole number, not True"),
        ({"handshake_s": "5"}, "handshake_s must be a number, not '5'"),
    ],
)
def test_limits_that_cannot_be(values: dict[str, Any], says: str) -> None:
    """As the table of a configuration and `kvitto.Broker` may give them."""
    with pytest.raises(ConfigError, match=says):
        Config(limits=values)


def test_all_limits_that_can_be_set_are_there_and_are_read() -> None:
    assert {field.name for field in fields(Limits)} == limits.SETTABLE.keys()
    here = Path(limits.__file__)
    sources = [path.read_text() for path in here.parents[1].rglob("*.py") if path != here]
    for name in limits.SETTABLE:  # a route names the limit of its body
        assert any(re.search(rf'(limits|allowed)\.{name}\b|"{name}"', text) for text in sources), name
