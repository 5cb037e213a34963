"""Which rules are left out, and in how small a world that is missed; and the worlds in which nothing may be missed.

Everything here is searched to its end by `test_model.py`, and by `python -m tests.ha.model`.
"""

from __future__ import annotations

from dataclasses import replace

from tests.ha.model.rules import Rule, Setting

WORLDS = [
    Setting(nodes=2, records=3, epochs=4, requests=2),
    Setting(records=2),
    Setting(epochs=3),
    Setting(requests=2, minimum=2),
    Setting(etcd_faults=True),
    Setting(disk_faults=True, requests=2),
]
"""`make test` looks at all states of these. With two records a follower can be behind, level and ahead at once; the third
epoch is what it takes for a node to lead, follow and lead again."""
LARGE_WORLDS = [
    Setting(nodes=2, records=4, epochs=6, requests=2, etcd_faults=True, disk_faults=True),
    Setting(nodes=4),
    Setting(records=3),
    Setting(records=2, requests=2, minimum=2, disk_faults=True),
    Setting(epochs=3, requests=2, disk_faults=True),
    Setting(records=2, epochs=3),
]
"""Minutes each, and up to some GiB of memory."""
SMALL = Setting()
OTHER_WORLDS = {
    Rule.R1_EPOCH: Setting(epochs=3),
    Rule.R2_VERSION: Setting(requests=2),
    Rule.R8_MINIMUM: Setting(minimum=2),
    Rule.R9_MISSING: Setting(etcd_faults=True),
    Rule.R9_CLUSTER: Setting(etcd_faults=True),
    Rule.R9_EPOCH: Setting(nodes=2, etcd_faults=True),
    Rule.R9_RESTORED: Setting(etcd_faults=True),
    Rule.R10_IDENTITY: Setting(disk_faults=True),
}
"""For rules that are not missed in `SMALL`."""
SECOND_BELTS = {
    Rule.R3_MIXED: "a mixed node is no member, because of R7",
    Rule.R7_REMOVED: "a mixed node does not campaign, because of R3",
    Rule.R4_SYNCS: "nothing is confirmed that the leader has not synced, because of R1",
    Rule.R9_EPOCH: "an etcd that forgets is found by its identity",
}
"""Rules that are not missed, with the reason: another one is there for the same. They stay: they cost nothing."""
BOTH_BELTS = Setting(records=2, without=frozenset([Rule.R3_MIXED, Rule.R7_REMOVED]))
"""Without both a member is cut, and elected while it has nothing."""
EVERY_NODE = Setting(records=2, minimum=3)
"""No rule is left out, and a minimum of all nodes is not kept in every moment: see docs/cluster-model.md."""


def leaving_out(rule: Rule) -> Setting:
    """The smallest world in which this rule is missed, without it; of a second belt, one where it could be."""
    return replace(OTHER_WORLDS.get(rule, SMALL), without=frozenset([rule]))
