"""A client whose process is forked, whose event loop is closed early, or whose program ends: no hang, no noise, a clear error.

Each program is a process of its own, whose standard error has to stay empty.
"""

import subprocess
import sys
import textwrap
from typing import Protocol

import pytest

import kvitto

LIMIT_S = 60.0


class HasUrl(Protocol):
    url: str
    port: int


PRELUDE = """
import asyncio, dataclasses, faulthandler, gc, logging, os, signal, sys, threading
import kvitto
from kvitto.client.aio import Closed

faulthandler.register(signal.SIGALRM, all_threads=True, chain=True)  # what hangs is told
signal.alarm(30)
logging.getLogger("kvitto.client").setLevel(logging.CRITICAL)
url = sys.argv[1]

def in_child(work):
    '''Run this in a forked child, and return when it has ended well.'''
    pid = os.fork()
    if pid == 0:
        signal.alarm(20)
        code = 1
        try:
            work()
            sys.stdout.flush()
            code = 0
        except BaseException:
            import traceback
            traceback.print_exc()
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0

def told(error):
    '''Assert that a block raises this error of the client.'''
    class Told:
        def __enter__(self): return self
        def __exit__(self, kind, raised, tb):
            assert isinstance(raised, Closed) and error in str(raised), repr(raised)
            return True
    return Told()
"""


def run(url: str, program: str) -> str:
    """Run a program, and return what it printed. Nothing may be on its standard error, warnings included."""
    source = PRELUDE + textwrap.dedent(program)
    command = [sys.executable, "-W", "error", "-W", "ignore::DeprecationWarning", "-c", source, url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    told = [line for line in done.stderr.splitlines() if "running interpreted until" not in line]  # of the checkout
    assert (done.returncode, told) == (0, []), done.stderr
    return done.stdout


def count(url: str, queue: str) -> int:
    with kvitto.connect_sync(url) as connection, connection.channel() as channel:
        return channel.queue(queue, durable=True).message_count


def test_a_forked_child_is_told_and_its_parent_is_not_disturbed(kvitto_broker: HasUrl) -> None:
    run(
        kvitto_broker.url,
        """
        async def main():
            async with kvitto.connect(url) as connection, connection.channel() as channel:
                queue = await channel.queue("q", durable=True)
                await channel.publish_many([b"x"] * 5, "q")
                consumer = queue.consume()
                message = await anext(consumer)
                await channel.publish_many([b"x"] * 5, (await channel.queue("ranges", durable=True)).name)
                reader = (await channel.queue("ranges", durable=True)).read(0)
                await anext(reader)  # the others are here
                group = (await channel.queue("g", durable=True)).group("g")
                waiting = asyncio.create_task((await channel.queue("empty", durable=True)).consume().__anext__())
                await asyncio.sleep(0.01)
                rpc = channel.rpc()
                await rpc.__aenter__()

                async def child():
                    for call in (
                        lambda: channel.publish(b"child", "q"),
                        lambda: channel.publish_many([b"child"], "q"),
                        lambda: channel.queue("child"),
                        lambda: anext(consumer),
                        lambda: queue.get(),
                        lambda: connection.channel().__aenter__(),
                        lambda: anext(reader),
                        lambda: rpc.call(b"?", "q"),
                        lambda: channel.stage("w", 1).__aenter__(),
                        lambda: group.__aenter__(),
                        lambda: channel.transaction().__aenter__(),
                    ):
                        with told("forked from"):
                            await call()
                    assert not message.ack()
                    await consumer.cancel()
                    await channel.close()
                    await connection.close()
                    async with kvitto.connect(url) as other, other.channel() as mine:
                        await mine.publish(b"child", "q")

                def work():
                    asyncio.run(child())
                    gc.collect()

                await asyncio.sleep(0)
                for _ in range(3):
                    in_child(work)
                    await channel.publish(b"parent", "q")
                assert message.ack() and connection.connected
                assert (await channel.queue("q", passive=True)).consumer_count == 1
                for _ in range(10):
                    (await anext(consumer)).ack()
                await channel.publish(b"y", "empty")
                assert (await waiting).body == b"y"
                await rpc.__aexit__(None, None, None)
                await reader.close()
                await connection.close()
                assert not asyncio.all_tasks() - {asyncio.current_task()}

        asyncio.run(main())
        """,
    )


def test_a_forked_child_of_threads_is_told_and_its_parent_is_not_disturbed(kvitto_broker: HasUrl) -> None:
    run(
        kvitto_broker.url,
        """
        with kvitto.connect_sync(url) as connection, connection.channel() as channel:
            queue = channel.queue("q", durable=True)
            fast = connection.channel(confirms=False)
            channel.publish_many([b"x"] * 5, "q")
            consumer = queue.consume()
            message = next(consumer)
            channel.publish_many([b"x"] * 5, channel.queue("ranges", durable=True).name)
            reader = channel.queue("ranges", durable=True).read(0)
            next(reader)  # the others are here
            rpc = channel.rpc()
            rpc.__enter__()

            def child():
                for call in (
                    lambda: channel.publish(b"child", "q"),
                    lambda: fast.publish(b"child", "q"),
                    lambda: fast.flush(),
                    lambda: channel.publish_many([b"child"], "q"),
                    lambda: channel.queue("child"),
                    lambda: next(consumer),
                    lambda: queue.get(),
                    lambda: connection.channel(),
                    lambda: next(reader),
                    lambda: rpc.call(b"?", "q"),
                    lambda: channel.stage("w", 1).__enter__(),
                    lambda: queue.group("g").__enter__(),
                    lambda: channel.transaction().__enter__(),
                ):
                    with told("forked from"):
                        call()
                message.ack()
                consumer.cancel()
                reader.close()
                rpc.__exit__(None, None, None)
                fast.close()
                channel.close()
                connection.close()
                gc.collect()
                with kvitto.connect_sync(url) as other, other.channel() as mine:
                    mine.publish(b"child", "q")

            def publish():  # in the middle of this, too, the process may be forked
                while not stopped.is_set():
                    fast.publish(b"other thread", "q")

            stopped = threading.Event()
            publishing = threading.Thread(target=publish)
            publishing.start()
            for _ in range(3):
                in_child(child)
                channel.publish(b"parent", "q")
                fast.publish(b"parent", "q")
            stopped.set()
            publishing.join()
            fast.flush()
            message.ack()
            for _ in range(10):
                next(consumer).ack()
            consumer.cancel()
            rpc.__exit__(None, None, None)
        """,
    )


def test_a_forked_child_of_the_small_client_is_told_and_its_parent_is_not_disturbed(kvitto_broker: HasUrl) -> None:
    run(
        kvitto_broker.url,
        """
        from kvitto.client import Connection, ConnectionLost
        connection = Connection(url + "?heartbeat=60")
        channel = connection.channel()
        channel.queue_declare("q", durable=True)
        channel.confirm_select()
        channel.publish(b"x", routing_key="q")
        channel.wait_for_confirms(30)
        got = channel.get("q")
        channel.queue_declare("mine", durable=True)
        channel.consume("mine")
        channel.publish(b"x", routing_key="mine")
        channel.wait_for_confirms(30)
        connection.wait_until(lambda: channel.sink.batch.count == 1, 30, "for a message that is here in each child")

        def child():
            for call in (
                lambda: channel.publish(b"child", routing_key="q"),
                lambda: channel.wait_for_confirms(10),
                lambda: channel.queue_declare("child"),
                lambda: channel.get("q"),
                lambda: channel.receive(10),
                lambda: connection.channel(),
                lambda: connection.flush(),
                lambda: connection.process(),
            ):
                try:
                    call()
                except ConnectionLost as error:
                    assert "forked from" in str(error), error
                else:
                    raise AssertionError("not told")
            connection.close()
            with Connection(url) as other:
                other.channel().publish(b"child", routing_key="q")

        for _ in range(3):
            with connection.transport._lock:  # as the heartbeat thread may have it
                in_child(child)
            channel.publish(b"parent", routing_key="q")
            assert channel.wait_for_confirms(30)
        channel.ack(got.delivery_tag)
        assert channel.receive(30).count == 1
        connection.close()
        """,
    )
    assert count(kvitto_broker.url, "q") == 6


CONNECTING = {
    "asyncio": """
        task = None
        async def main():
            global task
            task = asyncio.create_task(kvitto.connect(address).__aenter__())
            await asyncio.to_thread(accept)
            fork()
            await asyncio.gather(task, return_exceptions=True)
        asyncio.run(main())
    """,
    "threads": """
        def connect():
            with contextlib.suppress(kvitto.client.ConnectFailed):
                kvitto.connect_sync(address)
        thread = threading.Thread(target=connect)
        thread.start()
        accept()
        fork()
        thread.join()
    """,
    "small": """
        def connect():
            with contextlib.suppress(kvitto.client.ConnectFailed):
                kvitto.client.Connection(address)
        thread = threading.Thread(target=connect)
        thread.start()
        accept()
        fork()
        thread.join()
    """,
}


@pytest.mark.parametrize("client", CONNECTING)
def test_a_child_does_not_keep_a_connection_that_was_being_made(client: str) -> None:
    """The handshake of TLS has begun when the process is forked, and fails then."""
    run(
        "",
        f"""
        import contextlib, socket, threading
        import kvitto.client
        listener = socket.create_server(("127.0.0.1", 0))
        address = "amqps://127.0.0.1:%d/?connection_timeout=20000" % listener.getsockname()[1]
        peer = None
        children = []

        def accept():
            global peer
            peer, _ = listener.accept()
            peer.settimeout(20)
            assert peer.recv(1)

        def fork():
            child = os.fork()
            if child == 0:
                signal.pause()
            children.append(child)
            peer.sendall(b"this is no TLS")

{textwrap.indent(textwrap.dedent(CONNECTING[client]), "        ")}
        try:
            while peer.recv(65536):
                pass
        except ConnectionResetError:
            pass
        finally:
            os.kill(children[0], signal.SIGKILL)
            os.waitpid(children[0], 0)
            peer.close()
            listener.close()
        """,
    )


def test_a_child_does_not_keep_the_connection_of_a_dead_parent(kvitto_broker: HasUrl) -> None:
    """The broker returns the parent's messages at once, although the child lives on."""
    out = run(
        kvitto_broker.url,
        """
        ours, theirs = os.pipe()
        parent = os.fork()
        if parent == 0:
            connection = kvitto.connect_sync(url)
            channel = connection.channel()
            channel.publish(b"x", channel.queue("q", durable=True).name)
            message = next(channel.queue("q", durable=True).consume())
            child = os.fork()
            if child == 0:
                signal.pause()
            os.write(theirs, b"%d" % child)
            os.kill(os.getpid(), signal.SIGKILL)
        child = int(os.read(ours, 20))
        os.waitpid(parent, 0)
        with kvitto.connect_sync(url) as connection, connection.channel() as channel:
            message = next(channel.queue("q", durable=True).consume())
            print(message.redelivered)
            message.ack()
        os.kill(child, signal.SIGKILL)
        """,
    )
    assert out == "True\n"


CLOSINGS = {
    "run": "asyncio.run(use())",
    "close": "loop = asyncio.new_event_loop(); loop.run_until_complete(use()); loop.close()",
}


@pytest.mark.parametrize("closing", CLOSINGS)
@pytest.mark.parametrize("lost", [False, True])
def test_an_event_loop_that_is_closed_early_ends_the_connection(
    kvitto_broker: HasUrl, closing: str, lost: bool
) -> None:
    run(
        kvitto_broker.url,
        f"""
        lost = {lost}
        kept = []

        async def use():
            connection = await kvitto.connect(url)
            channel = await connection.channel()
            queue = await channel.queue("q", durable=True)
            await channel.publish(b"x", "q")
            consumer = queue.consume()
            message = await anext(consumer)
            empty = (await channel.queue("empty", durable=True)).consume()
            await empty.__aenter__()
            waiting = asyncio.create_task(anext(empty)) if {closing == "run"} else None
            await asyncio.sleep(0)
            kept.extend([connection, channel, queue, consumer, message, empty, queue.read(0), queue.group("g")])
            if lost:
                from kvitto.client.aio import connection as module
                module.BACKOFF_S = 30.0
                connection._attempt = 3
                connection._addresses[0] = dataclasses.replace(connection._addresses[0], port=1)
                connection._link.transport.abort()
                while connection.connected or connection._task is None:
                    await asyncio.sleep(0)
                await asyncio.sleep(0.01)

        {CLOSINGS[closing]}
        connection, channel, queue, consumer, message, empty, reader, group = kept

        async def later():
            for call in (
                lambda: channel.publish(b"x", "q"),
                lambda: channel.publish(b"x", "q"),
                lambda: queue.get(),
                lambda: anext(consumer),
                lambda: anext(empty),
                lambda: anext(reader),
                lambda: group.__aenter__(),
                lambda: connection.channel().__aenter__(),
            ):
                with told("event loop"):
                    await call()
            assert not message.ack()
            await consumer.cancel()
            await channel.close()
            await connection.close()
            async with kvitto.connect(url) as other, other.channel() as mine:
                await mine.publish(b"x", "q")

        asyncio.run(later())
        del connection, channel, queue, consumer, message, empty, reader, group
        kept.clear()
        warnings = []
        sys.unraisablehook = lambda found: warnings.append(found.exc_value)
        gc.collect()
        gc.collect()
        assert all(isinstance(each, ResourceWarning) for each in warnings), warnings  # that it was not closed
        """,
    )


def test_an_ack_is_the_first_that_meets_a_closed_loop(kvitto_broker: HasUrl) -> None:
    run(
        kvitto_broker.url,
        """
        async def use():
            connection = await kvitto.connect(url)
            channel = await connection.channel()
            queue = await channel.queue("q", durable=True)
            await channel.publish(b"x", "q")
            return connection, await anext(queue.consume())

        connection, message = asyncio.run(use())
        with told("event loop"):
            message.ack()
        asyncio.run(connection.close())
        sys.unraisablehook = lambda found: None
        """,
    )


def test_the_program_ends_with_a_connection_that_is_open(kvitto_broker: HasUrl) -> None:
    run(
        kvitto_broker.url,
        """
        async def use():
            connection = await kvitto.connect(url)
            channel = await connection.channel()
            queue = await channel.queue("q", durable=True)
            await channel.publish(b"x", "q")
            return connection, await anext(queue.consume())

        sys.unraisablehook = lambda found: None  # asyncio says that its transport was not closed
        kept = asyncio.run(use())
        """,
    )


def test_what_threads_have_published_is_sent_before_the_program_ends(kvitto_broker: HasUrl) -> None:
    run(
        kvitto_broker.url,
        """
        connection = kvitto.connect_sync(url)
        channel = connection.channel(confirms=False)
        channel.queue("left", durable=True)
        for n in range(20000):
            channel.publish(b"x" * 100, "left")
        """,
    )
    with kvitto.connect_sync(kvitto_broker.url) as connection, connection.channel() as channel:
        queue = channel.queue("left", durable=True)
        assert queue.message_count == 20000
        with connection.channel(confirms=False) as fast:
            pass
        fast = connection.channel(confirms=False)
        for _ in range(20000):
            fast.publish(b"x" * 100, "left")
    assert count(kvitto_broker.url, "left") == 40000
