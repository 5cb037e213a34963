"""Topic patterns in a trie, matched word by word like a state machine.

A pattern consists of words with dots between them; `*` stands for exactly one word, `#` for zero or more words. The empty
key has no words, "a." has two. The search goes through the words of a routing key and keeps the set of all trie nodes that
the words so far can lead to, so the work is at most words x nodes for any patterns (backtracking over several `#` would be
exponential). `steps` is the upper bound of that work, and `route_steps_max` limits it.
"""

from __future__ import annotations

from collections.abc import Collection, Generator, Iterator
from itertools import islice

from kvitto.broker.routing.index import PIECE_STEPS, Arguments, Dest, Index

WORDS_MAX = 128
"""The most words in a routing key, which is a short string with dots between the words."""


class Node:
    """The patterns that share a prefix. `dests` counts the bindings with exactly this pattern, by destination.

    `steps`: how often the search for one routing key may look at this node beside the one without wildcards. That is 0 for a prefix
    without wildcards, since each key leads to one such node, 1 behind `*`, and once for every word behind `#`.
    """

    __slots__ = ("children", "dests", "hash", "loops", "star", "steps")

    def __init__(self, loops: bool = False, steps: int = 0) -> None:
        self.children: dict[str, Node] = {}
        self.star: Node | None = None
        self.hash: Node | None = None
        self.loops = loops
        self.steps = steps
        self.dests: dict[Dest, int] = {}

    def child(self, word: str) -> Node:
        """Add the node for one more word of a pattern."""
        if word == "*":
            made = self.star = Node(steps=WORDS_MAX if self.loops else max(self.steps, 1))
        elif word == "#":
            made = self.hash = Node(loops=True, steps=WORDS_MAX if self.steps else 0)
        else:
            made = self.children[word] = Node(steps=WORDS_MAX if self.loops else self.steps)
        return made

    def find(self, word: str) -> Node | None:
        return self.star if word == "*" else self.hash if word == "#" else self.children.get(word)

    def drop(self, word: str) -> None:
        if word == "*":
            self.star = None
        elif word == "#":
            self.hash = None
        else:
            del self.children[word]

    @property
    def empty(self) -> bool:
        return not (self.dests or self.children or self.star or self.hash)


class TopicIndex(Index):
    """The bindings of a topic exchange, by pattern."""

    description = "Routes by patterns that match the routing key"

    def __init__(self, arguments: Arguments) -> None:
        super().__init__(arguments)
        self._root = Node()

    def add(self, pattern: str, dest: Dest, _hashed: object) -> None:
        node = self._root
        for word in pattern_words(pattern):
            found = node.find(word)
            if found is None:
                found = node.child(word)
                self.steps += found.steps
            node = found
        node.dests[dest] = node.dests.get(dest, 0) + 1

    def remove(self, pattern: str, dest: Dest, _digest: object) -> None:
        """Undo one `add`, and remove nodes that are no longer needed."""
        words = pattern_words(pattern)
        path = [self._root]
        for word in words:
            found = path[-1].find(word)
            assert found is not None, "never added"
            path.append(found)
        dests = path[-1].dests
        dests[dest] -= 1
        if not dests[dest]:
            del dests[dest]
        for word in reversed(words):
            last = path.pop()
            if not last.empty:
                break
            self.steps -= last.steps
            path[-1].drop(word)

    def search(self, routing_key: str, _properties: object) -> Generator[bool, None, Collection[Dest]]:
        states: set[Node] = set()
        _enter(states, self._root)
        cost, left = 0, PIECE_STEPS
        for word in split(routing_key):
            after: set[Node] = set()
            for part in (states,) if len(states) <= PIECE_STEPS else _parts(states):
                for node in part:
                    if node.loops:
                        after.add(node)
                    if (child := node.children.get(word)) is not None:
                        _enter(after, child)
                    if node.star is not None:
                        _enter(after, node.star)
                cost += len(part)
                left -= len(part)
                if left <= 0:
                    left = PIECE_STEPS
                    yield True
            if not after:
                self.cost = cost
                return ()
            states = after
        matched: dict[Dest, int] = {}
        for part in (states,) if len(states) <= PIECE_STEPS else _parts(states):
            for node in part:
                matched.update(node.dests)
                left -= 1 + len(node.dests)
            cost += len(part)
            if left <= 0:
                left = PIECE_STEPS
                yield True
        self.cost = cost
        return matched


def _parts(states: set[Node]) -> Iterator[Collection[Node]]:
    """Split the states into parts of PIECE_STEPS."""
    rest = iter(states)
    return iter(lambda: tuple(islice(rest, PIECE_STEPS)), ())


def split(key: str) -> list[str]:
    """Return the words of a routing key. The empty key has none, as with RabbitMQ, where `*` does not match it."""
    return key.split(".") if key else []


def pattern_words(pattern: str) -> list[str]:
    """Return the words of a pattern in normal form: in a run of wildcards the stars come first, then at most one `#`.

    The normal form matches the same keys, and in it no `#` follows another `#`.
    """
    words: list[str] = []
    pending = False
    for word in split(pattern):
        if word == "#":
            pending = True
            continue
        if pending and word != "*":
            words.append("#")
            pending = False
        words.append(word)
    return [*words, "#"] if pending else words


def _enter(states: set[Node], node: Node) -> None:
    states.add(node)
    if node.hash is not None:
        states.add(node.hash)  # `#` also matches zero words
