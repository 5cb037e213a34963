"""The delivery counts of single messages of a queue.

A dict with a million entries takes 20 ms whenever it has to grow, so there is one dict for each page of offsets.
"""

from __future__ import annotations

from collections.abc import Iterable

PAGE_BITS = 12
"""A page has 4,096 offsets."""


class Deliveries:
    def __init__(self, counts: Iterable[tuple[int, int]] = ()) -> None:
        self.pages: dict[int, dict[int, int]] = {}
        """By page number, the counts of the page's messages. No page is empty."""
        for offset, count in counts:
            self.note(offset, count)

    def of(self, offset: int, default: int = 0) -> int:
        """Return how often the message has been delivered, or `default` if there is no count for it."""
        page = self.pages.get(offset >> PAGE_BITS)
        return default if page is None else page.get(offset, default)

    def note(self, offset: int, count: int) -> None:
        """Set the count of a message."""
        page = self.pages.get(offset >> PAGE_BITS)
        if page is None:
            page = self.pages[offset >> PAGE_BITS] = {}
        page[offset] = count

    def forget(self, start: int, end: int) -> None:
        """Remove the counts of all messages from offset `start` to `end` - 1."""
        numbers: Iterable[int] = range(start >> PAGE_BITS, (end - 1 >> PAGE_BITS) + 1)
        if end - start >> PAGE_BITS > len(self.pages):
            numbers = [number for number in self.pages if start >> PAGE_BITS <= number <= end - 1 >> PAGE_BITS]
        for number in numbers:
            page = self.pages.get(number)
            if page is None:
                continue
            offsets: Iterable[int] = range(max(start, number << PAGE_BITS), min(end, number + 1 << PAGE_BITS))
            if end - start > len(page):
                offsets = [offset for offset in page if start <= offset < end]
            for offset in offsets:
                page.pop(offset, None)
            if not page:
                del self.pages[number]
