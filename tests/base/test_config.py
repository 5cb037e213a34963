"""Reading a configuration file."""

from pathlib import Path

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
    ],
)
def test_a_mistake_is_named(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        read(written(tmp_path, text))


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.toml"):
        read(tmp_path / "none.toml")
