"""What is in deploy/: the unit of systemd, the image and the chart agree with the program, and with each other.

No container runs here. Where a tool that judges these files is installed, it is asked.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvitto.base.config import TYPES, Config
from kvitto.base.environment import CONFIG, read, variable
from kvitto.base.version import __version__
from kvitto.cli import cluster
from tests.support import plain_yaml
from tests.support.etcd import FakeEtcd

ROOT = Path(__file__).resolve().parent.parent
UNIT = ROOT / "deploy" / "systemd" / "kvitto.service"
NODE_UNIT = ROOT / "deploy" / "systemd" / "kvitto.service.d" / "cluster.conf"
DOCKER = ROOT / "deploy" / "docker"
CHART = ROOT / "deploy" / "helm" / "kvitto"
TEMPLATES = sorted((CHART / "templates").iterdir())
KNOWN = {*map(variable, TYPES), CONFIG}
NAME = re.compile(r"KVITTO_[A-Z_]+[A-Z]")


def needs(tool: str) -> pytest.MarkDecorator:
    return pytest.mark.skipif(shutil.which(tool) is None, reason=f"needs {tool}")


def asked(*command: str) -> None:
    """A tool finds nothing wrong."""
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-3000:]


@pytest.mark.parametrize(
    "path", [UNIT, NODE_UNIT, *DOCKER.glob("[!.]*"), *TEMPLATES, CHART / "values.yaml"], ids=lambda p: p.name
)
def test_every_variable_that_is_set_is_a_setting(path: Path) -> None:
    for name in NAME.findall(path.read_text()):
        # the recipe of a wheel has one of its own, and a text may speak of all
        assert name in KNOWN or name in ("KVITTO_NAME", "KVITTO_REQUIRE_COMPILED"), name


def parsed(words: list[str]) -> argparse.Namespace:
    """What `kvitto cluster` understands by these words."""
    parser = argparse.ArgumentParser()
    cluster.add_parser(parser.add_subparsers())
    return parser.parse_args(words)


# -- systemd -------------------------------------------------------------------------------------------------


def test_the_unit_of_systemd_names_what_the_broker_does() -> None:
    """It says when it is ready and gives signs of life (tests/server/test_notify.py); SIGHUP reads files again."""
    lines = set(UNIT.read_text().splitlines())
    assert {"Type=notify", "NotifyAccess=main", "ExecReload=/bin/kill -HUP $MAINPID", "WatchdogSec=60"} <= lines
    assert {"DynamicUser=yes", "StateDirectory=kvitto", "ProtectSystem=strict", "NoNewPrivileges=yes"} <= lines


def test_the_unit_of_a_node_hands_its_secrets_over_as_credentials() -> None:
    """Also those in lines that are to be switched on."""
    text = NODE_UNIT.read_text().replace("#Load", "Load").replace("#Environment", "Environment")
    handed = set(re.findall(r"^LoadCredential=(\S+?):", text, re.MULTILINE))
    used = set(re.findall(r"=%d/(\S+)", text))
    assert handed == used and "cluster-key" in used
    assert {name for name in NAME.findall(text) if "%d" in text.split(name)[1][:4]} <= KNOWN


@needs("systemd-analyze")
@pytest.mark.parametrize("node", [False, True])
def test_systemd_finds_no_mistake_in_the_unit(tmp_path: Path, node: bool) -> None:
    if node:
        shutil.copytree(NODE_UNIT.parent, tmp_path / NODE_UNIT.parent.name)
    unit = tmp_path / "kvitto.service"
    unit.write_text(UNIT.read_text().replace("/opt/kvitto/bin/kvitto", sys.executable))
    asked("systemd-analyze", "verify", str(unit))
    asked("systemd-analyze", "security", "--offline=true", "--threshold=15", "--no-pager", str(unit))


# -- the image -----------------------------------------------------------------------------------------------


def recipe() -> list[str]:
    """The instructions of the Dockerfile, each on one line."""
    text = re.sub(r"^#.*\n", "", (DOCKER / "Dockerfile").read_text(), flags=re.MULTILINE)
    return [line for line in text.replace("\\\n", " ").splitlines() if line.strip()]


def test_the_image_has_a_user_of_its_own_a_check_and_what_the_documents_say() -> None:
    second = recipe()[[line.startswith("FROM") for line in recipe()].index(True, 2) :]
    assert [line for line in second if line.startswith("USER")] == ["USER 10001:10001"]
    assert {"STOPSIGNAL SIGTERM", 'ENTRYPOINT ["kvitto"]', 'CMD ["serve"]', "VOLUME /var/lib/kvitto"} <= {*second}
    assert any(line.startswith("HEALTHCHECK") and line.endswith('CMD ["kvitto", "ctl", "ping"]') for line in second)
    assert not any("gcc" in line or "pip" in line for line in second)


def test_the_builder_gets_what_a_wheel_is_made_of() -> None:
    copied = {
        word for line in recipe() if line.startswith("COPY") and "--from" not in line for word in line.split()[1:-1]
    }
    ignore = (DOCKER / "Dockerfile.dockerignore").read_text().splitlines()
    assert copied == {line[1:] for line in ignore if line.startswith("!")}
    assert all((ROOT / name).exists() for name in copied)


def test_what_the_image_sets_is_a_configuration() -> None:
    (line,) = (line for line in recipe() if line.startswith("ENV PATH"))
    environ = dict(word.split("=", 1) for word in line.split()[1:])
    config = Config(**read(environ))
    assert (config.data_dir, config.host) == (Path("/var/lib/kvitto"), "0.0.0.0")


def test_the_compose_file_uses_the_image_as_it_is() -> None:
    found: Any = plain_yaml.parse((DOCKER / "compose.yaml").read_text())
    service = found["services"]["kvitto"]
    assert (DOCKER / service["build"]["context"] / service["build"]["dockerfile"]).samefile(DOCKER / "Dockerfile")
    assert service["volumes"] == ["data:/var/lib/kvitto"] and found["volumes"].keys() == {"data"}
    assert service["environment"]["KVITTO_DEFAULT_PASS_FILE"] == f"/run/secrets/{service['secrets'][0]}"
    assert found["secrets"].keys() == {*service["secrets"]}
    settings = read(service["environment"])
    assert Config(**settings).default_user == "ops"


def test_the_compose_file_of_a_cluster_has_nodes_that_find_each_other() -> None:
    found: Any = plain_yaml.parse((DOCKER / "compose-cluster.yaml").read_text())
    services = found["services"]
    init, nodes = services["init"], [services[name] for name in ("node1", "node2", "node3")]
    assert (DOCKER / init["build"]["context"] / init["build"]["dockerfile"]).samefile(DOCKER / "Dockerfile")
    assert init["volumes"] == nodes[0]["volumes"], "the cluster begins with the directory of the first node"
    args = parsed([*init["command"], "--etcd", init["environment"]["KVITTO_ETCD"]])
    assert (args.once, args.data_dir) == (True, Path("/var/lib/kvitto"))
    configs = [Config(**read(node["environment"])) for node in nodes]
    assert [config.advertised for config in configs] == [("node1", 5690), ("node2", 5690), ("node3", 5690)]
    assert {config.etcd for config in configs} == {init["environment"]["KVITTO_ETCD"]} == {"http://etcd:2379"}
    for node, config in zip(nodes, configs, strict=True):
        secrets = [config.default_pass_file, config.cluster_key]
        assert [*map(str, secrets)] == [f"/run/secrets/{name}" for name in node["secrets"]]
        assert found["secrets"].keys() == {*node["secrets"]}
        assert node["image"] == init["image"]
    ports = [port for node in nodes for port in node["ports"]]
    assert len({port.rsplit(":", 1)[0] for port in ports}) == len(ports) == 6
    assert found["volumes"].keys() == {"etcd", "node1", "node2", "node3"}


@needs("hadolint")
def test_hadolint_finds_no_mistake_in_the_dockerfile() -> None:
    asked("hadolint", str(DOCKER / "Dockerfile"))


# -- the chart -----------------------------------------------------------------------------------------------


def leaves(node: Any, path: str = "") -> set[str]:
    """The paths of all values. An empty mapping is one value: the user fills it."""
    if not isinstance(node, dict) or not node:
        return {path}
    return {leaf for name, value in node.items() for leaf in leaves(value, f"{path}.{name}" if path else name)}


def test_the_chart_has_the_version_of_the_package() -> None:
    chart: Any = plain_yaml.parse((CHART / "Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (__version__, __version__)


def test_templates_use_each_value_that_there_is_and_no_other() -> None:
    values = leaves(plain_yaml.parse((CHART / "values.yaml").read_text()))
    used = {name for path in TEMPLATES for name in re.findall(r"\.Values\.([\w.]*\w)", path.read_text())}

    def is_within(name: str, other: str) -> bool:
        return name == other or name.startswith(f"{other}.")

    assert [name for name in sorted(used) if not any(is_within(value, name) for value in values)] == []
    assert [value for value in sorted(values) if not any(is_within(value, name) for name in used)] == []


@pytest.mark.parametrize("path", TEMPLATES, ids=lambda path: path.name)
def test_blocks_of_templates_end_and_helpers_exist(path: Path) -> None:
    text = path.read_text()
    assert text.count("{{") == text.count("}}")
    words = re.findall(r"\{\{-? *(if|range|with|define|end)\b", text)
    assert words.count("end") == len(words) - words.count("end")
    helpers = set(re.findall(r'define "(.*?)"', (CHART / "templates" / "_helpers.tpl").read_text()))
    assert set(re.findall(r'include "(.*?)"', text)) <= helpers


def test_the_chart_makes_a_cluster_by_commands_that_there_are() -> None:
    """The first pod makes it once, the others wait for that; each has the settings of a node."""
    text = (CHART / "templates" / "statefulset.yaml").read_text()
    commands = re.findall(r"kvitto (cluster [^;]+)", text)
    init, status = (parsed(command.replace('"$MIN_IN_SYNC"', "2").split()) for command in commands)
    assert (init.once, init.min_in_sync, str(init.data_dir)) == (True, 2, "/var/lib/kvitto/data")
    assert status.json is False
    helpers = (CHART / "templates" / "_helpers.tpl").read_text()
    shared = ("KVITTO_ETCD", "KVITTO_CLUSTER", "KVITTO_ETCD_CA", "KVITTO_ETCD_CERT", "KVITTO_ETCD_KEY")
    assert {*shared, "KVITTO_ETCD_USER_FILE"} == set(NAME.findall(helpers))
    own = ("KVITTO_FOLLOWERS", "KVITTO_ADVERTISE", "KVITTO_CLUSTER_KEY", "KVITTO_CLUSTER_TLS_KEY")
    assert set(own) <= set(NAME.findall(text))
    assert text.count('include "kvitto.etcd" .') == 2, "the init container, and the node"


def test_the_first_pod_makes_the_cluster_once_and_the_others_find_it(tmp_path: Path) -> None:
    text = (CHART / "templates" / "statefulset.yaml").read_text()
    (block,) = re.findall(r"- -c\n +- \|\n(.*?)\n +env:", text, re.DOTALL)
    script = block.replace("/var/lib/kvitto/data", str(tmp_path / "data"))
    program = tmp_path / "kvitto"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m kvitto.cli.main "$@"\n')
    program.chmod(0o700)
    etcd = FakeEtcd()
    environ = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "MIN_IN_SYNC": "3", "KVITTO_ETCD": etcd.url}

    def begin(pod: str) -> str:
        environ["POD_NAME"] = pod
        done = subprocess.run(["sh", "-c", script], env=environ, capture_output=True, text=True, check=True)
        return done.stdout

    try:
        assert "cluster kvitto is made" in begin("mq-kvitto-0")
        assert begin("mq-kvitto-0") == "there is a cluster kvitto\n"
        assert "minimum   3" in begin("mq-kvitto-1")
        etcd.kept.clear()
        with pytest.raises(subprocess.CalledProcessError) as caught:  # etcd was lost: nobody begins on a guess
            begin("mq-kvitto-0")
        assert "belongs to a cluster already, whose document is gone" in caught.value.stderr
    finally:
        etcd.stop()


def test_the_chart_spreads_nodes_over_machines_and_lets_one_go_at_a_time() -> None:
    text = "".join(path.read_text() for path in TEMPLATES)
    assert "requiredDuringSchedulingIgnoredDuringExecution" in text and "topologyKey: kubernetes.io/hostname" in text
    assert "maxUnavailable: 1" in text and "publishNotReadyAddresses: true" in text
    assert "podManagementPolicy: Parallel" in text, "a node is ready when others are"


@needs("helm")
def test_helm_finds_no_mistake_in_the_chart() -> None:
    asked("helm", "lint", "--strict", str(CHART))
    everything = "tls.secretName=certs,limits.body-max=16MiB,persistence.storageClass=fast,auth.existingSecret=mine"
    asked("helm", "template", "mq", str(CHART), "--set", everything)
    cluster = "cluster.etcd=https://etcd:2379,cluster.tlsSecret=a,cluster.etcdTlsSecret=b,cluster.etcdUserSecret=c"
    asked("helm", "template", "mq", str(CHART), "--set", f"{everything},{cluster}")
