"""A thread with an event loop, in which the asyncio client works for the threads of a program.

Whoever waits for work in the loop gets its outcome, or Closed: work is handed over in order, none after `end`, and the end of
the thread ends all that is left. `end` does not wait, so a callback in the thread itself may call it.
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
from kvitto.client.blocking.calls import Calls
from kvitto.client.blocking.receipt import CLOSED, Receipt

T = TypeVar("T")


class Loop:
    """A thread with an event loop. Its methods are called from other threads, except where they say so."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.loop.set_default_executor(_Names(1, "kvitto-client-names"))
        self._handed = Calls(self._ask)
        self._behind: dict[Callable[[], object], None] = {}
        """What is called behind the calls that are taken together."""
        self._receipts: set[Receipt[Any]] = set()
        """The receipts that still wait for an outcome. Adding, removing and copying are atomic, so they need no lock."""
        self._lock = threading.RLock()  # a signal handler may call what its own thread is in the middle of
        self._last: asyncio.Future[Callable[[], Coroutine[Any, Any, None]]] = self.loop.create_future()
        self._ending = False
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
        """Call this in a forked child: it has no such thread, and another one may have held the lock when it was forked."""
        self._disowned = True
        self._lock = threading.RLock()
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
        """Call `work` in the loop, and run the coroutine that it returns there. Return the receipt for its outcome."""
        receipt: Receipt[T] = Receipt()
        self.hand_over(partial(self._start, work, receipt), receipt)
        return receipt

    def _start(self, work: Callable[[], Coroutine[Any, Any, T]], receipt: Receipt[T]) -> None:
        if not receipt.done():
            task = self.loop.create_task(work())
            task.add_done_callback(lambda _: self._receipts.discard(receipt))
            receipt.follow(task)

    def drop(self, receipt: Receipt[Any]) -> None:
        """End what was begun, since nobody waits for it any more."""
        if not receipt.done():
            receipt.abandon()
            self.soon(receipt.cancel)

    def outcome(self, call: Callable[[Receipt[T]], object], timeout_s: float | None = None) -> T:
        """Call `call` in the loop with a receipt, and return the outcome that the receipt gets, or raise it.

        If the wait is interrupted (KeyboardInterrupt), or takes longer than `timeout_s` (TimeoutError), what was begun is ended.
        """
        self.check_waiting()
        receipt: Receipt[T] = Receipt()
        try:
            self.hand_over(partial(call, receipt), receipt)
            return receipt.wait(timeout_s)
        except BaseException:
            self.drop(receipt)
            raise
        finally:
            self._receipts.discard(receipt)

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
        with self._lock:
            self.check()
            if receipt is not None:
                self._receipts.add(receipt)
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
                call()

    def end(self, last: Callable[[], Coroutine[Any, Any, None]]) -> bool:
        """Take no more work, run this as the last one, and end the thread. Return False if it is ending already."""
        with self._lock:
            if self.ended:
                return False
            self._ending = True
            self.loop.call_soon_threadsafe(self._last.set_result, last)
            return True

    def soon(self, callback: Callable[[], object]) -> None:
        """Call this in the loop soon, unless the thread has ended."""
        if not self._disowned:
            with contextlib.suppress(RuntimeError):
                self.loop.call_soon_threadsafe(callback)

    def join(self) -> None:
        """Wait until the thread has ended."""
        if not self._disowned:
            self.thread.join()

    def _main(self) -> None:
        asyncio.set_event_loop(self.loop)
        try:
            self.loop.run_until_complete(self._live())
        finally:  # which sys.exit() in a callback comes to at once
            if not self._ending:  # else it was closed, perhaps by a signal handler of a thread that has the lock
                with self._lock:
                    self._ending = True
            try:
                self.loop.run_until_complete(_end_tasks())
            finally:
                for receipt in list(self._receipts):
                    receipt.set_exception(Closed(CLOSED))
                self.loop.close()

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
        await asyncio.gather(*tasks, return_exceptions=True)


async def _limited(work: Coroutine[Any, Any, T], timeout_s: float) -> T:
    async with asyncio.timeout(timeout_s):
        return await work
