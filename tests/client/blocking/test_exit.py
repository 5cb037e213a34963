"""`kvitto.connect_sync` at the end of the program, and in signal handlers. Each program is a process of its own."""

from textwrap import dedent

import pytest

import kvitto
from tests.client.aio.test_lifetimes import count, run

# `lose` waits for the loss itself: the connection may be back before the program could see that it was away
LOSE = """
import threading
from kvitto.client import ConnectionLost

def lose(connection):
    lost = threading.Event()

    def cut():
        connection._connection._link.fail(ConnectionLost("cut by the test"))
        lost.set()

    connection._loop.soon(cut)
    lost.wait()
"""


def test_what_is_published_last_is_sent_if_the_program_keeps_the_channel_only(kvitto_broker: kvitto.Broker) -> None:
    run(
        kvitto_broker.url,
        """
        import atexit
        channel = kvitto.connect_sync(url).channel(confirms=False)
        channel.queue("left", durable=True)
        gc.collect()

        @atexit.register
        def last():
            for n in range(20000):
                channel.publish(b"x" * 100, "left")
        """,
    )
    assert count(kvitto_broker.url, "left") == 20000


def test_a_connection_that_is_lost_at_the_end_comes_back_before_it_is_closed(kvitto_broker: kvitto.Broker) -> None:
    """The name of the host is looked up, although no executor takes work any more."""
    run(
        kvitto_broker.url.replace("127.0.0.1", "localhost"),
        LOSE
        + dedent("""
        import atexit
        connection = kvitto.connect_sync(url)
        channel = connection.channel(confirms=False)
        channel.queue("left", durable=True)

        @atexit.register
        def last():
            lose(connection)
            for n in range(100):
                channel.publish(b"x", "left")
        """),
    )
    assert count(kvitto_broker.url, "left") == 100


@pytest.mark.parametrize("interrupted", [False, True])
def test_the_limit_is_for_all_and_what_is_not_sent_is_told(kvitto_broker: kvitto.Broker, interrupted: bool) -> None:
    limit_s = 1000.0 if interrupted else 0.3
    out = run(
        kvitto_broker.url,
        LOSE
        + dedent(f"""
        import atexit, time
        atexit.register(lambda: print("ended after", time.monotonic() - began))  # after the client's
        import kvitto.client.blocking.connection
        from kvitto.client.blocking import outbox
        from kvitto.client.blocking.loop import Loop
        outbox.CLOSE_TIMEOUT_S = {limit_s}

        def unreachable(connection):
            addresses = connection._connection._addresses
            connection._loop.soon(lambda: addresses.__setitem__(0, dataclasses.replace(addresses[0], port=1)))
            lose(connection)

        logging.getLogger("kvitto.client").setLevel(logging.WARNING)
        logging.getLogger("kvitto.client").addFilter(lambda record: "not sent" in record.getMessage())
        logging.basicConfig(stream=sys.stdout, format="%(message)s")
        join, joins = Loop.join, []

        def interrupted(loop):
            joins.append(loop)
            if len(joins) == 2:
                raise KeyboardInterrupt
            if len(joins) != 1:
                join(loop)

        if {interrupted}:
            Loop.join = interrupted
        connections = [kvitto.connect_sync(url) for _ in range(5)]
        for connection in connections:
            channels = [connection.channel(confirms=False) for _ in range(4)]
            unreachable(connection)
            for channel in channels:
                channel.publish(b"x", "q")
        began = time.monotonic()
        """),
    )
    lines = out.splitlines()
    assert len(lines) == 6 and all(line.startswith("4 messages that were published") for line in lines[:5])
    assert float(lines[5].removeprefix("ended after ")) < (60 if interrupted else 20 * limit_s / 2)


def test_a_signal_handler_closes_the_connection_that_its_thread_waits_for(kvitto_broker: kvitto.Broker) -> None:
    out = run(
        kvitto_broker.url,
        """
        import threading
        connection = kvitto.connect_sync(url)
        channel = connection.channel()
        queue = channel.queue("q", durable=True)
        signal.signal(signal.SIGTERM, lambda *_: connection.close())

        def terminate():
            with kvitto.connect_sync(url) as other, other.channel() as looking:
                while not looking.queue("q", durable=True).consumer_count:
                    pass
            os.kill(os.getpid(), signal.SIGTERM)

        thread = threading.Thread(target=terminate)
        thread.start()
        try:
            next(queue.consume())
        except Closed:
            print("closed")
        thread.join()
        """,
    )
    assert out == "closed\n"
