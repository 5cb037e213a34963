"""Reading /proc: the arithmetic behind CPU per message and the check for a quiet machine."""

from benchmarks.proc import TICKS_PER_S, Snapshot, Stat, others_between, parse_busy, parse_stat, pins, tree

LINE = "42 (a ) b(c) S 7 42 42 0 -1 4194560 100 0 0 0 {} 20 0 5 0 1000 123456 {} 18446744073709551615 0 0"


def stats(*found: Stat) -> dict[int, Stat]:
    return {stat.pid: stat for stat in found}


def process(pid: int, parent: int, cpu_s: float) -> Stat:
    return Stat(pid, parent, "", cpu_s, 0)


def test_a_name_with_spaces_and_parentheses_does_not_shift_the_fields() -> None:
    stat = parse_stat(LINE.format("100 50 30 20", 10))
    assert (stat.pid, stat.parent, stat.name) == (42, 7, "a ) b(c")
    assert stat.cpu_s == 200 / TICKS_PER_S
    assert stat.rss_bytes > 0


def test_a_tree_has_all_generations_and_nobody_else() -> None:
    found = stats(process(1, 0, 0), process(10, 1, 0), process(12, 11, 0), process(11, 10, 0), process(20, 1, 0))
    assert {stat.pid for stat in tree(10, found)} == {10, 11, 12}
    assert tree(99, found) == []


def test_busy_time_leaves_out_idle_and_waiting_and_tells_steal_apart() -> None:
    busy, steal = parse_busy("cpu  100 20 30 4000 500 6 7 80 0 0\ncpu0 1 1 1 1\n")
    assert busy == 150 / TICKS_PER_S
    assert steal == 80 / TICKS_PER_S


def test_load_that_is_not_ours_is_seen_with_and_without_its_process() -> None:
    before = Snapshot(0.0, 100.0, 0.0, stats(process(2, 0, 1.0), process(5, 1, 1.0), process(6, 1, 1.0)))
    ours = stats(process(2, 0, 2.0), process(5, 1, 5.0), process(6, 1, 1.0))
    quiet = Snapshot(10.0, 105.0, 0.0, ours)
    assert others_between(before, quiet, [5], []).cores == 0.0
    hidden = Snapshot(10.0, 107.0, 0.5, ours)
    assert others_between(before, hidden, [], [5]).cores == 0.2
    assert others_between(before, hidden, [], [5]).steal == 0.05
    seen = Snapshot(10.0, 105.0, 0.0, ours | stats(process(6, 1, 4.0)))
    assert others_between(before, seen, [5], []).cores == 0.3


def test_cpu_of_a_child_that_ended_stays_with_its_parent() -> None:
    """The generator is not there before and not after; it is among the children that the harness waited for."""
    before = Snapshot(0.0, 0.0, 0.0, stats(process(5, 1, 1.0)))
    after = Snapshot(1.0, 2.0, 0.0, stats(process(5, 1, 3.0)))
    assert others_between(before, after, [5], []).cores == 0.0


def test_the_generator_has_a_core_of_its_own_where_there_are_three() -> None:
    assert pins({0, 1, 2, 3}).broker == {0, 1, 2}
    assert pins({0, 1, 2, 3}).generator == {3}
    assert pins({4, 7}).broker == {4, 7}
    assert pins({4, 7}).generator == {7}
    assert pins({0}).broker == pins({0}).generator == {0}
