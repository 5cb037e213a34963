"""Asynchronous tests: each in an event loop of its own that must be empty, and have nothing to complain of, at the end."""

from __future__ import annotations

import asyncio
import functools
import gc
from collections.abc import Awaitable, Callable
from typing import Any, ParamSpec

P = ParamSpec("P")


def asynchronous(test: Callable[P, Awaitable[None]]) -> Callable[P, None]:
    """Decorator: run the test, then assert that no task is left and no exception was lost."""

    @functools.wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        complaints: list[dict[str, Any]] = []

        async def main() -> None:
            asyncio.get_running_loop().set_exception_handler(lambda loop, context: complaints.append(context))
            await test(*args, **kwargs)
            gc.collect()
            await asyncio.sleep(0)
            left = asyncio.all_tasks() - {asyncio.current_task()}
            assert not left, f"tasks are left: {left}"

        asyncio.run(main())
        gc.collect()
        assert not complaints, complaints

    return run
