"""Words that no command knows: one line with the nearest one, and the way to all of them."""

from __future__ import annotations

import argparse
import subprocess
import sys

import pytest

from kvitto.cli.main import COMMANDS, main
from kvitto.cli.parser import Parser, commands_of
from tests.cli.process import kvitto


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What is said about wrong words."""
    with pytest.raises(SystemExit) as ended:
        main([*words])
    out, err = capsys.readouterr()
    assert (ended.value.code, out) == (2, "")
    return err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("serv", "kvitto: there is no command 'serv': is it serve? (see `kvitto --help`)"),
        ("frobnicate", "kvitto: there is no command 'frobnicate' (see `kvitto --help`)"),
        (
            "list_queues",
            "kvitto: there is no command 'list_queues': is it kvitto ctl list_queues? (see `kvitto --help`)",
        ),
        ("throughput", "kvitto: there is no command 'throughput': is it kvitto perf throughput? (see `kvitto --help`)"),
        (
            "ctl list-queue",
            "kvitto ctl: there is no command 'list-queue': is it list_queues? (see `kvitto ctl --help`)",
        ),
        (
            "ctl cluster-force",
            "kvitto ctl: there is no command 'cluster-force': it is kvitto cluster force (see `kvitto ctl --help`)",
        ),
        ("serve --prot 1", "kvitto serve: there is no option --prot: is it --port? (see `kvitto serve --help`)"),
        (
            "serve --datadir=x",
            "kvitto serve: there is no option --datadir: is it --data-dir? (see `kvitto serve --help`)",
        ),
        ("serve extra", "kvitto serve: one argument too many: extra (see `kvitto serve --help`)"),
        ("serve --port x", "kvitto serve: argument --port: must be 0 to 65535, not x (see `kvitto serve --help`)"),
        (
            "serve --sync onn",
            "kvitto serve: argument --sync: must be on or off, not 'onn': is it on? (see `kvitto serve --help`)",
        ),
        (
            "perf throughput --nosuch",
            "kvitto perf throughput: there is no option --nosuch (see `kvitto perf throughput --help`)",
        ),
        ("ctl status extra", "kvitto ctl status: one argument too many: extra (see `kvitto ctl status --help`)"),
        (
            "ctl set_log_level trace",
            "kvitto ctl set_log_level: argument LEVEL: must be debug, info, warning or error, not 'trace'"
            " (see `kvitto ctl set_log_level --help`)",
        ),
        (
            "ctl get q --count x",
            "kvitto ctl get: argument --count: must be a number, not 'x' (see `kvitto ctl get --help`)",
        ),
        (
            "perf throughput --uri http://x",
            "kvitto perf throughput: argument --uri: an AMQP URI starts with amqp:// or amqps://, this one with 'http'"
            " (see `kvitto perf throughput --help`)",
        ),
        ("pipeline lnd", "kvitto pipeline: there is no command 'lnd': is it land? (see `kvitto pipeline --help`)"),
    ],
)
def test_a_wrong_word_is_answered_with_the_nearest(capsys: pytest.CaptureFixture[str], words: str, says: str) -> None:
    assert refused(capsys, *words.split()) == f"{says}\n"


@pytest.mark.parametrize(("words", "shown"), [([], "check"), (["ctl"], "list_queues"), (["perf"], "throughput")])
def test_a_command_that_is_missing_is_answered_with_the_help(
    capsys: pytest.CaptureFixture[str], words: list[str], shown: str
) -> None:
    said = refused(capsys, *words)
    assert said.startswith(f"usage: {' '.join(['kvitto', *words])} ") and shown in said


def test_an_argument_that_is_missing_is_answered_with_the_usage_of_its_command(
    capsys: pytest.CaptureFixture[str],
) -> None:
    said = refused(capsys, "ctl", "bind", "sales")
    assert said.startswith("usage: kvitto ctl bind ") and "are required: DESTINATION" in said.splitlines()[-1]


def test_the_exit_code_of_the_process_is_2() -> None:
    result = kvitto("serve", "--prot", "1")
    assert (result.returncode, result.stdout) == (2, "")


def every_parser() -> list[tuple[str, argparse.ArgumentParser]]:
    top = Parser(prog="kvitto")
    commands = top.add_subparsers()
    for module in COMMANDS.values():
        __import__(module, fromlist=["add_parser"]).add_parser(commands)
    found, left = [], [*commands_of(top)]
    while left:
        _, parser = left.pop()
        found.append((parser.prog, parser))
        left += commands_of(parser)
    return found


def test_every_command_says_where_a_broker_is_by_the_same_word() -> None:
    """`--url` is understood, and not shown."""
    found = every_parser()
    assert len(found) > 50
    for prog, parser in found:
        assert isinstance(parser, Parser), prog
        options = {name: action for action in parser._actions for name in action.option_strings}
        assert ("--uri" in options) == ("--url" in options), prog
        if "--url" in options:
            assert options["--url"].dest == options["--uri"].dest and "--url" not in parser.format_help(), prog


WITHOUT = """
import sys
sys.modules.update(dict.fromkeys(("xxhash", "h11", "re2")))
from kvitto.cli.main import main
sys.exit(main(sys.argv[1:]))
"""
"""An installation with `--no-deps`, as for programs that are clients only."""


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        (["--version"], 0, "kvitto "),
        (["--help"], 0, "(needs the package "),
        (["ctl", "ping", "--uri", "http://127.0.0.1:1"], 3, "no broker answers"),
        (["serve"], 1, "which is not installed: pip install "),
        (["check", "."], 1, "which is not installed: pip install "),
    ],
)
def test_without_the_packages_of_the_broker_its_clients_work(words: list[str], code: int, says: str) -> None:
    command = [sys.executable, "-c", WITHOUT, *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == code and says in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
