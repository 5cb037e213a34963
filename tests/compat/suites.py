"""Which suites there are: where each comes from, how it is told about the broker, and what of it is run.

Nothing here changes a test. A suite that wants a container, or port 5672, is given the broker under test by a plugin
(see plugins/). What is deselected needs something no broker can give from outside: a container that can be stopped.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from pathlib import Path
from urllib.parse import unquote, urlsplit

HERE = Path(__file__).resolve().parent
PLUGINS = HERE / "plugins"


@dataclass(frozen=True)
class Broker:
    """Address of the broker under test. The suites log in as guest/guest at vhost `/`."""

    host: str
    port: int
    user: str = "guest"
    password: str = "guest"
    http_port: int = 0
    """Of the management API; 0 if it is not known."""

    @classmethod
    def from_url(cls, url: str) -> Broker:
        parts = urlsplit(url)
        if parts.scheme != "amqp" or not parts.hostname:
            raise ValueError(f"not an AMQP address: {url!r}; write amqp://guest:guest@127.0.0.1:5672/")
        return cls(
            parts.hostname, parts.port or 5672, unquote(parts.username or "guest"), unquote(parts.password or "guest")
        )

    @property
    def url(self) -> str:
        return f"amqp://{self.user}:{self.password}@{self.host}:{self.port}"


@dataclass(frozen=True)
class Sdist:
    """A source distribution that contains the tests, taken from the package index and pinned by its checksum."""

    package: str
    version: str
    sha256: str


@dataclass(frozen=True)
class Checkout:
    """Tests that live in a repository only: the environment variable names a directory that holds a checkout."""

    variable: str
    repository: str


@dataclass(frozen=True)
class Ours:
    """Tests of our own, for clients that bring none: a folder beside this file. One with a package-lock.json is Node's."""

    folder: str


@dataclass(frozen=True)
class Suite:
    """One suite. `venv` names the lock file under locks/ (None: Node's test runner)."""

    name: str
    source: Sdist | Checkout | Ours
    venv: str | None
    tests: tuple[str, ...]
    args: tuple[str, ...] = ()
    deselect: str = ""
    quick_tests: tuple[str, ...] = ()
    quick_deselect: str = ""
    path: tuple[str, ...] = ()
    environment: dict[str, str] = field(default_factory=dict)
    scheme: str = "pyamqp"
    """Of the address that kombu and Celery are given: their transport."""
    needs_redis: bool = False
    test_timeout: int = 120
    suite_timeout: int = 900

    def variables(self, broker: Broker, extra: dict[str, str]) -> dict[str, str]:
        """Environment of the suite: the broker's address under every name that one of the suites reads."""
        values = dict(os.environ)
        for name in ("AMQP_URL", "PYTHONHOME", "PYTHONPATH", "PYTHONWARNINGS", "PYTEST_ADDOPTS"):
            values.pop(name, None)
        values.update(
            COMPAT_HOST=broker.host,
            COMPAT_PORT=str(broker.port),
            RABBITMQ_HOST=broker.host,
            RABBITMQ_5672_TCP=str(broker.port),
            TEST_BROKER=f"{self.scheme}://{broker.user}:{broker.password}@{broker.host}:{broker.port}//",
            URL=broker.url,
            RABBITMQ_URI=f"{broker.url}/%2f",
            RABBITMQ_URL=f"{broker.url}/%2f",
            AMQP_URI=f"{broker.url}/%2F",
            AMQP_HOST=broker.host,
            AMQP_USERNAME=broker.user,
            AMQP_PASSWORD=broker.password,
            AMQP_HTTP_URL=f"http://{broker.host}:{broker.http_port}",
            COMPAT_HTTP=f"http://{broker.user}:{broker.password}@{broker.host}:{broker.http_port}"
            if broker.http_port
            else "",
            PYTHONPATH=os.pathsep.join([".", *(str(PLUGINS / p) for p in self.path)]),
            PYTHONDONTWRITEBYTECODE="1",
        )
        values.update({key: value.format(plugins=PLUGINS) for key, value in self.environment.items()})
        values.update(extra)
        return values


_AIO_ARGS = ("-p", "compat_no_docker", "-o", "addopts=-p no:asyncio", "-o", "log_cli=false")

# For suites without a pytest configuration: ours, further up, is not theirs.
_OWN_ROOT = ("-c", os.devnull, "--rootdir", ".")

# Left out of the quick run of aio-pika: test_amqp.py once more (it has both kinds of connection), and what mostly waits.
_SLOW_AIO_PIKA = (
    " and not test_amqp_robust.py and not stairway and not NoMaxSize and not after_5kb and not stuck and not heartbeat"
    " and not test_robust_recovery and not test_memory_leak"
)

_KOMBU = Sdist("kombu", "5.7.0", "31e62fdfd2381caa3422f8e02b84a491d9a2180ddda74507b57f4cb1e1c2c2c9")
_CELERY = Suite(
    name="celery",
    source=Sdist("celery", "5.7.0", "6a5dfcf6662287204f009a02002b9e66c83d4105e47ebabdc7079108772fc6f0"),
    venv="celery",
    tests=tuple(
        f"t/integration/test_{part}.py"
        for part in ("tasks", "canvas", "inspect", "loader", "group_chains", "serialization", "worker")
    ),
    args=("-p", "celery.contrib.pytest", "-o", "addopts="),
    needs_redis=True,
    test_timeout=300,
    suite_timeout=3600,
)

SUITES = (
    Suite(
        name="py-amqp",
        source=Sdist("amqp", "5.4.2", "9362660c4a31150cf18e78cae2ce8aa1e929fc6c6739e69f6dd5dbea9c3edc82"),
        venv="celery",
        tests=("t/integration/test_rmq.py",),
        deselect="not tls",
    ),
    Suite(
        name="kombu",
        source=_KOMBU,
        venv="celery",
        tests=("t/integration/test_py_amqp.py",),
    ),
    Suite(
        name="kombu-kvitto",
        source=_KOMBU,
        venv="celery",
        tests=("t/integration/test_py_amqp.py",),
        path=("kvitto",),
    ),
    Suite(
        name="aiormq",
        source=Sdist("aiormq", "7.2.4", "5fd20bb9583d73de85572198496b65cf028f27527c1733c9840d458e0b40e8fa"),
        venv="aio",
        tests=("tests",),
        args=(*_AIO_ARGS, "-n", "4"),
        deselect="not amqps and not ssl",
        path=("docker",),
    ),
    Suite(
        name="aio-pika",
        source=Sdist("aio-pika", "10.2.1", "e4f77afd9179a3cca5a904c3b0a1190256a36d9f90650db908b1b2245eb27487"),
        venv="aio",
        tests=("tests",),
        args=(*_AIO_ARGS, "-n", "2", "--dist", "loadfile"),
        deselect="not stop_app and not kill and not amqps",
        quick_deselect=_SLOW_AIO_PIKA,
        path=("docker",),
        test_timeout=300,
        suite_timeout=1800,
    ),
    Suite(
        name="aiorabbit",
        source=Sdist("aiorabbit", "1.0.3", "e790326b66a306065173e29f49efb32368afd6d28ab0d72b4851d65ef3c95eba"),
        venv="aiorabbit",
        tests=("tests",),
        # the tests import one another, and their folder is no package in the source distribution
        args=(
            *_OWN_ROOT,
            "-p",
            "compat_environment",
            "--import-mode=importlib",
            "-o",
            "consider_namespace_packages=true",
        ),
        path=("environment",),
    ),
    Suite(
        name="rabbitpy",
        source=Sdist("rabbitpy", "3.0.2", "9322a1e82b4d3d1afc21a617ce0b1e86b921174328735e7d54abc9525805ae5c"),
        venv="blocking",
        tests=("tests/test_integration.py", "tests/integration"),
        args=_OWN_ROOT,
    ),
    Suite(
        name="amqpstorm",
        source=Sdist("amqpstorm", "3.1.4", "8c4c81430b3e3f06c88474a8ed883b48a62068f14490e339d6e0fc3329f030d3"),
        venv="blocking",
        tests=("amqpstorm/tests/functional",),
        args=_OWN_ROOT,
        deselect="not ssl and not inaccessible and not cluster_name",
        path=("port",),
    ),
    _CELERY,
    replace(_CELERY, name="celery-kvitto", scheme="kvitto", path=("kvitto",)),
    Suite(
        name="pika",
        source=Checkout("PIKA_DIR", "pika/pika"),
        venv="pika",
        tests=tuple(
            f"tests/acceptance/{part}.py"
            for part in (
                "blocking_adapter_test",
                "thread_safe_connection_test",
                "thread_safe_bounded_queue_test",
                "async_adapter_tests",
            )
        ),
        args=("-o", "addopts="),
        path=("port",),
    ),
    Suite(
        name="amqplib",
        source=Checkout("AMQPLIB_DIR", "amqp-node/amqplib"),
        venv=None,
        tests=tuple(f"test/{part}.test.js" for part in ("callback_api", "channel_api", "connect", "recovery")),
        environment={"NODE_OPTIONS": "--require {plugins}/port/amqplib.cjs"},
        test_timeout=20,
    ),
    Suite(name="clients", source=Ours("clients"), venv="clients", tests=(".",)),
    Suite(name="rascal", source=Ours("clients/node"), venv=None, tests=("rascal.test.js",), test_timeout=30),
)

QUICK = ("py-amqp", "kombu", "kombu-kvitto", "aiormq", "aio-pika", "aiorabbit", "rabbitpy", "clients")
