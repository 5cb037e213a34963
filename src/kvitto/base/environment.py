"""Settings from environment variables. There is one rule: the name of a setting in capitals behind KVITTO_, for each
setting that a configuration file may have. `cli.options` reads them; `config.TYPES` says what there is.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Any

from kvitto.base.config import PORTS, TYPES, ConfigError, checked, spread_hosts

PREFIX = "KVITTO_"
CONFIG = "KVITTO_CONFIG"
"""The configuration file."""
OTHERS = (
    CONFIG,
    "KVITTO_URI",
    "KVITTO_URL",
    "KVITTO_SOURCE_PASS",
    "KVITTO_TARGET_PASS",
    "KVITTO_PURE",
    "KVITTO_ANNOTATE",
    "KVITTO_REQUIRE_COMPILED",
)
ADDRESS = re.compile(r"(tcp|udp)://\S+:\d+")
"""What Kubernetes puts into NAME_PORT for a service of that name, and Docker for a link."""
ALIKE = 0.8
"""The likeness above which an unknown variable is a misspelt one. Others may be for other programs."""
DIGITS_MAX = 20
"""More digits than any number that is a setting has."""
TRUE, FALSE = ("true", "on", "yes", "1"), ("false", "off", "no", "0")


def variable(name: str) -> str:
    """Return the environment variable of a setting."""
    return f"{PREFIX}{name.upper()}"


def read(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings as arguments of `Config`. An empty variable is one that is not set. Raise ConfigError."""
    settings: dict[str, Any] = {}
    for name in TYPES:
        text = environ.get(variable(name), "")
        if text and not is_address(name, text):
            settings[name] = checked(variable(name), name, value_of(name, text))[1]
    spread_hosts(settings)
    return settings


def value_of(name: str, text: str) -> Any:
    """Return the value of a setting, from the text of its variable. Raise ConfigError."""
    kinds = TYPES[name]
    if bool in kinds:
        if text.lower() not in TRUE + FALSE:
            raise ConfigError(f"{variable(name)} must be on or off, not {text!r}")
        return text.lower() in TRUE
    if int in kinds and text.isascii() and text.isdigit() and len(text) <= DIGITS_MAX:
        return int(text)
    if kinds == (int,):
        raise ConfigError(f"{variable(name)} must be a whole number, not {text!r}")
    if list in kinds and "," in text:
        return [part.strip() for part in text.split(",") if part.strip()]
    return text


def is_address(name: str, text: str) -> bool:
    return name in PORTS and ADDRESS.fullmatch(text) is not None


def notes(environ: Mapping[str, str]) -> list[str]:
    """Return sentences about variables that are passed over, although they may have been meant."""
    known = [variable(name) for name in TYPES]
    found = [
        f"{variable(name)} is passed over: {environ[variable(name)]!r} is an address that Kubernetes or Docker has put there"
        for name in TYPES
        if is_address(name, environ.get(variable(name), ""))
    ]
    for name in sorted(environ):
        if name.startswith(PREFIX) and name not in known and name not in OTHERS:
            found += [
                f"{name} is passed over: is it {one}?" for one in difflib.get_close_matches(name, known, 1, ALIKE)
            ]
    return found
