"""One Spark for the whole run, a broker that can be killed, and queues with messages in them."""

import os
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

import pytest
from pyspark.sql import SparkSession

import kvitto
from benchmarks.brokers import INSTALL_RABBITMQ, RabbitMQ, rabbitmq_script
from examples.flights.children import Child
from kvitto.client import Connection, Properties
from kvitto.wire.tables import Value
from tests.spark.chaos.cluster import Cluster

QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For a program that runs for a minute: the better compiler would cost more than it gives."""


class HasUrl(Protocol):
    url: str


def tracebacks(log: str) -> list[str]:
    """Return the lines of a log that name one of our files in a traceback.

    PySpark prints one of its own when the task of a worker is over before the worker has flushed its output. Lines of several workers may
    be mixed in the log, so the tracebacks themselves cannot be told from each other.
    """
    ours = re.escape(str(Path(kvitto.__file__).parent))
    return re.findall(rf'File "(?:{ours}|src/kvitto)/.*', log)  # the second is the name in a compiled module


class BrokerProcess:
    """A broker of its own process that comes back on the same port with the same data."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.port = 0
        self.start()

    def start(self) -> None:
        place = ["--data-dir", str(self.directory / "data"), "--port", str(self.port), "--http-port", "0"]
        self.child = Child("broker", ["kvitto.cli.main", "serve", *place], self.directory / "broker.log")
        ready = self.child.expect(r"kvitto ready amqp=(\S+):(\d+)", 60)
        self.port = int(ready[2])
        self.url = f"amqp://guest:guest@127.0.0.1:{self.port}/%2f"

    def kill(self) -> None:
        self.child.kill()


@pytest.fixture
def broker_process(tmp_path: Path) -> Iterator[BrokerProcess]:
    """A broker to kill."""
    broker = BrokerProcess(tmp_path)
    yield broker
    broker.kill()


@pytest.fixture(scope="session")
def rabbitmq(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The URI of a RabbitMQ node of its own."""
    if rabbitmq_script() is None:
        pytest.skip(f"RabbitMQ is not installed: {INSTALL_RABBITMQ}")
    node = RabbitMQ(tmp_path_factory.mktemp("rabbitmq"), frozenset(os.sched_getaffinity(0)), None)
    node.start()
    yield node.uri
    node.stop()


@pytest.fixture(params=["Kvitto", "RabbitMQ"])
def any_broker(request: pytest.FixtureRequest) -> str:
    """The URI of each broker in turn."""
    if request.param == "Kvitto":
        broker: HasUrl = request.getfixturevalue("kvitto_broker")
        return broker.url
    uri: str = request.getfixturevalue("rabbitmq")
    return uri


@pytest.fixture
def queue(request: pytest.FixtureRequest) -> str:
    """A queue's name that no other test has: they share a RabbitMQ."""
    return f"{request.path.stem}-{request.node.name}"


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    """One local Spark for all tests, which tries a task twice; silent, for many queries fail on purpose."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2, 2]").appName("kvitto tests")
    settings = {
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.shuffle.partitions": "1",
        "spark.ui.showConsoleProgress": "false",
        "spark.python.authenticate.socketTimeout": "120s",  # Spark's 15 are not enough for a loaded machine
        "spark.driver.extraJavaOptions": QUICK_JVM,
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """One standalone cluster for all; who has it gives it back before the next."""
    cluster = Cluster(tmp_path_factory.mktemp("cluster"))
    yield cluster
    cluster.stop()


Publish = Callable[..., None]


@pytest.fixture
def publish() -> Publish:
    """`publish(url, queue, first, last)`: messages `message <n>` with id `id-<n>`, confirmed, in a durable queue."""

    def publish(url: str, queue: str, first: int, last: int, **arguments: Value) -> None:
        with Connection(url, buffer_bytes=1 << 16) as connection:
            channel = connection.channel()
            known = {name.replace("_", "-"): value for name, value in arguments.items()}
            channel.queue_declare(queue, durable=True, arguments=known)
            channel.confirm_select()
            for n in range(first, last):
                properties = Properties(message_id=f"id-{n}", timestamp=1_700_000_000 + n, headers={"n": n})
                channel.publish(b"message %d" % n, routing_key=queue, properties=properties)
            assert channel.wait_for_confirms(30)

    return publish
