"""An event loop in a thread, for sync code that has only an async client."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Coroutine
from functools import cache
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """One loop for the whole process. What runs in it must not be used in any other loop."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        threading.Thread(target=self._loop.run_forever, name="inbox loop", daemon=True).start()

    def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Block until it is done. Interrupted (Ctrl-C), it is cancelled."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise


@cache
def loop_thread() -> LoopThread:
    os.register_at_fork(after_in_child=loop_thread.cache_clear)  # threads do not survive a fork
    return LoopThread()
