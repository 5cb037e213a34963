"""HTTP's share of the loop: long work is done in slices of 2 ms, one per turn of the loop for all requests together."""

from __future__ import annotations

import asyncio
import time
from collections import deque

SLICE_S = 0.002


class Slices:
    def __init__(self) -> None:
        self._until_s = 0.0
        self._waiting: deque[asyncio.Future[None]] = deque()

    async def rest(self) -> None:
        """Pause between two steps of long work: if the slice is used up, go on in a later turn, after all others that wait."""
        if time.perf_counter() < self._until_s:
            return
        loop = asyncio.get_running_loop()
        turn = loop.create_future()
        if not self._waiting:
            loop.call_soon(self._next)
        self._waiting.append(turn)
        await turn
        self._until_s = time.perf_counter() + SLICE_S

    def _next(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():  # its connection may have ended
                turn.set_result(None)
                break
        if self._waiting:
            asyncio.get_running_loop().call_soon(self._next)
