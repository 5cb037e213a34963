"""The histograms of /metrics count each message once, in the place that docs/monitoring.md names."""

import kvitto
from kvitto.client import Connection
from tests.http.api import Http
from tests.http.test_metrics import read
from tests.support.wait import wait_until


def test_messages_are_counted_in_each_histogram(api: Http, broker: kvitto.Broker) -> None:
    before = read(api)
    with Connection(broker.url) as connection:
        channel = connection.channel()
        channel.confirm_select()
        channel.queue_declare("timed", durable=True)
        for _ in range(20):
            channel.publish(b"12345", routing_key="timed")
        channel.wait_for_confirms()
        channel.consume("timed")
        channel.receive(10, least=20)
        channel.ack(0, multiple=True)

        def grown(name: str) -> float:
            return now[name] - before[name]

        now = wait_until(lambda: v if (v := read(api))["kvitto_messages_acknowledged_total"] >= 20 else None)
        assert grown("kvitto_publish_to_confirm_seconds_count") == 20
        assert grown("kvitto_publish_to_deliver_seconds_count") == 20
        assert 1 <= grown("kvitto_deliver_to_ack_seconds_count") <= 20
        assert grown("kvitto_message_size_bytes_count") == 20
        assert grown("kvitto_message_size_bytes_sum") == 100
        assert grown("kvitto_sync_seconds_count") >= 1
        assert grown("kvitto_turn_seconds_count") >= 3
        for name in ("publish_to_confirm", "publish_to_deliver", "deliver_to_ack", "sync", "turn"):
            assert 0 < grown(f"kvitto_{name}_seconds_sum") < 60
    for by in ("peers", "callbacks"):
        assert grown(f'kvitto_loop_held_seconds_count{{by="{by}"}}') >= 1
