"""A real Prometheus scrapes a live broker, and evaluates our alerts and every expression of two dashboards: ours and RabbitMQ's."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import kvitto
from kvitto.client import Connection
from tests.http import rabbitmq_overview as overview
from tests.http.api import Http
from tests.support.prometheus import Prometheus, prometheus, promtool
from tests.support.wait import wait_until

ROOT = Path(__file__).resolve().parent.parent.parent
DASHBOARD = ROOT / "deploy" / "grafana" / "kvitto.json"
RULES = ROOT / "deploy" / "prometheus" / "kvitto-alerts.yml"
RARE = ("> 0", "unroutable", "closed", "refused")
"""Parts of expressions that may have no result: nothing of the kind has happened."""


def expressions() -> list[str]:
    """All expressions of the dashboard, with Grafana's variables filled in."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    found = [target["expr"] for panel in panels for target in panel.get("targets", [])]
    return [text.replace("$instance", ".*").replace("$__rate_interval", "30s") for text in found]


def scraping(address: str) -> dict[str, Any]:
    """A configuration that scrapes one broker as often as a test can wait for, under both kinds of names."""
    targets = [{"targets": [address]}]
    jobs = [
        {"job_name": "kvitto", "static_configs": targets},
        {"job_name": "like-rabbitmq", "static_configs": targets, "params": {"prefix": ["rabbitmq"]}},
    ]
    often = {"scrape_interval": "250ms", "scrape_timeout": "250ms", "evaluation_interval": "1s"}
    return {"global": often, "scrape_configs": jobs}


def traffic(broker: kvitto.Broker) -> None:
    """Some of each thing that the dashboard shows."""
    with Connection(broker.url) as connection:
        channel = connection.channel()
        channel.confirm_select()
        channel.queue_declare("seen", durable=True)
        for _ in range(50):
            channel.publish(b"12345", routing_key="seen")
        channel.publish(b"x", routing_key="nowhere")
        channel.wait_for_confirms(10)
        channel.consume("seen")
        channel.receive(10, least=50)
        channel.ack(0, multiple=True)
        channel.queue_declare("left", durable=True)
        channel.publish(b"x", routing_key="left")
        channel.wait_for_confirms(10)


@pytest.fixture(scope="module")
def watched(tmp_path_factory: pytest.TempPathFactory, broker: kvitto.Broker, api: Http) -> Iterator[Prometheus]:
    """A Prometheus that has seen two scrapes of the broker before its traffic and two behind it."""
    config = {**scraping(f"{api.host}:{api.port}"), "rule_files": [str(RULES)]}
    with prometheus(tmp_path_factory.mktemp("prometheus"), config) as found:
        scrapes = "min(count_over_time(up[5m]))"
        wait_until(lambda: (found.value(scrapes) or 0) >= 2)
        traffic(broker)
        seen = found.value(scrapes) or 0
        wait_until(lambda: (found.value(scrapes) or 0) >= seen + 2)
        assert found.value("min(up)") == 1
        yield found


def test_every_expression_of_the_dashboard_has_a_result(watched: Prometheus) -> None:
    empty = [text for text in expressions() if not watched.query(text)]
    assert [text for text in empty if not any(part in text for part in RARE)] == []


def test_every_expression_of_rabbitmqs_dashboard_has_a_result(watched: Prometheus) -> None:
    (identity,) = watched.query("rabbitmq_identity_info")
    asked = overview.expressions(identity["metric"]["rabbitmq_cluster"], "30s")
    assert len(asked) > 60
    assert [text for text in asked if len(watched.query(text)) != 1] == []
    rate = "sum(irate(rabbitmq_global_messages_received_total[5m])) >= 0"
    assert watched.value(rate) is not None


def test_the_quantiles_are_those_of_the_traffic(watched: Prometheus) -> None:
    for name in ("publish_to_confirm", "publish_to_deliver", "deliver_to_ack", "sync", "turn"):
        text = f"histogram_quantile(0.5, sum by (le) (increase(kvitto_{name}_seconds_bucket[1m])))"
        median = watched.value(text)
        assert median is not None and 0 < median < 10, name
    assert (watched.value("sum(increase(kvitto_publish_to_confirm_seconds_count[1m]))") or 0) >= 50


def test_the_rules_are_evaluated_and_nothing_fires(watched: Prometheus) -> None:
    def evaluated() -> list[dict[str, Any]] | None:
        (group,) = watched.ask("rules")["groups"]
        rules: list[dict[str, Any]] = group["rules"]
        return rules if all(rule["health"] == "ok" for rule in rules) else None

    rules = wait_until(evaluated, timeout=90)
    # a message that no queue took, and the disk's free space, are the traffic's and the machine's
    own = {"KvittoUnroutable", "KvittoDiskLow", "KvittoMemoryHigh"}
    assert {rule["name"] for rule in rules if rule["state"] == "firing"} <= own


def test_promtool_finds_nothing_to_say_about_the_metrics(api: Http, broker: kvitto.Broker) -> None:
    traffic(broker)
    body = api.as_user("").call("GET", "/metrics").body
    done = subprocess.run([promtool(), "check", "metrics"], input=body, capture_output=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_the_dashboard_is_what_the_script_writes(tmp_path: Path) -> None:
    text = "import runpy, sys; print(runpy.run_path(sys.argv[1])['text'](), end='')"
    command = [sys.executable, "-c", text, str(ROOT / "scripts" / "dashboard")]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == DASHBOARD.read_text()
