"""Runs everything: starts the broker, keeps the load on it, makes the faults of the plan, and has the oracle judge.

Clients are threads (`load.py`), the proxy is another one, and this is the main thread. Only this one starts, signals
and ends the broker.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from urllib.parse import urlsplit, urlunsplit

from kvitto.client import AMQPError
from kvitto.torture import faults, load, plan, sampling
from kvitto.torture.cluster import Cluster, KvittoCluster
from kvitto.torture.nodes import BrokerFailed, Kvitto, Node, version
from kvitto.torture.oracle import Journal, Terms
from kvitto.torture.proxy import Proxy
from kvitto.torture.report import FLAGS, FLAGS_OF_NODES, Outcome

CHAPTER_CYCLES = 50
CHAPTER_S = 120.0
"""Everything is drained and judged after a number of cycles, or after this time."""
MOVE_S = 120.0
"""After a fault all clients have to make progress within this time."""
LATE_S = 20.0
"""Missing messages may still arrive until none has arrived for this time."""
PROGRESS_S = 5.0
SOAK_GAP_S = 8.0
POLL_S = 0.01
START_POLL_S = 0.001
LOOK_S = 0.5
"""The time between two looks which node of a cluster leads."""
SAMPLE_S = 1.0
SAFE_AFTER_S = 5.0
"""For brokers that sync acks when they like: the time after the fence's confirm when they must have synced them."""


@dataclass(frozen=True, slots=True)
class Wanted:
    """The settings of a run. 0 means no limit; a run ends when it reaches the first of its limits."""

    faults: tuple[str, ...]
    seed: int
    cycles: int = 0
    seconds: float = 0.0
    publishes: int = 0
    soak: bool = False
    queue_type: str = ""
    """`x-queue-type` of all queues; "" means the broker's default."""


class Stuck(Exception):
    """The load makes no progress, or the broker ended by itself; the text says which."""


class Run:
    """One run against one broker. `go` does all of it and leaves no process running."""

    def __init__(self, node: Node, wanted: Wanted, again: str, say: Callable[[str], None]) -> None:
        self.node = node
        self.wanted = wanted
        self.say = say
        self.target = load.Target()
        self.journal = Journal(node.place / "journal")
        self.load = load.Load(self.journal, self.target, wanted.publishes)
        self.oracle = self.load.oracle
        self.outcome = Outcome(node.name, wanted.seed, again, flags_of(node))
        self.target.may_be_full = bool(set(plan.OF_DISKS) & set(wanted.faults))
        if isinstance(node, Kvitto):
            self.oracle.whole_order = set(wanted.faults) <= {plan.KILL, plan.KILL_START, plan.RESTART}
        else:
            self.target.safe_after_s = SAFE_AFTER_S
        if isinstance(node, KvittoCluster) and not {plan.CUT, plan.HALF_OPEN} & set(wanted.faults):
            self.oracle.terms = Terms(node.says_it_leads)  # the proxy hides which node has confirmed
        self.proxy = Proxy() if {plan.CUT, plan.HALF_OPEN} & set(wanted.faults) else None
        self._life = 0
        self._start_s = 0.0
        """The time that the last start took."""
        self._started_s = 0.0
        self._chapter_s = 0.0
        self._said_s = 0.0
        self._looked_s = 0.0
        self._aimed = ""
        """The address of the node that clients were sent to last."""

    def go(self) -> Outcome:
        """Run until the plan is done, something fails, or Ctrl-C; then judge for the last time."""
        self._started_s = self._chapter_s = time.monotonic()
        sampler: threading.Thread | None = None
        stop_sampling = threading.Event()
        try:
            self._prepare()
            if self.wanted.soak:
                sampler = threading.Thread(target=self._sample_all, args=(stop_sampling,), daemon=True)
                sampler.start()
            try:
                self._faults()
            except KeyboardInterrupt:
                self.outcome.interrupted = True
                self.say("interrupted; draining and judging (interrupt again to skip that)")
                self._mend()
            stop_sampling.set()
            self._judge()
            self.outcome.judged = True
            self._last_sample()
        except KeyboardInterrupt:
            self.outcome.interrupted = True
        except (Stuck, BrokerFailed, AMQPError, OSError) as error:
            self.outcome.broke = str(error)
        finally:
            stop_sampling.set()
            if sampler is not None:
                sampler.join()
            self._end()
        return self.outcome

    def _prepare(self) -> None:
        if self.proxy is not None:
            self.proxy.start()
        self.start()
        with suppress(AMQPError, TimeoutError):
            self.outcome.broker = version(self.node.uri) or self.node.name
        self.outcome.first = self._sample()
        load.declare(self.node.uri, self.wanted.queue_type)
        self.load.start()

    def _faults(self) -> None:
        wanted, began = self.wanted, time.monotonic()
        nodes, overlap = isinstance(self.node, Cluster), isinstance(self.node, KvittoCluster)
        gap_s, cycle = SOAK_GAP_S if wanted.soak else 0.0, 0
        while True:
            elapsed = time.monotonic() - began
            if wanted.publishes and all(publisher.finished for publisher in self.load.publishers):
                return
            made = self.outcome.cycles.total()
            if (wanted.cycles and made >= wanted.cycles) or (wanted.seconds and elapsed >= wanted.seconds):
                return
            if not wanted.faults:
                self._alive()
                time.sleep(SAMPLE_S)
            else:
                fault = plan.fault(wanted.seed, cycle, wanted.faults, gap_s, nodes, overlap)
                self._cycle(fault.within(wanted.cycles - made) if wanted.cycles else fault)
                cycle += 1
            self._progress(self.outcome.cycles.total())
            late = time.monotonic() - self._chapter_s > CHAPTER_S and not wanted.publishes
            if (wanted.faults and not wanted.soak and cycle % CHAPTER_CYCLES == 0) or late:
                self._judge()

    def _cycle(self, fault: plan.Fault) -> None:
        self._wait_moving()
        time.sleep(fault.after_s)
        self._alive()
        DOES[fault.kind](self, fault)
        self.outcome.cycles[fault.kind] += 1

    def _kill(self, fault: plan.Fault) -> None:
        self.down()
        self.node.kill()
        self.recovered()

    def _kill_start(self, fault: plan.Fault) -> None:
        """Kill the broker, then kill it while it starts again, and at last let it start."""
        self.down()
        self.node.kill()
        for part, of_recovery in fault.killed_starts():
            self.node.begin()
            began = time.monotonic()
            end = began + self._start_s
            while of_recovery and not self.node.at_its_files and time.monotonic() < end:
                time.sleep(START_POLL_S)
                began = time.monotonic()
            time.sleep(max(0.0, began + part * (end - began) - time.monotonic()))
            self._alive()
            at = "listening" if self.node.listens else "recovering" if self.node.at_its_files else "before its files"
            self.outcome.killed_starts[at] += 1
            self.node.kill()
        self.recovered()

    def _restart(self, fault: plan.Fault) -> None:
        self.down()
        code = self.node.stop()
        if isinstance(self.node, Kvitto) and code != 0:
            raise Stuck(f"the broker ended with {code} after SIGTERM; see {self.node.log}")
        self.recovered()

    def _stop(self, fault: plan.Fault) -> None:
        self.node.pause()
        try:
            self.endure(fault)
        finally:
            self.node.resume()
        if isinstance(self.node, Cluster):  # another node may lead now
            self.down()
            self.start()

    def _cut(self, fault: plan.Fault) -> None:
        assert self.proxy is not None
        self.proxy.cut(chooser(fault), reset=fault.reset)

    def _half_open(self, fault: plan.Fault) -> None:
        assert self.proxy is not None
        self.proxy.half_open(chooser(fault), from_client=fault.from_client)
        time.sleep(fault.lasts_s)
        self.proxy.cut_half_open()

    def endure(self, fault: plan.Fault) -> None:
        """Let a fault last, and make those that hit meanwhile. The load goes to another node of a cluster as soon as that one leads."""
        began = time.monotonic()
        for other in fault.meanwhile:
            self._endure_until(began + other.at * fault.lasts_s)
            self._alive()  # a kill would hide that a node has ended by itself
            faults.meanwhile(self, other)
            self.outcome.cycles[other.kind] += 1
            self.outcome.meanwhile += 1
        self._endure_until(began + fault.lasts_s)
        if fault.meanwhile:
            faults.cluster_of(self).revive()

    def _endure_until(self, end: float) -> None:
        while (left := end - time.monotonic()) > 0:
            self._follow()
            time.sleep(min(left, LOOK_S))

    def _follow(self) -> None:
        """Send the load to another node of a cluster if that one leads now: a leader may give up at any time after a fault. If the load is
        down because the leader was killed, send it to whichever node leads."""
        now = time.monotonic()
        if not isinstance(self.node, Cluster) or now - self._looked_s < LOOK_S:
            return
        self._looked_s = now
        if self.node.look() and not (self.target.up.is_set() and self.node.uri == self._aimed):
            self._aim()
            self.load.publishers[-1].leave()  # the others stay with the old leader as long as that one has them

    def recovered(self) -> None:
        """Start the broker, and note how long that took."""
        self.outcome.recoveries_s.append(self.start())

    def _mend(self) -> None:
        """Undo the fault that was interrupted."""
        if self.proxy is not None:
            self.proxy.cut_half_open()
        if isinstance(self.node, Cluster):
            self.node.mend()
            self.down()
            self.start()
            return
        self.node.resume()
        if not self.target.up.is_set():
            self.node.kill()
            self.start()

    def down(self) -> None:
        self.target.up.clear()
        if self.proxy is not None:
            self.proxy.target = None

    def start(self) -> float:
        self._start_s = took = self.node.start()
        self._life += 1
        self._aim()
        return took

    def _aim(self) -> None:
        """Have the clients connect to where the broker is now."""
        uri = self._aimed = self.node.uri
        if self.proxy is not None:
            parts = urlsplit(uri)
            assert parts.hostname is not None
            self.proxy.target = (parts.hostname, parts.port or 5672)
            uri = through(uri, self.proxy.port)
        if plan.HALF_OPEN in self.wanted.faults:
            uri = uri.replace("heartbeat=0", f"heartbeat={plan.HEARTBEAT_S}")
        self.target.uri = f"{uri}&connection_timeout=5000"
        self.target.up.set()

    def _alive(self) -> None:
        if not self.node.running:
            ended = self.node.ended if isinstance(self.node, Cluster) else f"see {self.node.log}"
            raise Stuck(f"the broker ended by itself; {ended}")
        self._follow()

    def _wait_moving(self) -> None:
        """Wait until each client that has something to do has received a promise since now."""
        clients = [c for c in self.load.clients if not (isinstance(c, load.Publisher) and c.finished)]
        before = {client: client.moves for client in clients}
        deadline = time.monotonic() + MOVE_S
        while still := [c for c in clients if c.moves == before[c] and not self._nothing_to_do(c)]:
            self._alive()
            if time.monotonic() > deadline:
                raise Stuck(f"no progress within {MOVE_S:g} s: {', '.join(client.name for client in still)}")
            time.sleep(POLL_S)

    def _nothing_to_do(self, client: load.Client) -> bool:
        """Return whether it is a consumer of a run without a publisher, or a publisher that waits for slow consumers."""
        if isinstance(client, load.Consumer):
            return all(p.finished for p in self.load.publishers)
        return self.load.behind() > load.BEHIND_MAX

    def _judge(self) -> None:
        """Wait until all messages that may arrive have come, and close a chapter of the records. Raises Stuck if nothing is confirmed."""
        self.target.paused.set()
        self.load.drain_idle(True)
        seen, since = -1, time.monotonic()
        moves, moved = -1, since
        while not self._drained():
            self._alive()
            # A consumer whose publishes are blocked gets the same deliveries again and again, so deliveries alone are no progress.
            made = sum(client.moves for client in self.load.clients)
            if self.load.quiet or made != moves:
                moves, moved = made, time.monotonic()
            elif time.monotonic() - moved > MOVE_S:
                raise Stuck(f"no progress within {MOVE_S:g} s, although clients only wait for their promises")
            if self.oracle.delivered != seen:
                seen, since = self.oracle.delivered, time.monotonic()
            elif time.monotonic() - since > LATE_S + (load.CONFIRM_S if not self.load.quiet else 0.0):
                break
            time.sleep(10 * POLL_S)
        self.oracle.close_chapter()
        self.load.drain_idle(False)
        self.load.forgive()
        self.outcome.chapters += 1
        self._chapter_s = time.monotonic()
        self.target.paused.clear()

    def _drained(self) -> bool:
        return self.load.quiet and load.waiting(self.node.uri) == 0 and self.load.quiet and not self.oracle.judge()

    def _progress(self, count: int) -> None:
        now = time.monotonic()
        if now - self._said_s < PROGRESS_S:
            return
        self._said_s = now
        wanted = f" of {self.wanted.cycles}" if self.wanted.cycles else ""
        findings = {kind: count for kind, count in self.outcome.failures(self.oracle).items() if count}
        said = ", ".join(f"{count} {kind}" for kind, count in findings.items()) or "nothing found"
        self.say(
            f"{now - self._started_s:6.0f} s  {count}{wanted} faults  {self.oracle.published:,} published  "
            f"{self.oracle.confirmed:,} confirmed  {self.oracle.delivered:,} delivered  {said}"
        )

    def _sample(self) -> sampling.Sample | None:
        return sampling.sample(self.node.members(), self.node.data, self._life, self._started_s)

    def _sample_all(self, stop: threading.Event) -> None:
        while not stop.wait(SAMPLE_S):
            found = self._sample()
            if found is not None:
                self.outcome.samples.append(found)

    def _last_sample(self) -> None:
        """Take a sample when nothing is in the queues and there are no clients; then delete the queues, and take the last one."""
        if not self.wanted.soak:
            return
        self.load.join()
        self.outcome.drained = self._sample()
        load.delete(self.node.uri)
        deadline = time.monotonic() + LATE_S
        while not self.outcome.as_before and time.monotonic() < deadline:
            time.sleep(10 * POLL_S)
            self.outcome.deleted = self._sample()

    def _end(self) -> None:
        self.target.ended.set()
        self.node.resume()
        if self.proxy is not None and self.proxy.is_alive():
            self.proxy.target = None
            self.proxy.close()
        self.outcome.connections = sum(client.connections for client in self.load.clients)
        self.node.close()
        self.load.join(broker_ended=True)
        self.journal.close()
        self.oracle.findings.write(self.node.place / "findings", self.outcome.failures(self.oracle))
        self.outcome.seconds = time.monotonic() - self._started_s


DOES: dict[str, Callable[[Run, plan.Fault], None]] = {
    plan.KILL: Run._kill,
    plan.KILL_START: Run._kill_start,
    plan.RESTART: Run._restart,
    plan.STOP: Run._stop,
    plan.CUT: Run._cut,
    plan.HALF_OPEN: Run._half_open,
    **faults.OF_NODES,
}


def flags_of(node: Node) -> tuple[str, ...]:
    """Return the findings about the flag `redelivered` that a broker promises not to make."""
    if isinstance(node, KvittoCluster):
        return FLAGS_OF_NODES
    return FLAGS if isinstance(node, Kvitto) else ()


def chooser(fault: plan.Fault) -> Callable[[], bool]:
    """Return the function that chooses connections by chance."""
    rng = random.Random(fault.seed)
    return lambda: rng.random() < plan.SHARE


def through(uri: str, port: int) -> str:
    """Return the URI with a port of this machine."""
    parts = urlsplit(uri)
    user, at, _ = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=f"{user}{at}127.0.0.1:{port}"))


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
