"""What `kvitto serve` can be told, as one immutable value; reading a file or arguments is the caller's business."""

import tomllib
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any


class ConfigError(ValueError):
    """A setting is unknown, has the wrong type or cannot be; the text names it."""


PORT_MAX = 65535
OFF = "off"
"""What `http_port` is for people where it is None here."""


@dataclass(frozen=True, slots=True)
class Config:
    """One setting per line, named as on the command line with `_` for `-`."""

    data_dir: Path = Path("kvitto-data")
    host: str = "127.0.0.1"
    port: int = 5672
    """0 picks a free port."""
    http_port: int | None = 15672
    """None = no HTTP listener; 0 picks a free port."""
    http_host: str = ""
    """Empty: `host`."""
    tls_port: int | None = None
    tls_cert: Path | None = None
    tls_key: Path | None = None
    sync: bool = True
    """False confirms before the disk has the message: it then survives a crash of the process, not of the machine."""
    log_json: bool = False

    def __post_init__(self) -> None:
        if not self.http_host:
            object.__setattr__(self, "http_host", self.host)
        for name in PORTS:
            port = getattr(self, name)
            if port is not None and not 0 <= port <= PORT_MAX:
                raise ConfigError(f"{option(name)} must be 0 to {PORT_MAX}, not {port}")
        if self.tls_port is not None and (self.tls_cert is None or self.tls_key is None):
            raise ConfigError("--tls-port needs --tls-cert and --tls-key")


def option(name: str) -> str:
    """A setting as it is named on the command line."""
    return f"--{name.replace('_', '-')}"


PORTS = ("port", "http_port", "tls_port")
TYPES: dict[str, tuple[type, ...]] = {
    "data_dir": (str,),
    "host": (str,),
    "port": (int,),
    "http_port": (int, str),
    "http_host": (str,),
    "tls_port": (int,),
    "tls_cert": (str,),
    "tls_key": (str,),
    "sync": (bool, str),
    "log_json": (bool,),
}
PATHS = {"data_dir", "tls_cert", "tls_key"}


def read(path: Path) -> dict[str, Any]:
    """Settings of a TOML file, checked, ready to be passed to `Config`; hyphens in names are allowed."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"cannot read the configuration {path}: {error}") from error
    return dict(checked(path, key, value) for key, value in table.items())


def checked(path: Path, key: str, value: object) -> tuple[str, Any]:
    """One setting as (field name, value of the field's type)."""
    name = key.replace("-", "_")
    if name not in TYPES:
        known = ", ".join(field.name for field in fields(Config))
        raise ConfigError(f"{path}: unknown setting {key!r}; known are {known}")
    # bool is an int for Python, not for people
    if not isinstance(value, TYPES[name]) or (isinstance(value, bool) and bool not in TYPES[name]):
        wanted = " or ".join(kind.__name__ for kind in TYPES[name])
        raise ConfigError(f"{path}: {key} must be {wanted}, not {type(value).__name__}")
    if name == "sync" and isinstance(value, str):
        if value not in ("on", "off"):
            raise ConfigError(f'{path}: sync must be true, false, "on" or "off", not {value!r}')
        return name, value == "on"
    if name == "http_port" and value == OFF:
        return name, None
    if name in PORTS and not (isinstance(value, int) and 0 <= value <= PORT_MAX):
        wanted = f'0 to {PORT_MAX} or "{OFF}"' if name == "http_port" else f"0 to {PORT_MAX}"
        raise ConfigError(f"{path}: {key} must be {wanted}, not {value!r}")
    return name, Path(str(value)) if name in PATHS else value
