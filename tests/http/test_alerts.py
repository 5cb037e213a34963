"""deploy/prometheus/kvitto-alerts.yml: each alert fires once when its condition holds, and none of the others does."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest

from tests.support.prometheus import promtool

ROOT = Path(__file__).resolve().parent.parent.parent
RULES = ROOT / "deploy" / "prometheus" / "kvitto-alerts.yml"
NAMES = re.findall(r"^ +- alert: (\w+)$", RULES.read_text(), re.MULTILINE)
WHO = 'job="kvitto",instance="a:15672"'
OTHER = 'job="kvitto",instance="b:15672"'
"""A node that follows."""
QUEUE = f'{WHO},vhost="/",queue="orders"'
MINUTES = 90

Series = dict[str, str]
"""Values by series, one for each minute, in the notation of promtool."""


def buckets(name: str, quick: str, slow: str, more: str = "") -> Series:
    """A histogram that has `quick` observations up to 10 ms and `slow` ones in addition up to 10 s."""
    fast, slowly = (int(each) for each in (quick, slow))
    steps = {"0.01": fast, "0.1": fast, "0.25": fast, "1": fast, "10": fast + slowly, "+Inf": fast + slowly}
    return {f'{name}_bucket{{{WHO}{more},le="{le}"}}': f"0+{n}x{MINUTES}" for le, n in steps.items()}


def gauge(name: str, value: float, labels: str = WHO) -> Series:
    return {f"{name}{{{labels}}}": f"{value}x{MINUTES}"}


CONFIRMS, SYNCS, LOOP = "kvitto_publish_to_confirm_seconds", "kvitto_sync_seconds", "kvitto_loop_held_seconds"
HEALTHY: Series = {
    **gauge("up", 1),
    **gauge("kvitto_build_info", 1, f'{WHO},version="1"'),
    **gauge("kvitto_store_failed", 0),
    **gauge("kvitto_publishers_blocked", 0),
    **gauge("kvitto_alarms", 0),
    **gauge("kvitto_sync_enabled", 1),
    **gauge("kvitto_disk_free_bytes", 1e11),
    **gauge("kvitto_disk_free_limit_bytes", 5e7),
    **gauge("process_resident_memory_bytes", 1e8),
    **gauge("kvitto_memory_limit_bytes", 1e9),
    **gauge("process_open_fds", 100),
    **gauge("process_max_fds", 1000),
    **gauge("process_start_time_seconds", 1.7e9),
    **buckets(CONFIRMS, "1000", "0"),
    **buckets(SYNCS, "1000", "0"),
    **buckets(LOOP, "1000", "0", ',by="peers"'),
    **gauge("kvitto_queue_messages_ready", 50_000, QUEUE),
    **gauge("kvitto_queue_consumers", 1, QUEUE),
    **gauge("kvitto_messages_unroutable_total", 7),
    f"kvitto_logins_refused_total{{{WHO}}}": f"0+1x{MINUTES}",
    **gauge("kvitto_refused_total", 3, f'{WHO},limit="frame"'),
    **gauge("kvitto_cluster_is_leader", 1),
    **gauge("kvitto_cluster_is_leader", 0, OTHER),
    **gauge("kvitto_cluster_members", 3),
    **gauge("kvitto_cluster_members", 3, OTHER),
    **gauge("kvitto_follower_in_sync", 1, f'{WHO},member="5f0c1b7e"'),
}
CONDITIONS: dict[str, Series] = {
    "KvittoDown": gauge("up", 0),
    "KvittoDiskFailed": gauge("kvitto_store_failed", 1),
    "KvittoPublishersBlocked": gauge("kvitto_publishers_blocked", 1),
    "KvittoAlarm": gauge("kvitto_alarms", 2),
    "KvittoSyncOff": gauge("kvitto_sync_enabled", 0),
    "KvittoDiskLow": gauge("kvitto_disk_free_bytes", 9e7),
    "KvittoMemoryHigh": gauge("process_resident_memory_bytes", 9.5e8),
    "KvittoFilesRunningOut": gauge("process_open_fds", 950),
    "KvittoConfirmsSlow": buckets(CONFIRMS, "1000", "50"),
    "KvittoSyncSlow": buckets(SYNCS, "1000", "50"),
    "KvittoLoopHeld": buckets(LOOP, "1000", "50", ',by="peers"'),
    "KvittoQueueWithoutConsumers": gauge("kvitto_queue_consumers", 0, QUEUE),
    "KvittoBacklogGrows": {f"kvitto_queue_messages_ready{{{QUEUE}}}": f"20000+100x{MINUTES}"},
    "KvittoUnroutable": {f"kvitto_messages_unroutable_total{{{WHO}}}": f"0+1x{MINUTES}"},
    "KvittoLoginsRefused": {f"kvitto_logins_refused_total{{{WHO}}}": f"0+30x{MINUTES}"},
    "KvittoRefusals": {f'kvitto_refused_total{{{WHO},limit="frame"}}': f"0+1x{MINUTES}"},
    "KvittoNoLeader": gauge("kvitto_cluster_is_leader", 0),
    "KvittoMembersMissing": {f"kvitto_cluster_members{{{who}}}": f"3x30 2x{MINUTES - 30}" for who in (WHO, OTHER)},
    "KvittoFollowerBehind": gauge("kvitto_follower_in_sync", 0, f'{WHO},member="5f0c1b7e"'),
    "KvittoRestarts": {f"process_start_time_seconds{{{WHO}}}": "1x70 2x5 3x5 4x5 5x5"},
}


def firing(place: Path, changed: Series, expected: list[str]) -> None:
    """Assert that just these alerts fire, each once, an hour and a half after the metrics have begun to look so."""
    series = [{"series": name, "values": values} for name, values in (HEALTHY | changed).items()]
    counted = {
        "expr": 'count by (alertname) (ALERTS{alertstate="firing"})',
        "eval_time": f"{MINUTES - 2}m",
        "exp_samples": [{"labels": f'{{alertname="{name}"}}', "value": 1} for name in expected],
    }
    test = {
        "rule_files": [str(RULES)],
        "evaluation_interval": "1m",
        "tests": [{"interval": "1m", "input_series": series, "promql_expr_test": [counted]}],
    }
    written = place / "test.yml"
    written.write_text(json.dumps(test))  # JSON is YAML
    done = subprocess.run([promtool(), "test", "rules", written], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_alert_has_a_condition() -> None:
    assert sorted(NAMES) == sorted(CONDITIONS)
    assert len(NAMES) == len(set(NAMES))


def test_the_rules_are_valid() -> None:
    done = subprocess.run([promtool(), "check", "rules", RULES], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_nothing_fires_for_a_healthy_broker(tmp_path: Path) -> None:
    firing(tmp_path, {}, [])


@pytest.mark.parametrize("name", CONDITIONS)
def test_an_alert_fires_once_and_no_other_does(name: str, tmp_path: Path) -> None:
    firing(tmp_path, CONDITIONS[name], [name])
