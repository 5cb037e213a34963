"""The parser of all commands: a word that it does not know is answered with the nearest one, not with all that there are.

The parsers of commands have this class too, because argparse makes them with the class of their parent. `main.run` makes the
first one.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterable, Mapping
from typing import Any

URI = "--uri"
"""Says where a broker is, in each command that needs to know. `--url` means the same, and no help names it."""


class Parser(argparse.ArgumentParser):
    elsewhere: Mapping[str, str] = {}
    """Commands that people look for here, written with underscores, and where they are. A command of a similar name may do harm."""

    def add_argument(self, *names: str, **settings: Any) -> argparse.Action:
        action = super().add_argument(*names, **settings)
        if URI in names:
            hidden = {"dest": action.dest, "help": argparse.SUPPRESS, "default": argparse.SUPPRESS}
            super().add_argument("--url", **{**settings, **hidden})
        return action

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        found, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(self._unknown(unknown))
        return found, unknown

    def _unknown(self, words: list[str]) -> str:
        """Say what is wrong with words that nothing takes. The first one decides: later ones may be its value."""
        word = words[0].partition("=")[0]
        if not word.startswith("-"):
            return f"one argument too many: {' '.join(words)}"
        shown = [action for action in self._actions if action.help != argparse.SUPPRESS]
        known = [name for action in shown for name in action.option_strings if name.startswith("--")]
        return f"there is no option {word}{meant(word, known)}"

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        if not isinstance(action, argparse._SubParsersAction):
            known = [str(choice) for choice in action.choices]
            text = f"must be {' or '.join([', '.join(known[:-1]), known[-1]])}, not {value!r}{meant(str(value), known)}"
            raise argparse.ArgumentError(action, text)
        below = {name: parser.prog for parent in action.choices.values() for name, parser in commands_of(parent)}
        text = meant(str(value), action.choices) or meant(str(value), below, below)
        if place := self.elsewhere.get(value.replace("-", "_")):
            text = f": it is {place}"
        raise argparse.ArgumentError(None, f"there is no command {value!r}{text}")

    def error(self, message: str) -> Any:
        """Print a mistake in one line, with the way to more. Where something is missing, the usage says what, and where."""
        if message.startswith("the following arguments are required"):
            groups = any(isinstance(action, argparse._SubParsersAction) for action in self._actions)
            print(self.format_help() if groups else self.format_usage(), file=sys.stderr)
        message = re.sub(r"invalid (int|float|natural) value: ", "must be a number, not ", message)
        print(f"{self.prog}: {message} (see `{self.prog} --help`)", file=sys.stderr)
        self.exit(2)


def commands_of(parser: argparse.ArgumentParser) -> Iterable[tuple[str, argparse.ArgumentParser]]:
    """Return the commands that a parser has below it, by name."""
    groups = [action for action in parser._actions if isinstance(action, argparse._SubParsersAction)]
    return [pair for group in groups for pair in group.choices.items()]


def meant(word: str, known: Iterable[str], shown: dict[str, str] | None = None) -> str:
    """Return the end of a message about an unknown word: the word that was probably meant, or nothing. Hyphens and
    underscores are the same here, and so are capitals."""
    import difflib  # only mistakes need it

    names = {name.replace("-", "_").lower(): name for name in known}
    alike = difflib.get_close_matches(word.replace("-", "_").lower(), names, 1)
    return f": is it {(shown or {}).get(names[alike[0]], names[alike[0]])}?" if alike else ""
