"""A thread with an event loop, in which the asyncio client works for the threads of a program.

Whoever waits for work in the loop gets its outcome, or Closed: work is handed over in order, and the end of the thread ends all that is
left. `end` does not wait, so a callback in the thread itself may call it. No method takes a lock: a signal handler may interrupt any of
them in its thread, and may then call any of them.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from kvitto.client import disown
from kvitto.client.aio.errors import Closed
from kvitto.client.aio.link import forget
from kvitto.client.blocking.handed import Handed
from kvitto.client.blocking.receipt import CLOSED, Receipt

T = TypeVar("T")
END_S = 0.5
"""At the end a task that goes on after it was cancelled is cancelled again after this time."""


class Loop:
    """A thread with an event loop. Its methods are called from other threads, except where they say so."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.loop.set_default_executor(_Names(1, "kvitto-client-names"))
        self._handed: Handed[Callable[[], object]] = Handed(self._ask)
        self._behind: dict[Callable[[], object], None] = {}
        """What is called behind the calls that are taken together."""
        self._receipts: set[Receipt[Any]] = set()
        """The receipts that still wait for an outcome. Adding, removing and copying are atomic, so they need no lock."""
        self._last: asyncio.Future[Callable[[], Coroutine[Any, Any, None]]] = self.loop.create_future()
        self._ending = self._done = False
        self._disowned = False
        self.thread = threading.Thread(target=self._main, name="kvitto-client", daemon=True)
        disown.own(self)
        self.thread.start()

    @property
    def ended(self) -> bool:
        """Whether it takes no work any more."""
        return self._disowned or self._ending

    @property
    def inside(self) -> bool:
        """Whether the caller is in the thread itself, and must not wait for it."""
        return threading.current_thread() is self.thread

    def disown(self) -> None:
        """Call this in a forked child: it has no such thread."""
        self._disowned = True
        for receipt in list(self._receipts):  # a thread that has forked in a signal handler goes on to wait there
            receipt.set_exception(Closed(disown.forked("connection")))

    def check(self) -> None:
        """Raise Closed if it takes no work any more."""
        if self._disowned:
            raise Closed(disown.forked("connection"))
        if self._ending:
            raise Closed(CLOSED)

    def check_waiting(self) -> None:
        """Raise an error if the caller cannot wait for it."""
        if self.inside:
            raise RuntimeError("this is the client's own thread (a callback): a call that waits would wait for itself")
        self.check()

    def begin(self, work: Callable[[], Coroutine[Any, Any, T]]) -> Receipt[T]:
        """Have the loop call `work` and run the coroutine that it returns. Return the receipt for the outcome of the coroutine."""
        receipt: Receipt[T] = Receipt()
        try:
            self.hand_over(partial(self._start, work, receipt), receipt)
            return receipt
        except BaseException:
            self.drop(receipt)
            raise

    def _start(self, work: Callable[[], Coroutine[Any, Any, T]], receipt: Receipt[T]) -> None:
        if not receipt.done():
            task = self.loop.create_task(work())
            task.add_done_callback(lambda _: self._receipts.discard(receipt))
            receipt.follow(task)

    def drop(self, receipt: Receipt[Any]) -> None:
        """Cancel the task that was begun, since nobody waits for it any more. A message that is on its way already may be confirmed."""
        self._receipts.discard(receipt)
        if not receipt.done():
            receipt.abandon()
            self.soon(receipt.cancel)

    def outcome(self, call: Callable[[Receipt[T]], object], timeout_s: float | None = None) -> T:
        """Call `call` in the loop with a receipt, and return the outcome that the receipt gets, or raise it.

        If the wait is interrupted (KeyboardInterrupt), or takes longer than `timeout_s` (TimeoutError), the receipt is dropped.
        """
        self.check_waiting()
        receipt: Receipt[T] = Receipt()
        try:
            self.hand_over(partial(call, receipt), receipt)
            outcome = receipt.wait(timeout_s)
            self._receipts.discard(receipt)
            return outcome
        except BaseException:
            self.drop(receipt)
            raise

    def run(self, work: Coroutine[Any, Any, T], timeout_s: float | None = None) -> T:
        """Run a coroutine in the loop and return its result. After `timeout_s` it is cancelled, and TimeoutError raised."""
        begin = (lambda: work) if timeout_s is None else (lambda: _limited(work, timeout_s))
        try:
            result: T = self.outcome(partial(self._start, begin))
            return result
        except BaseException:
            if inspect.getcoroutinestate(work) == inspect.CORO_CREATED:
                with contextlib.suppress(ValueError):  # the loop begins it at this moment, and cancels it then
                    work.close()
            raise

    def hand_over(self, call: Callable[[], object], receipt: Receipt[Any] | None = None) -> None:
        """Have the loop make a call, behind all calls that were handed over before. Raise Closed if it takes no more work.

        The receipt is that of the call's outcome. It gets Closed if the thread ends before the call has one.
        """
        if receipt is not None:
            # before the check: `disown` and the end of the thread look at the receipts after they have made the check fail
            self._receipts.add(receipt)
        if self._disowned or self._ending:
            self.check()
        self._handed.add(call)

    def behind(self, call: Callable[[], object]) -> None:
        """In a call that was handed over: make another call, once, behind all those that are taken together with it."""
        self._behind[call] = None

    def call(self, call: Callable[[], object]) -> None:
        """In the loop: make a call. An exception is logged, and does not keep the loop from the calls behind it."""
        try:
            call()
        except Exception as error:  # noqa: BLE001 - a wall around each of them
            told = {"message": "what a thread has handed over has failed", "exception": error}
            self.loop.call_exception_handler(told)

    def _ask(self) -> None:
        """Have the loop take what was handed over. Raise Closed if it has ended."""
        try:
            self.loop.call_soon_threadsafe(self._take)
        except RuntimeError:
            raise Closed(CLOSED) from None  # a signal handler has closed it since it was checked

    def _take(self) -> None:
        try:
            for call in self._handed.take():
                self.call(call)
        finally:
            behind, self._behind = self._behind, {}
            for call in behind:
                self.call(call)

    def end(self, last: Callable[[], Coroutine[Any, Any, None]]) -> bool:
        """Take no more work, run this as the last one, and end the thread. Return False if it is ending already.

        A call that was interrupted may be made again: it has the thread end, whatever the first one came to.
        """
        first = not self.ended
        self._ending = True
        self.soon(partial(self._set_last, last))
        return first

    def _set_last(self, last: Callable[[], Coroutine[Any, Any, None]]) -> None:
        if not self._last.done():
            self._last.set_result(last)

    def soon(self, callback: Callable[[], object]) -> None:
        """Call this in the loop soon, unless the thread has ended."""
        if not self._disowned:
            with contextlib.suppress(RuntimeError):
                self.loop.call_soon_threadsafe(callback)

    def join(self) -> None:
        """Wait until the thread has finished its last work and closed its event loop.

        `Thread.join` is not used: in Python 3.11 it takes a thread that goes on for one that has ended after KeyboardInterrupt, and in a
        signal handler it may wait for the `join` that it has interrupted.
        """
        receipt: Receipt[None] = Receipt()
        self._receipts.add(receipt)
        try:
            if not self._disowned and not self._done:
                with contextlib.suppress(Closed):
                    receipt.wait()
        finally:
            self._receipts.discard(receipt)

    def _main(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_until_complete(self._live())
        finally:  # which sys.exit() in a callback comes to at once
            self._ending = True
            try:
                with contextlib.closing(self.loop):
                    self.loop.run_until_complete(_end_tasks())
            finally:
                self._done = True  # before the receipts are looked at: `join` looks the other way round
                for receipt in list(self._receipts):
                    receipt.set_exception(Closed(CLOSED))

    async def _live(self) -> None:
        last = await self._last
        await last()


class _Names(ThreadPoolExecutor):
    """Looks up the names of hosts. At the end of the interpreter no executor takes work; then the loop's thread does it itself."""

    def submit(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> Future[T]:
        try:
            return super().submit(fn, *args, **kwargs)
        except RuntimeError:
            done: Future[T] = Future()
            try:
                done.set_result(fn(*args, **kwargs))
            except OSError as error:
                done.set_exception(error)
            return done


async def _end_tasks() -> None:
    await asyncio.sleep(0)  # each task begins: what was handed over last notes its end, too
    while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks, timeout=END_S)  # a cancelled task may go on, and wait for something else
        for task in tasks:
            if task.done():
                forget(task)


async def _limited(work: Coroutine[Any, Any, T], timeout_s: float) -> T:
    async with asyncio.timeout(timeout_s):
        return await work
