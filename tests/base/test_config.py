"""Reading a configuration file."""

from pathlib import Path
from typing import Any

import pytest

from kvitto.base.config import Config, ConfigError, read


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
        ("prot = 1", "unknown setting 'prot'; known are data_dir"),
        ('port = "1"', "port must be int, not str"),
        ("port = true", "port must be int, not bool"),
        ('sync = "maybe"', "sync must be"),
        ("port = ", "cannot read the configuration"),
        ("port = 99999", "port must be 0 to 65535, not 99999"),
        ("tls-port = -1", "tls-port must be 0 to 65535, not -1"),
        ('max-queues = "many"', "max-queues must be int, not str"),
        ("http_port = 65536", 'http_port must be 0 to 65535 or "off", not 65536'),
        ('http_port = "no"', "http_port must be 0 to 65535 or \"off\", not 'no'"),
    ],
)
def test_a_mistake_is_named(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        read(written(tmp_path, text))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml"):
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
    ],
)
def test_what_cannot_be_is_no_configuration(settings: dict[str, Any], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        Config(**settings)
