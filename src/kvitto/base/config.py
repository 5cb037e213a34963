"""The settings of `kvitto serve` as one immutable value. The caller reads a configuration file or arguments."""

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import combinations
from pathlib import Path
from typing import Any

from kvitto.base import limits
from kvitto.base.limits import MIB, NAME_MAX, PASSWORD_MAX
from kvitto.base.log import LEVELS
from kvitto.base.process import memory_bytes


class ConfigError(ValueError):
    """A setting is unknown, has the wrong type or an invalid value; the text names it."""


PORT_MAX = 65535
OFF = "off"
"""The text that people write for an `http_port` of None."""
UNITS = {"": 1, "b": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
UNITS |= {f"{unit}ib": size for unit, size in UNITS.items() if size > 1}
UNITS |= {"kb": 10**3, "mb": 10**6, "gb": 10**9, "tb": 10**12}
MEMORY_SHARE = 0.4
"""The default share of the available memory. Waiting messages are on disk, so a broker that needs more has a peer that
does not read. The rest is for the file cache, which makes reading a backlog fast, and for other programs."""
GUEST = "guest"
"""The user of a new data directory without a `default_user`. It may log in from this machine only."""
LOGIN_FROM = ("distinguished_name", "common_name", "subject_alternative_name")


@dataclass(frozen=True, slots=True)
class Config:
    """One setting per line, named as on the command line with `_` for `-`."""

    data_dir: Path = Path("kvitto-data")
    host: str = "127.0.0.1"
    more_hosts: tuple[str, ...] = ()
    """Further addresses to listen on, for AMQP and, without an `http_host`, for HTTP."""
    port: int = 5672
    """0 picks a free port."""
    http_port: int | None = 15672
    """None means no HTTP listener; 0 picks a free port."""
    http_host: str = ""
    """An empty text means `host` and `more_hosts`."""
    http_hosts: tuple[str, ...] = field(init=False, default=())
    """All addresses for HTTP, computed from the other settings."""
    tls_port: int | None = None
    https_port: int | None = None
    """HTTP over TLS, with the files of AMQP over TLS. None means no such listener; 0 picks a free port."""
    tls_cert: Path | None = None
    tls_key: Path | None = None
    tls_ca: Path | None = None
    """Authorities of client certificates: a client may log in (EXTERNAL) with a certificate that one of them has signed."""
    tls_login_from: str = LOGIN_FROM[0]
    """The part of a client's certificate that is the user's name."""
    disk_free_limit: int = 50 * MIB
    """Bytes; publishers wait while less is free."""
    memory_limit: int = 0
    """Bytes of resident memory above which publishers wait; 0 means MEMORY_SHARE of the available memory."""
    sync: bool = True
    """False confirms a message before it is on disk: it then survives a crash of the process, but not of the machine."""
    log_json: bool = False
    log_level: str = "info"
    default_user: str = ""
    """The user that a new data directory gets in place of guest: an administrator who may log in from everywhere."""
    default_pass: str = field(default="", repr=False)
    """Its password. This is no option of the command line, which other users of the machine can read."""
    default_pass_file: Path | None = None
    """A file whose first line is the password."""
    default_vhost: str = "/"
    """The virtual host of a new data directory."""
    definitions: Path | None = None
    """A file of definitions that is imported at each start, before the broker listens."""
    foreign_hashes: bool = True
    """Whether password hashes of other brokers are taken, and can be used for a first login."""
    max_connections: int | None = None
    """None means as many as there are file descriptors for."""
    max_channels: int = limits.CHANNEL_MAX
    """The maximum per connection."""
    max_queues: int | None = None
    """The maximum in all virtual hosts; None means as many as there are file descriptors for."""
    followers: str = ""
    """The address HOST:PORT on which followers are accepted, which keep a copy of the data directory; "" accepts none."""
    follow: str = ""
    """The address HOST:PORT of the broker that this process follows; "" means that it is a broker itself."""
    cluster_key: Path | None = None
    """A file with the key that a broker and its followers share."""
    cluster_tls_cert: Path | None = None
    cluster_tls_key: Path | None = None
    cluster_tls_ca: Path | None = None
    """With these three a broker and its followers encrypt their connections, and each shows the other its certificate."""
    etcd: str = ""
    """The addresses of the etcd by which the nodes of a cluster elect their leader, separated by commas; "" means no elections."""
    etcd_ca: Path | None = None
    """The authorities of the certificates of an etcd whose addresses begin with https; None means those that this machine trusts."""
    etcd_cert: Path | None = None
    etcd_key: Path | None = None
    """The certificate that is shown to etcd, and its key."""
    etcd_user_file: Path | None = None
    """A file whose first line is a user of etcd and the password, USER:PASSWORD."""
    cluster: str = "kvitto"
    """The name of the cluster in etcd."""
    advertise: str = ""
    """The address HOST:PORT at which other nodes reach `followers`, if that is another one."""
    min_in_sync: int = 1
    """How many nodes have synced what is confirmed: this broker and so many followers less one. With fewer, publishers wait."""
    limits: Mapping[str, float] = field(default_factory=dict)
    """Values of `kvitto.base.limits.Limits` that differ from the defaults, by name."""
    sources: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    """Where each setting that is no default comes from: an option, an environment variable or a file. For people."""

    def __post_init__(self) -> None:
        if not all(self.hosts):  # the system would use all its addresses for an empty one
            raise ConfigError("--host is empty: 0.0.0.0 stands for all addresses of IPv4, :: for all")
        object.__setattr__(self, "http_hosts", (self.http_host,) if self.http_host else self.hosts)
        object.__setattr__(self, "http_host", self.http_hosts[0])
        for name in PORTS:
            port = getattr(self, name)
            if port is not None and not 0 <= port <= PORT_MAX:
                raise ConfigError(f"{option(name)} must be 0 to {PORT_MAX}, not {port}")
        for name in COUNTS:
            count = getattr(self, name)
            most = COUNTS[name]
            if count is not None and not 1 <= count <= most:
                raise ConfigError(f"{option(name)} must be 1 to {most}, not {count}")
        for name in ("tls_port", "https_port"):
            if getattr(self, name) is not None and (self.tls_cert is None or self.tls_key is None):
                raise ConfigError(f"{option(name)} needs --tls-cert and --tls-key")
        for name in ("tls_cert", "tls_key", "tls_ca"):
            if getattr(self, name) is not None and not self.uses_tls:
                raise ConfigError(f"{option(name)} needs --tls-port or --https-port")
        if self.tls_login_from not in LOGIN_FROM:
            raise ConfigError(f"--tls-login-from must be one of {', '.join(LOGIN_FROM)}, not {self.tls_login_from}")
        if self.log_level not in LEVELS:
            raise ConfigError(f"--log-level must be one of {', '.join(LEVELS)}, not {self.log_level}")
        self._check_first_user()
        self._check_followers()
        self._check_ports()
        if self.disk_free_limit < 0 or self.memory_limit < 0:
            raise ConfigError("--disk-free-limit and --memory-limit must be 0 or more")
        try:
            limits.of(self.limits)
        except ValueError as error:
            raise ConfigError(f"[limits]: {error}") from None
        if not self.memory_limit:
            object.__setattr__(self, "memory_limit", int(MEMORY_SHARE * memory_bytes()))

    def _check_first_user(self) -> None:
        for name, most in (("default_user", NAME_MAX), ("default_vhost", NAME_MAX), ("default_pass", PASSWORD_MAX)):
            if len(getattr(self, name).encode(errors="surrogateescape")) > most:
                raise ConfigError(f"{option(name)} is longer than {most} bytes")
        if not self.default_vhost:
            raise ConfigError("--default-vhost is empty: / is the usual one")
        if self.default_user == GUEST:
            raise ConfigError(f"--default-user must not be {GUEST}, who may log in from this machine only")
        if self.default_pass and self.default_pass_file is not None:
            raise ConfigError("the password of --default-user is given twice, as a text and as a file")
        if bool(self.default_user) != bool(self.default_pass or self.default_pass_file is not None):
            text = "--default-user and its password belong together: --default-pass-file, or KVITTO_DEFAULT_PASS"
            raise ConfigError(text)

    def _check_followers(self) -> None:
        for name in ("followers", "follow", "advertise"):
            text = getattr(self, name)
            if text:
                try:
                    address(text)
                except ValueError as error:
                    raise ConfigError(f"{option(name)}: {error}") from None
        if self.etcd and self.follow:
            raise ConfigError("--etcd and --follow exclude each other: the cluster knows whom to follow")
        if self.etcd and not self.followers:
            raise ConfigError("--etcd needs --followers, where the other nodes connect when this one leads")
        if self.etcd and self.min_in_sync > 1:
            raise ConfigError("--etcd and --min-in-sync exclude each other: `kvitto cluster init` sets the minimum")
        if self.etcd and (self.advertised[0] in ("0.0.0.0", "::") or not self.advertised[1]):
            raise ConfigError("--advertise HOST:PORT is needed: other nodes have to know one address and one port")
        if self.followers and self.follow:
            raise ConfigError("--followers and --follow exclude each other: a follower has no followers")
        if (self.followers or self.follow) and self.cluster_key is None:
            raise ConfigError(f"--{'followers' if self.followers else 'follow'} needs --cluster-key")
        if self.cluster_key is not None and not (self.followers or self.follow):
            raise ConfigError("--cluster-key needs --followers or --follow")
        for name in NODE_TLS:
            if getattr(self, name) is not None and not (self.followers or self.follow):
                raise ConfigError(f"{option(name)} needs --followers or --follow")
            if getattr(self, name) is None and any(getattr(self, other) is not None for other in NODE_TLS):
                raise ConfigError(
                    f"{option(name)} is missing: TLS between nodes needs {', '.join(map(option, NODE_TLS))}"
                )
        for name in ("etcd_ca", "etcd_cert", "etcd_key", "etcd_user_file"):
            if getattr(self, name) is not None and not self.etcd:
                raise ConfigError(f"{option(name)} needs --etcd")
        if self.min_in_sync > 1 and not self.followers:
            raise ConfigError("--min-in-sync needs --followers: a broker is in sync with itself")
        if self.followers and not self.sync:
            raise ConfigError("--followers needs --sync on: followers sync where the broker does")

    def _check_ports(self) -> None:
        """Refuse one port for two listeners. Raise ConfigError."""
        amqp, http = set(self.hosts), set(self.http_hosts)
        host, port = address(self.followers) if self.followers else ("", None)
        listeners: list[tuple[str, set[str], int | None]] = [
            ("--port", amqp, self.port),
            ("--tls-port", amqp, self.tls_port),
            ("--http-port", http, self.http_port),
            ("--https-port", http, self.https_port),
            ("--followers", {host}, port),
        ]
        for (one, hosts, port), (other, others, same) in combinations(listeners, 2):
            if port and port == same and hosts & others:
                raise ConfigError(f"{one} and {other} have the same port, {port}: choose another one")

    @property
    def advertised(self) -> tuple[str, int]:
        """Host and port at which the other nodes of a cluster reach this one."""
        return address(self.advertise or self.followers)

    def first_password(self) -> str:
        """Return the password of `default_user`. Raise ConfigError if the file with it cannot be used."""
        if self.default_pass_file is None:
            return self.default_pass
        return password_in(self.default_pass_file, "--default-pass-file")

    @property
    def uses_tls(self) -> bool:
        return self.tls_port is not None or self.https_port is not None

    @property
    def hosts(self) -> tuple[str, ...]:
        """All addresses for AMQP."""
        return self.host, *self.more_hosts


def password_in(file: Path, option: str) -> str:
    """Return the password in the first line of a file. Raise ConfigError, which names the option that gave the file."""
    try:
        with open(file, encoding="utf-8", errors="surrogateescape") as opened:
            password = opened.read(PASSWORD_MAX + 2).partition("\n")[0].rstrip("\r")
    except OSError as error:
        raise ConfigError(f"{option} {file}: {error.strerror or error}") from error
    if not 1 <= len(password.encode(errors="surrogateescape")) <= PASSWORD_MAX:
        raise ConfigError(f"{option} {file}: the first line must have 1 to {PASSWORD_MAX} bytes")
    return password


def addresses(texts: list[str]) -> bool:
    """Return whether each of these texts may be one address. An empty text would mean no address, and a comma separates two."""
    return all(text and "," not in text for text in texts)


def option(name: str) -> str:
    """Return the name of a setting on the command line."""
    return f"--{name.replace('_', '-')}"


def address(text: str) -> tuple[str, int]:
    """Return the host and the port of a text like "10.0.0.1:5690" or "[::1]:5690". Raise ValueError for another text."""
    host, colon, port = text.rpartition(":")
    host = host[1:-1] if host.startswith("[") and host.endswith("]") else host
    if not colon or not host or "/" in host or not (port.isascii() and port.isdigit() and int(port) <= PORT_MAX):
        raise ValueError(f"{text!r} is no address: give HOST:PORT")
    return host, int(port)


def size(text: str) -> int:
    """Return the number of bytes in a text like "1048576", "50MiB" or "2GB". Raise ValueError for another text."""
    match = re.fullmatch(r"(\d{1,20})\s*([a-z]*)", text.strip().lower())
    if match is None or match[2] not in UNITS:
        raise ValueError(f"{text!r} is no size: give bytes, or a number with KiB, MiB, GiB, KB, MB, GB")
    return int(match[1]) * UNITS[match[2]]


def memory(text: str) -> int:
    """Return the number of bytes of a size, or of a share like "40%" of the available memory. Raise ValueError for another text."""
    number, percent, _ = text.strip().partition("%")
    if not percent:
        try:
            return size(text)
        except ValueError as error:
            raise ValueError(f"{error}, or 1% to 100% of the memory") from None
    if not re.fullmatch(r"0*([1-9]\d?|100)%", text.strip()):
        raise ValueError(f"{text!r} is no share of the memory: 1% to 100%, or a size like 2GiB")
    return int(number) * memory_bytes() // 100


def place(text: str) -> Path:
    """Return the path that a text names. Raises ValueError for an empty text, which would mean the current directory."""
    if not text:
        raise ValueError("the path is empty: . stands for the current directory")
    return Path(text)


def nearest(name: str, known: Iterable[str]) -> str:
    """Return the end of a message about an unknown name: the name that was probably meant, and all known names."""
    names = [each.replace("_", "-") for each in known]
    alike = difflib.get_close_matches(name.replace("_", "-"), names, 1)
    return f"{f'; is it {alike[0]}?' if alike else ';'} known are {', '.join(names)}"


NODE_TLS = ("cluster_tls_cert", "cluster_tls_key", "cluster_tls_ca")
COUNTS = {"max_connections": 1 << 31, "max_channels": limits.CHANNEL_MAX, "max_queues": 1 << 31, "min_in_sync": 17}
PORTS = ("port", "http_port", "tls_port", "https_port")
TYPES: dict[str, tuple[type, ...]] = {
    "data_dir": (str,),
    "host": (str, list),
    "port": (int,),
    "http_port": (int, str),
    "http_host": (str,),
    "tls_port": (int,),
    "https_port": (int,),
    "tls_cert": (str,),
    "tls_key": (str,),
    "tls_ca": (str,),
    "tls_login_from": (str,),
    "disk_free_limit": (int, str),
    "memory_limit": (int, str),
    "sync": (bool, str),
    "log_json": (bool,),
    "log_level": (str,),
    "default_user": (str,),
    "default_pass": (str,),
    "default_pass_file": (str,),
    "default_vhost": (str,),
    "definitions": (str,),
    "foreign_hashes": (bool, str),
    "max_connections": (int,),
    "max_channels": (int,),
    "max_queues": (int,),
    "followers": (str,),
    "follow": (str,),
    "cluster_key": (str,),
    "cluster_tls_cert": (str,),
    "cluster_tls_key": (str,),
    "cluster_tls_ca": (str,),
    "etcd": (str, list),
    "etcd_ca": (str,),
    "etcd_cert": (str,),
    "etcd_key": (str,),
    "etcd_user_file": (str,),
    "cluster": (str,),
    "advertise": (str,),
    "min_in_sync": (int,),
}
SWITCHES = ("sync", "foreign_hashes")
"""Settings that are on or off, in words."""
PATHS = {"data_dir", "tls_cert", "tls_key", "tls_ca", "default_pass_file", "definitions", "cluster_key", *NODE_TLS}
PATHS |= {"etcd_ca", "etcd_cert", "etcd_key", "etcd_user_file"}
READ = {"disk_free_limit": size, "memory_limit": memory} | dict.fromkeys(PATHS, place)
"""The functions that turn the text of a setting into its value, for settings whose value is not the text itself."""


def read(path: Path) -> dict[str, Any]:
    """Read the settings of a TOML file, check them, and return them as arguments of `Config`. Names may have hyphens."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"cannot read the configuration {path}: {error.strerror or error}") from error
    except (UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ConfigError(f"cannot read the configuration {path}: {error}") from error
    found = table.pop("limits", {})
    if not isinstance(found, dict):
        raise ConfigError(f"{path}: limits must be a table, [limits], not {type(found).__name__}")
    settings = dict(checked(path, key, value) for key, value in table.items())
    spread_hosts(settings)
    return settings | {"limits": {key.replace("-", "_"): limit(path, key, value) for key, value in found.items()}}


def spread_hosts(settings: dict[str, Any]) -> None:
    """Replace several hosts by the first one and the others. No others means none, whatever another source has said."""
    given = settings.get("host")
    if given is not None:
        settings["host"], *more = (given,) if isinstance(given, str) else given
        settings["more_hosts"] = tuple(more)


def limit(path: Path, key: str, value: object) -> float:
    """Return the value of an entry of the table [limits]: a number, or a size if the limit counts bytes."""
    name = key.replace("-", "_")
    if name not in limits.SETTABLE:
        raise ConfigError(f"{path}: unknown limit {key!r}{nearest(key, limits.SETTABLE)}")
    if isinstance(value, str):
        try:
            return size(value)
        except ValueError as error:
            raise ConfigError(f"{path}: {key}: {error}") from None
    if isinstance(value, bool) or not isinstance(value, int if not name.endswith("_s") else int | float):
        raise ConfigError(f"{path}: {key} must be a number, not {value!r}")
    return value


def checked(path: Path | str, key: str, value: object) -> tuple[str, Any]:
    """Return one setting as (field name, value of the field's type). `path` says where it was found."""
    name = key.replace("-", "_")
    if name not in TYPES:
        raise ConfigError(f"{path}: unknown setting {key!r}{nearest(key, (*TYPES, 'limits'))}")
    # in Python bool is an int, but not for people
    if not isinstance(value, TYPES[name]) or (isinstance(value, bool) and bool not in TYPES[name]):
        wanted = " or ".join(kind.__name__ for kind in TYPES[name])
        raise ConfigError(f"{path}: {key} must be {wanted}, not {type(value).__name__}")
    if name in SWITCHES and isinstance(value, str):
        if value not in ("on", "off"):
            raise ConfigError(f'{path}: {key} must be true, false, "on" or "off", not {value!r}')
        return name, value == "on"
    if name == "http_port" and value == OFF:
        return name, None
    if isinstance(value, list):
        if not value or not all(isinstance(each, str) for each in value) or (name == "etcd" and not addresses(value)):
            raise ConfigError(f"{path}: {key} must be an address, or a list of addresses, not {value!r}")
        return name, ",".join(value) if name == "etcd" else tuple(value)
    if name in READ and isinstance(value, str):
        try:
            return name, READ[name](value)
        except ValueError as error:
            raise ConfigError(f"{path}: {key}: {error}") from None
    if name in PORTS and not (isinstance(value, int) and 0 <= value <= PORT_MAX):
        wanted = f'0 to {PORT_MAX} or "{OFF}"' if name == "http_port" else f"0 to {PORT_MAX}"
        raise ConfigError(f"{path}: {key} must be {wanted}, not {value!r}")
    return name, value
