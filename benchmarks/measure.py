"""Runs scenarios: the brokers take turns, each run is watched for other load, and a disturbed one is repeated."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks import proc, standing
from benchmarks.brokers import Broker, BrokerFailed, Kvitto, kvitto_command
from benchmarks.disk import fdatasync_us
from benchmarks.metrics import MIB, load_values
from benchmarks.results import Run
from benchmarks.scenarios import Load, Scenario, Standing
from kvitto.client import AMQPError, ChannelClosed, Connection

QUEUE = "kvitto-bench"
GENERATOR_S = 1800.0
"""No generator takes longer; one that does hangs."""
OTHERS_LIMIT = 0.1
"""Cores that may be busy with something else."""
STEAL_LIMIT = 0.1
"""Cores that the hypervisor may take away."""
QUIET_LOOK_S = 0.2
QUIET_CORES = 0.1
QUIET_WAIT_S = 60.0
DISK_SYNCS = 100


@dataclass(frozen=True, slots=True)
class Settings:
    """How a bench is run."""

    runs: int
    repeats: int
    """Runs more, at most, in place of disturbed ones."""
    pins: proc.Pins
    place: Path
    """On the disk that is measured."""


class MeasureFailed(Exception):
    """A generator failed; the text is what it said."""


def alternate(
    scenario: Scenario,
    turns: Mapping[str, Callable[[], Run]],
    settings: Settings,
    say: Callable[[str], None],
) -> tuple[list[Run], list[str]]:
    """At least `settings.runs` of each broker, in turn, and more as long as one is disturbed and repeats are left.

    Every other round runs in reverse order: the kernel gives the pages of a queue that one broker has deleted to the next one.

    Returns the runs, and what failed: a broker that fails once has no more turns in this scenario.
    """
    runs: list[Run] = []
    failed: dict[str, str] = {}
    for number in range(settings.runs + settings.repeats):
        for name, turn in list(turns.items())[:: -1 if number % 2 else 1]:
            clean = sum(1 for run in runs if run.broker == name and not run.disturbed)
            if clean >= settings.runs or name in failed:
                continue
            try:
                run = turn()
            except (MeasureFailed, BrokerFailed, AMQPError, TimeoutError) as error:
                failed[name] = f"{scenario.key}, {name} failed: {error}"
                say(failed[name])
                continue
            runs.append(run)
            say(f"{scenario.key:>16} {name:10} run {number + 1}: {brief(run)}")
    return runs, list(failed.values())


def able(broker: Broker, scenario: Scenario) -> bool:
    """Whether the scenario can be run with that broker."""
    if scenario.only_kvitto and not isinstance(broker, Kvitto):
        return False
    if isinstance(scenario, Load):
        return (not scenario.tls or broker.tls_uri is not None) and (not scenario.http or http_of(broker) is not None)
    return broker.restartable


def http_of(broker: Broker) -> str | None:
    """Where the broker takes messages over HTTP, if it listens for it."""
    found: str | None = getattr(broker, "http_uri", None)
    return found


def measure_load(scenario: Load, broker: Broker, settings: Settings) -> Run:
    """One run against a broker that is up, with the disk's own sync just before where it matters."""
    disk = own_sync(scenario, settings)
    uri = broker.tls_uri if scenario.tls else http_of(broker) if scenario.http else broker.uri
    assert uri is not None
    prepare(scenario, broker, settings)
    try:
        values, others = watch(scenario, broker, uri, settings)
    finally:
        delete_queue(broker.uri)
    return Run(scenario.key, broker.name, values, disturbance(others), disk)


def measure_standing(scenario: Standing, broker: Broker, settings: Settings) -> Run:
    """One run with a broker that is not up yet and has a directory of its own; it is down again after it."""
    disk = own_sync(scenario, settings)
    os.sync()
    before = proc.snapshot()
    values = standing.measure(scenario, broker)
    # a broker that has ended counts among the children that we waited for
    others = proc.others_between(before, proc.snapshot(), [os.getpid()], [])
    return Run(scenario.key, broker.name, values, disturbance(others), disk)


def own_sync(scenario: Scenario, settings: Settings) -> float | None:
    return fdatasync_us(settings.place, DISK_SYNCS) if scenario.confirms else None


def watch(scenario: Load, broker: Broker, uri: str, settings: Settings) -> tuple[dict[str, float], proc.Others]:
    """Run the generator; the broker's CPU counts until it has come to rest."""
    os.sync()  # what earlier runs wrote is not written during this one
    wait_quiet(broker.pid)
    before, cpu = proc.snapshot(), proc.cpu_s(broker.pid)
    result = generate(command(scenario, uri, broker.pid), settings.pins.generator)
    after_load = proc.snapshot()
    wait_quiet(broker.pid)
    used = proc.cpu_s(broker.pid) - cpu
    one_by_one = scenario.letter == "e"
    values = load_values(result, used, scenario.per, scenario.size, one_by_one)
    values["rss_mib"] = proc.rss_bytes(broker.pid) / MIB
    return values, proc.others_between(before, after_load, [os.getpid()], [broker.pid])


def prepare(scenario: Load, broker: Broker, settings: Settings) -> None:
    """An empty queue, or one with as many messages as the scenario wants to find."""
    delete_queue(broker.uri)
    if scenario.fill:
        fill = (
            "perf",
            "throughput",
            "-y",
            "0",
            "-c",
            "10000",
            "-C",
            str(scenario.fill),
            "-s",
            str(scenario.size),
            "-u",
            QUEUE,
        )
        generate([*program(fill), "--uri", broker.uri, "-j"], settings.pins.generator)
        standing.wait_depth(broker.uri, QUEUE, scenario.fill)


def command(scenario: Load, uri: str, pid: int) -> list[str]:
    """The generator's command line."""
    found = [*program(scenario.command), "--uri", uri, "-j"]
    if scenario.command[0] == "perf" and scenario.command[1] != "confirms":
        found += ["-u", QUEUE]
    if scenario.steady:
        found += ["--pid", str(pid)]
    return found


def program(words: Sequence[str]) -> list[str]:
    """`perf ...` is Kvitto's own command, `load ...` the one beside this file."""
    if words[0] == "perf":
        return [*kvitto_command(), *words]
    return [sys.executable, "-m", "benchmarks.load", *words[1:]]


def generate(words: Sequence[str], cores: frozenset[int]) -> dict[str, float]:
    """Run a generator on its core and take its JSON."""
    place = Path(__file__).parent.parent
    try:
        with proc.on(cores):
            done = subprocess.run(
                words,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=GENERATOR_S,
                check=False,
                cwd=place,
            )
    except subprocess.TimeoutExpired:
        raise MeasureFailed(f"not done after {GENERATOR_S:g} s: {' '.join(words)}") from None
    if done.returncode != 0:
        raise MeasureFailed(f"exit code {done.returncode}: {' '.join(words)}\n{done.stderr.strip()[-2000:]}")
    result = json.loads(done.stdout)
    assert isinstance(result, dict)
    return result


def wait_quiet(pid: int) -> None:
    """Until the broker has nothing more to do with what it was sent; after a minute it is taken as it is."""
    deadline = time.monotonic() + QUIET_WAIT_S
    last = proc.cpu_s(pid)
    while time.monotonic() < deadline:
        time.sleep(QUIET_LOOK_S)
        now = proc.cpu_s(pid)
        if now - last < QUIET_LOOK_S * QUIET_CORES:
            return
        last = now


def delete_queue(uri: str) -> None:
    """Gone, whether it was there or not."""
    try:
        with Connection(uri, heartbeat_thread=False) as connection:
            connection.channel().queue_delete(QUEUE)
    except ChannelClosed as closed:
        if closed.code != 404:
            raise
    except AMQPError as error:
        raise BrokerFailed(f"the broker at {uri} is gone: {error}") from None


def disturbance(others: proc.Others) -> str:
    """What disturbed a run, for the report; empty if nothing did."""
    found = []
    if others.cores > OTHERS_LIMIT:
        found.append(f"others used {others.cores:.2f} cores")
    if others.steal > STEAL_LIMIT:
        found.append(f"the hypervisor took {others.steal:.2f} cores")
    return ", ".join(found)


BRIEF = (
    *("published_per_s", "consumed_per_s", "confirmed_per_s", "operations_per_s", "cpu_us", "generator_us"),
    *("broker_cores", "latency_p50_ms", "latency_p95_ms", "latency_p99_ms", "streamed_s", "tx_s"),
)
BRIEF_STANDING = ("cold_start_s", "added_rss_mib", "kill_ready_s", "term_ready_s")


def brief(run: Run) -> str:
    """One line for whoever waits."""
    shown = [f"{name} {run.values[name]:,.4g}" for name in (*BRIEF, *BRIEF_STANDING) if name in run.values]
    return ", ".join(shown) + (f"  (disturbed: {run.disturbed})" if run.disturbed else "")
