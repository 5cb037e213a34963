"""`kvitto cluster` and the settings of a node: what is made, what is shown, and what is refused with words."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from kvitto.base.config import Config, ConfigError
from kvitto.cluster.state import Member, new_entry, write_history, write_member
from kvitto.server.etcd import Etcd
from kvitto.store.disk import RealDisk
from kvitto.store.store import FORMAT
from tests.cli.process import kvitto
from tests.support.etcd import FakeEtcd, free_port


@pytest.fixture
def etcd() -> Iterator[FakeEtcd]:
    found = FakeEtcd()
    try:
        yield found
    finally:
        found.stop()


@pytest.fixture
def key(tmp_path: Path) -> Path:
    found = tmp_path / "key"
    found.write_text("0123456789abcdef")
    found.chmod(0o600)
    return found


def refused(*arguments: str, code: int = 1) -> str:
    result = kvitto(*arguments)
    assert result.returncode == code and not result.stdout, result
    assert "Traceback" not in result.stderr
    return result.stderr.strip().splitlines()[-1]


def node(etcd: FakeEtcd, key: Path, data: Path) -> tuple[str, ...]:
    words = ("serve", "--data-dir", str(data), "--port", "0", "--http-port", "off", "--etcd", etcd.url)
    return (*words, "--cluster-key", str(key), "--followers", f"127.0.0.1:{free_port()}")


def test_a_cluster_is_made_once(etcd: FakeEtcd, tmp_path: Path) -> None:
    one, two = str(tmp_path / "one"), str(tmp_path / "two")
    assert "there is no cluster kvitto" in refused("cluster", "status", "--etcd", etcd.url)
    made = kvitto("cluster", "init", "--etcd", etcd.url, "--data-dir", one)
    assert made.returncode == 0 and "cluster kvitto is made" in made.stdout
    assert "nothing is confirmed before 2 nodes are in sync" in made.stdout
    assert "already: start its nodes" in refused("cluster", "init", "--etcd", etcd.url, "--data-dir", two)
    again = kvitto("cluster", "init", "--once", "--etcd", etcd.url, "--data-dir", two)
    assert (again.returncode, again.stdout) == (0, "there is a cluster kvitto\n") and not (tmp_path / "two").exists()
    other = kvitto("cluster", "init", "--etcd", etcd.url, "--data-dir", two, "--cluster", "b", "--min-in-sync", "1")
    assert other.returncode == 0
    shown = kvitto("cluster", "status", "--etcd", etcd.url, "--json")
    document = json.loads(shown.stdout)
    assert document["epoch"] == 0 and len(document["members"]) == 1 and document["seat"] is None
    assert "leader    nobody" in kvitto("cluster", "status", "--etcd", etcd.url, "--cluster", "b").stdout


def test_what_cannot_be_is_refused(etcd: FakeEtcd, key: Path, tmp_path: Path) -> None:
    nobody = f"http://127.0.0.1:{free_port()}"
    assert "etcd does not answer" in refused("cluster", "status", "--etcd", nobody, code=3)
    assert "is no address of etcd" in refused("cluster", "status", "--etcd", "ftp://x", code=2)
    assert "is no name" in refused("cluster", "status", "--etcd", etcd.url, "--cluster", "a/b", code=2)
    init = ("cluster", "init", "--etcd", etcd.url, "--data-dir")
    assert "must be 1 to 17" in refused(*init, str(tmp_path / "one"), "--min-in-sync", "0", code=2)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "letter").write_text("a letter")
    assert "letter" in refused(*init, str(tmp_path / "full"))
    assert "there is no cluster kvitto" in refused(*node(etcd, key, tmp_path / "one"))
    force = ("cluster", "force", "--etcd", etcd.url, "--data-dir")
    assert "there is no directory" in refused(*force, str(tmp_path / "nowhere"))
    (tmp_path / "empty").mkdir()
    assert "belongs to no cluster" in refused(*force, str(tmp_path / "empty"))


def test_a_node_starts_on_no_guess(etcd: FakeEtcd, key: Path, tmp_path: Path) -> None:
    """R9: another cluster, another etcd, an older document."""
    data = tmp_path / "one"
    kvitto("cluster", "init", "--etcd", etcd.url, "--data-dir", str(data), "--min-in-sync", "1")
    disk, register = RealDisk(str(data)), Etcd([etcd.url], "kvitto")
    document = register.read().document
    assert document is not None
    start = node(etcd, key, data)
    without = ("serve", "--data-dir", str(data), "--port", "0", "--http-port", "off")
    assert "belongs to a cluster: serve it with --etcd" in refused(*without)
    write_member(disk, Member("another", "1", "kvitto", document.members[0]))
    assert "belongs to another cluster" in refused(*start)
    write_member(disk, Member(document.cluster, "2", "kvitto", document.members[0]))
    assert "is another etcd than the one" in refused(*start)
    write_member(disk, Member(document.cluster, "1", "kvitto", document.members[0]))
    write_history(disk, [new_entry(7)])
    assert "knows epoch 7" in refused(*start)
    (data / "history").write_bytes(b"7:\xb1\n")
    assert "history cannot be read: let this node follow with an empty directory" in refused(*start)
    write_history(disk, [new_entry(7)])
    forced = kvitto("cluster", "force", "--etcd", etcd.url, "--data-dir", str(data))
    assert forced.returncode == 0, forced.stderr
    found = register.read().document
    assert found is not None and (found.epoch, found.members) == (7, document.members)
    write_member(disk, Member(document.cluster, "1", "kvitto", "f" * 32))
    force = ("cluster", "force", "--etcd", etcd.url, "--data-dir", str(data))
    assert f"was not in sync, and may lack what was confirmed: {document.members[0][:8]} had" in refused(*force)
    assert register.read().document == found
    assert kvitto(*force, "--lose-the-rest").returncode == 0
    again = register.read().document
    assert again is not None and again.members == ("f" * 32,)
    mistyped = ("cluster", "force", "--etcd", etcd.url, "--cluster", "Kvitto", "--data-dir", str(data))
    assert "belongs to the cluster kvitto: say --cluster kvitto" in refused(*mistyped)
    assert "belongs to the cluster kvitto: say --cluster kvitto" in refused(*start, "--cluster", "Kvitto")
    renamed = ("cluster", "init", "--etcd", etcd.url, "--cluster", "other", "--data-dir", str(data))
    assert "belongs to the cluster kvitto: say --cluster kvitto, or `kvitto promote`" in refused(*renamed)
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / "letter").write_text("a letter")
    assert "letter" in refused(*node(etcd, key, tmp_path / "two"))
    assert "no broker has ever written to it" in refused("promote", str(data))
    (data / "format").write_bytes(FORMAT)
    assert kvitto("promote", str(data)).returncode == 0
    assert "is not empty and belongs to no cluster" in refused(*start)
    assert kvitto(*renamed).returncode == 0
    other = Etcd([etcd.url], "other").read().document
    assert other is not None and other.epoch == 7, "with a lower one the directory would be refused"


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"etcd": "http://x"}, "--etcd needs --followers"),
        ({"etcd": "http://x", "follow": "h:1"}, "--etcd and --follow exclude each other"),
        ({"etcd": "http://x", "followers": "h:1", "follow": "h:1"}, "--etcd and --follow exclude each other"),
        ({"etcd": "http://x", "followers": "h:1", "min_in_sync": 2}, "--etcd and --min-in-sync exclude each other"),
        ({"etcd": "http://x", "followers": "h:0"}, "--advertise HOST:PORT is needed"),
        ({"etcd": "http://x", "followers": "0.0.0.0:1"}, "--advertise HOST:PORT is needed"),
        ({"etcd": "http://x", "followers": "h:1", "advertise": "h"}, "is no address"),
        ({"etcd": "http://x", "followers": "h:1"}, "needs --cluster-key"),
        ({"etcd": "http://x", "followers": "h:1", "advertise": "http://h:1"}, "is no address"),
        ({"port": 7, "http_port": 7}, "--port and --http-port have the same port, 7"),
        ({"followers": "127.0.0.1:5672", "cluster_key": Path("k")}, "--port and --followers have the same port"),
        ({"etcd_user_file": Path("user")}, "--etcd-user-file needs --etcd"),
        ({"etcd_ca": Path("ca")}, "--etcd-ca needs --etcd"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(settings: dict[str, object], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        Config(**settings)  # type: ignore[arg-type]


def test_a_node_that_could_not_lead_is_not_started(tmp_path: Path, etcd: FakeEtcd, key: Path) -> None:
    data = tmp_path / "one"
    kvitto("cluster", "init", "--etcd", etcd.url, "--data-dir", str(data))
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        started = [address if word.startswith("127.0.0.1:") else word for word in node(etcd, key, data)]
        assert "This node could not lead: choose another --followers" in refused(*started)
