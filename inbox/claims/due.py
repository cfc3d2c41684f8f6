"""When heartbeats begin: at the first renewal that is due, and not before.

One timer for all claims of an event loop, and one thread for all of sync code: most effects are
over long before, and a timer or a thread for each of them would cost more than the claim.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
import weakref
from functools import cache
from typing import Protocol

NEVER = float("inf")


class Beat(Protocol):
    def start(self) -> None: ...


class Due:
    """Claims whose first renewal is due at some time, unless their effect is over by then.

    Most are, and so waking up is planned once and not for each: when the beat for which it was
    planned is removed, the plan stays.
    """

    def __init__(self) -> None:
        self._beats: dict[Beat, float] = {}
        self.wakes_at = NEVER

    def add(self, beat: Beat, due: float) -> bool:
        """Whether it is due before the planned time, which is then planned anew."""
        self._beats[beat] = due
        sooner = due < self.wakes_at
        if sooner:
            self.wakes_at = due
        return sooner

    def remove(self, beat: Beat) -> None:
        self._beats.pop(beat, None)

    def start(self, now: float) -> None:
        if now >= self.wakes_at:
            for beat in [beat for beat, due in self._beats.items() if due <= now]:
                del self._beats[beat]
                beat.start()
            self.wakes_at = min(self._beats.values(), default=NEVER)


class LoopStarter:
    """Starts the beats of an event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = weakref.ref(loop)
        self._due = Due()
        self._timer: asyncio.TimerHandle | None = None

    def add(self, beat: Beat, due: float) -> None:
        if self._due.add(beat, due):
            self._plan()

    def remove(self, beat: Beat) -> None:
        self._due.remove(beat)

    def _wake(self) -> None:
        self._due.start(time.monotonic())
        self._plan()

    def _plan(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        loop, self._timer = self._loop(), None
        if loop is not None and self._due.wakes_at < NEVER:
            # By the loop's own clock, which need not be ours.
            self._timer = loop.call_later(self._due.wakes_at - time.monotonic(), self._wake)


_LOOPS: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, LoopStarter]
_LOOPS = weakref.WeakKeyDictionary()


def loop_starter(loop: asyncio.AbstractEventLoop) -> LoopStarter:
    starter = _LOOPS.get(loop)
    if starter is None:
        starter = _LOOPS[loop] = LoopStarter(loop)
    return starter


class ThreadStarter:
    """Starts the beats of sync code."""

    def __init__(self) -> None:
        self._due = Due()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def add(self, beat: Beat, due: float) -> None:
        with self._changed:
            if self._due.add(beat, due):
                self._changed.notify()
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="heartbeats", daemon=True)
                self._thread.start()

    def remove(self, beat: Beat) -> None:
        """After this, the beat is started or never will be."""
        with self._changed:
            self._due.remove(beat)

    def _run(self) -> None:
        with self._changed:
            while True:
                now = time.monotonic()
                self._due.start(now)
                idle = self._due.wakes_at == NEVER
                self._changed.wait(None if idle else self._due.wakes_at - now)


@cache
def thread_starter() -> ThreadStarter:
    os.register_at_fork(after_in_child=thread_starter.cache_clear)  # threads do not survive a fork
    return ThreadStarter()
