"""What must hold, whatever peers send: nothing confirmed is lost, nothing is out twice, no prefetch is exceeded, no error is internal.

Messages are followed in queues without arguments (`FOLLOWED`), by their bodies, which are unique: one that was confirmed and that nobody
can have settled is in its queue, also after a restart. What makes that uncertain for a queue (a consumer without acks, a log.settle, a
policy) ends the following of that queue until it is another one. In all queues: what is there before a restart is there after it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from kvitto.base.errors import INTERNAL_ERROR, REPLY_NAMES, ProtocolError
from kvitto.broker.administration.arguments import read_settings
from kvitto.broker.queues.queue import Queue
from kvitto.protocol.states import RUNNING
from kvitto.wire import methods as m
from kvitto.wire.methods import Method
from kvitto.wire.properties import Properties
from tests.support import stored

if TYPE_CHECKING:
    from tests.fuzz.sessions.client import Channel, Client, Waiting
    from tests.fuzz.sessions.world import StoryRun

FOLLOWED = ("keep", "kept")
DEFAULT = read_settings({})


class Finding(AssertionError):
    """The broker has done what it must not do."""


def short(bodies: object) -> str:
    return " ".join(sorted(body.decode("ascii", "replace")[:12] for body in bodies))  # type: ignore[attr-defined]


class Followed:
    """One life of a queue."""

    def __init__(self) -> None:
        self.kept: set[bytes] = set()
        """Confirmed, and settled by nobody."""
        self.settled: set[bytes] = set()
        """Or perhaps: sent an ack for it, or whatever else may take it away."""
        self.seen: set[bytes] = set()
        self.sent: list[bytes] = []
        self.followed = True
        self.purging = 0


class Oracle:
    def __init__(self, world: StoryRun) -> None:
        self.world = world
        self.queues: dict[str, Followed] = {}
        """Incarnation -> what is known of it."""

    # -- queues ----------------------------------------------------------------------------------------------

    def queue(self, client: Client, name: str) -> Queue | None:
        vhost = self.world.harness.broker.vhosts.get(client.vhost)
        return None if vhost is None else vhost.queues.get(name)

    def followed(self, client: Client, name: str) -> tuple[str, Followed] | None:
        """The incarnation and what is known, if the queue is there and can be followed."""
        if name not in FOLLOWED or client.vhost != "/":
            return None
        queue = self.queue(client, name)
        if queue is None:
            return None
        incarnation = queue.log.queue_id
        if incarnation not in self.queues:
            self.queues[incarnation] = Followed()
        known = self.queues[incarnation]
        if not plain(queue):
            known.followed = False
        return (incarnation, known) if known.followed else None

    def lose_sight(self, client: Client, name: str) -> None:
        """From now on anything may happen to its messages."""
        found = self.followed(client, name)
        if found is not None:
            found[1].followed = False

    def forget_deliveries(self) -> None:
        """A disk without room has not taken what was delivered: a kill takes it (A9)."""
        for known in self.queues.values():
            known.seen.clear()

    def forget_all(self) -> None:
        for known in self.queues.values():
            known.followed = False

    def purged(self, client: Client, name: str) -> None:
        found = self.followed(client, name)
        if found is not None:
            known = found[1]
            known.settled.update(known.sent)
            known.kept.clear()

    # -- what a client sends -----------------------------------------------------------------------------------

    def published(
        self, client: Client, channel: Channel, method: m.BasicPublish, properties: bytes, body: bytes
    ) -> None:
        waiting: Waiting | None = None
        found = None if method.exchange else self.followed(client, method.routing_key)
        if found is not None and not channel.staged and simple(properties):
            waiting = (method.routing_key, found[0], body)
            found[1].sent.append(body)
        if channel.tx and waiting is not None:
            channel.held.append(waiting)
        if channel.confirm:
            channel.sequence += 1
            channel.unconfirmed[channel.sequence] = waiting

    def sent(self, client: Client, channel: Channel, method: Method) -> None:  # noqa: C901 - one case per method
        match method:
            case m.BasicQos(global_=True):
                channel.lowering.append(channel.prefetch_all)
                channel.prefetch_all = method.prefetch_count
            case m.BasicQos():
                channel.lowering.append(channel.prefetch_all)
                channel.prefetch = method.prefetch_count
            case m.BasicConsume():
                self._consume(client, channel, method, channel.prefetch)
            case m.BasicGet():
                channel.gets.append((method.queue, method.no_ack))
                if method.no_ack:
                    self.lose_sight(client, method.queue)
            case m.BasicAck():
                self._settled(client, channel, method.delivery_tag, method.multiple, True)
            case m.BasicNack():
                self._settled(client, channel, method.delivery_tag, method.multiple, not method.requeue)
            case m.BasicReject():
                self._settled(client, channel, method.delivery_tag, False, not method.requeue)
            case m.BasicRecover():
                channel.recovering += 1
                channel.out.clear()
            case m.BasicRecoverAsync():
                channel.loose = True
                channel.out.clear()
            case m.QueuePurge() | m.QueueDelete():
                found = self.followed(client, method.queue)
                self.purged(client, method.queue)
                if found is not None:
                    channel.purging.append(method.queue)
                    found[1].purging += 1
                if method.no_wait or isinstance(method, m.QueueDelete):
                    self.lose_sight(client, method.queue)
            case m.LogRead():
                self._read(client, channel, method)
            case m.LogSettle() | m.QueueDeclare(exclusive=True):
                self.lose_sight(client, method.queue)
            case m.ConfirmSelect():
                channel.confirm = True
            case m.TxSelect():
                channel.tx = True
            case m.TxCommit():
                channel.committing.append(channel.held)
                channel.held = []
            case m.TxRollback():
                channel.held = []
                channel.loose = True
            case m.StageOpen():
                channel.staged = True

    def _consume(self, client: Client, channel: Channel, method: m.BasicConsume, prefetch: int) -> None:
        if method.no_ack:
            self.lose_sight(client, method.queue)
        if method.consumer_tag in channel.reads:
            self.lose_sight(client, method.queue)
        elif not method.consumer_tag:
            channel.unnamed.append((method, prefetch))
        else:
            channel.consumers[method.consumer_tag] = method.queue
            again = method.consumer_tag in channel.limits
            channel.limits[method.consumer_tag] = 0 if again else prefetch
            if method.no_ack:
                channel.no_acks.add(method.consumer_tag)

    def _read(self, client: Client, channel: Channel, method: m.LogRead) -> None:
        """Its deliveries are none: nothing of them is unacked. One that has a consumer's tag hides those of the consumer."""
        channel.reads.add(method.consumer_tag)
        queue = channel.consumers.pop(method.consumer_tag, None)
        if queue is not None:
            channel.loose = True
            self.lose_sight(client, queue)

    def _settled(self, client: Client, channel: Channel, tag: int, multiple: bool, gone: bool) -> None:
        if multiple and tag == 0:
            channel.loose = True  # what is on its way is settled too
            tags = list(channel.out)
            self._lose_sight_of_all(client, channel, gone)
        else:
            tags = [t for t in channel.out if t == tag or (multiple and t <= tag)]
            if tag not in channel.out:
                channel.loose = True
                self._lose_sight_of_all(client, channel, gone)
        for t in tags:
            name, body, _ = channel.out.pop(t)
            found = self.followed(client, name)
            if gone and found is not None:
                found[1].kept.discard(body)
                found[1].settled.add(body)

    def _lose_sight_of_all(self, client: Client, channel: Channel, gone: bool) -> None:
        """Whatever comes to this channel may be settled already."""
        queues = {
            *channel.consumers.values(),
            *(name for name, _ in channel.gets),
            *(c.queue for c, _ in channel.unnamed),
        }
        for queue in queues if gone else ():
            self.lose_sight(client, queue)

    # -- what a client hears -----------------------------------------------------------------------------------

    def closed(self, client: Client, close: m.ConnectionClose | m.ChannelClose) -> None:
        if close.reply_code not in REPLY_NAMES or close.reply_code == INTERNAL_ERROR:
            raise Finding(f"peer {client.slot} is told {close!r}")
        if not close.reply_text or "Traceback" in close.reply_text:
            raise Finding(f"peer {client.slot} is not told why: {close!r}")

    def told(self, client: Client, channel: Channel, method: Method) -> None:
        match method:
            case m.BasicAck():
                self._confirmed(client, channel, method.delivery_tag, method.multiple, True)
            case m.BasicNack():
                self._confirmed(client, channel, method.delivery_tag, method.multiple, False)
            case m.TxCommitOk() if channel.committing:
                for waiting in channel.committing.pop(0):
                    self._keep(client, waiting)
            case m.BasicGetEmpty() if channel.gets:
                channel.gets.pop(0)
            case m.BasicQosOk() if channel.lowering:
                channel.lowering.pop(0)
            case m.BasicRecoverOk():
                channel.recovering -= 1
                channel.out.clear()
            case m.BasicConsumeOk() if method.consumer_tag.startswith("amq.ctag-") and channel.unnamed:
                asked, prefetch = channel.unnamed.pop(0)
                asked.consumer_tag = method.consumer_tag
                self._consume(client, channel, asked, prefetch)
            case m.QueuePurgeOk() | m.QueueDeleteOk() if channel.purging:
                self._end_purge(client, channel)

    def _end_purge(self, client: Client, channel: Channel) -> None:
        name = channel.purging.pop(0)
        self.purged(client, name)
        found = self.followed(client, name)
        if found is not None:
            found[1].purging -= 1

    def _confirmed(self, client: Client, channel: Channel, tag: int, multiple: bool, good: bool) -> None:
        if channel.unsure:
            return
        if tag not in channel.unconfirmed:
            raise Finding(f"peer {client.slot}: confirm of {tag}, which was never published or was confirmed before")
        for sequence in [s for s in channel.unconfirmed if s == tag or (multiple and s < tag)]:
            waiting = channel.unconfirmed.pop(sequence)
            if good and waiting is not None:
                self._keep(client, waiting)

    def _keep(self, client: Client, waiting: Waiting) -> None:
        name, incarnation, body = waiting
        found = self.followed(client, name)
        if found is not None and found[0] == incarnation and not found[1].purging and body not in found[1].settled:
            found[1].kept.add(body)

    def message(self, client: Client, channel: Channel, method: Method, body: bytes) -> None:
        match method:
            case m.BasicGetOk():
                queue, no_ack = channel.gets.pop(0) if channel.gets else ("", False)
                self._got(client, channel, queue, "", method, body)
                if no_ack:
                    channel.out.pop(method.delivery_tag, None)
            case m.BasicDeliver() if method.consumer_tag in channel.consumers:
                self._got(client, channel, channel.consumers[method.consumer_tag], method.consumer_tag, method, body)

    def _got(self, client: Client, channel: Channel, name: str, tag: str, method: Any, body: bytes) -> None:
        if method.delivery_tag <= channel.last_tag:
            raise Finding(f"peer {client.slot}: delivery tag {method.delivery_tag} after {channel.last_tag}")
        channel.last_tag = method.delivery_tag
        if not channel.loose and not channel.recovering:
            self._check_prefetch(client, channel, tag)
        found = self.followed(client, name)
        if found is not None:
            known = found[1]
            # what it hears while it recovers may have been given back before another heard of it
            in_time = not client.late and not channel.recovering
            if body in known.sent and in_time and self._alive(client, channel):
                self._check_alone(client, name, body)
                if body in known.seen and not method.redelivered:
                    raise Finding(f"{name}: {body[:12]!r} is delivered again and not flagged")
            channel.loose = channel.loose or client.late
            known.seen.add(body)
            if channel.loose:
                known.settled.add(body)
                known.kept.discard(body)
        if not channel.recovering and tag not in channel.no_acks:
            channel.out[method.delivery_tag] = (name, body, tag)

    def _check_prefetch(self, client: Client, channel: Channel, tag: str) -> None:
        """Neither a consumer nor the channel gets more than it has asked for."""
        most = 0 if tag in channel.no_acks else channel.limits.get(tag, 0)
        if most and sum(t == tag for _, _, t in channel.out.values()) >= most:
            raise Finding(f"peer {client.slot}: consumer {tag} has a prefetch of {most} and gets one more")
        limits = [channel.prefetch_all, *channel.lowering]
        if tag in channel.no_acks or tag not in channel.limits or not all(limits):
            return
        if sum(bool(t) for _, _, t in channel.out.values()) >= max(limits):
            raise Finding(f"peer {client.slot}: the channel has a prefetch of {max(limits)} and gets one more")

    def _check_alone(self, client: Client, name: str, body: bytes) -> None:
        """What one consumer has not settled no other gets. Who has been closed meanwhile, and has not heard of it, has nothing."""
        for peer in self.world.peers.values():
            for lives in peer.client.channels.values():
                if any(n == name and b == body for n, b, _ in lives[0].out.values()) and self._alive(
                    peer.client, lives[0]
                ):
                    raise Finding(
                        f"{name}: {body[:12]!r} goes to peer {client.slot} while peer {peer.client.slot} has it"
                    )

    def _alive(self, client: Client, channel: Channel) -> bool:
        """Whether what the channel has out is what the broker thinks it has."""
        peer = self.world.peers.get(client.slot)
        if peer is None or peer.connection.state != RUNNING or client.wild or client.vhost != "/":
            return False
        there = peer.connection.channels.get(channel.number)
        return there is not None and not there.closing and channel.usable and not channel.loose

    # -- ends --------------------------------------------------------------------------------------------------

    def channel_left(self, client: Client, channel: Channel) -> None:
        channel.out.clear()
        self._forget_purges(client, channel)

    def client_left(self, client: Client) -> None:
        for lives in client.channels.values():
            for channel in lives:
                self._forget_purges(client, channel)

    def _forget_purges(self, client: Client, channel: Channel) -> None:
        while channel.purging:
            self.lose_sight(client, channel.purging.pop())

    def check_kept(self) -> None:
        """Nobody is connected: what was confirmed and not settled is in its queue, once."""
        for queue in self.world.harness.broker.vhosts["/"].queues.values():
            known = self.queues.get(queue.log.queue_id)
            if known is None or not known.followed:
                continue
            if not plain(queue):
                known.followed = False
                continue
            here = list(waiting(queue))
            lost = known.kept - set(here)
            if lost:
                raise Finding(f"{queue.name}: confirmed, settled by nobody, and not there: {short(lost)}")
            twice = {body for body in known.sent if here.count(body) > known.sent.count(body)}
            if twice:
                raise Finding(f"{queue.name}: twice: {short(twice)}")
        there = {queue.log.queue_id for queue in self.world.harness.broker.queues.values()}
        for incarnation, known in self.queues.items():
            if known.followed and known.kept and incarnation not in there:
                raise Finding(f"the queue {incarnation} is gone, and nobody has deleted it: {short(known.kept)}")


def plain(queue: Queue) -> bool:
    return bool(queue.settings == DEFAULT and queue.durable and not queue.exclusive and not queue.auto_delete)


def simple(properties: bytes) -> bool:
    """It does not expire, and goes nowhere else."""
    if properties == b"\0\0":
        return True
    try:
        found = Properties.decode(properties)
    except ProtocolError:
        return False
    return found.expiration is None and not found.headers


def waiting(queue: Queue) -> Iterator[bytes]:
    """Bodies of the messages that are ready, parked or delayed."""
    return (body for _, body in stored.bodies(queue))
