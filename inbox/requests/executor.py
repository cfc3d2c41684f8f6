"""One queue to a key: in order for each, side by side for all."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Hashable
from contextvars import copy_context
from types import TracebackType
from typing import Any, Generic, Literal, Self, TypeVar

from inbox.claims.key import Seconds, seconds
from inbox.errors import ExecutorClosed, QueueFull, WaitsForItself
from inbox.metrics import METRICS, Metrics
from inbox.setting import at_least_one, one_of

T = TypeVar("T")
K = TypeVar("K", bound=Hashable)

STUBBORN = 1.0
"""Seconds that work gets to end when it is cut off; what refuses is left behind."""


class KeyedExecutor(Generic[K]):
    """Runs the work of each key one after another, in the order of submission.

    limit    so much work may wait for one key, besides what runs
    on_full  whoever submits more has to "wait" until there is room, or it will "raise" QueueFull

    What fails, fails for who submitted it. A queue that is empty is gone: a key costs nothing once
    its work is done. All of this is in one process, and in one event loop.
    """

    def __init__(
        self,
        *,
        limit: int = 100,
        on_full: Literal["wait", "raise"] = "wait",
        name: str = "executor",
        metrics: Metrics = METRICS,
    ) -> None:
        one_of("on_full", on_full, "wait", "raise")
        self._limit, self._waits = at_least_one("limit", limit), on_full == "wait"
        self._name, self._metrics = name, metrics
        self._queues: dict[K, _Queue] = {}
        self._running: dict[asyncio.Task[Any], _Job] = {}
        self._closed = False

    def __len__(self) -> int:
        """How many keys have work."""
        return len(self._queues)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        _: type[BaseException] | None,
        __: BaseException | None,
        ___: TracebackType | None,
    ) -> None:
        await self.close()

    async def run(self, key: K, work: Callable[[], Awaitable[T]]) -> T:
        """Put `work` into the key's queue, and wait for its result."""
        self._check_no_circle(key)
        result: T = await (await self._submit(key, work, self._current()))
        return result

    async def submit(self, key: K, work: Callable[[], Awaitable[T]]) -> asyncio.Future[T]:
        """Put `work` into the key's queue. The future is its result, or its error.

        Cancelled before its turn, the work does not run; later, it is cancelled. It runs with the
        context variables of this call.
        """
        return await self._submit(key, work, None)

    async def close(self, timeout: Seconds = 25.0) -> int:  # noqa: ASYNC109  # not a time-out
        """Take no more, finish what was taken, and after `timeout` cut off the rest: its futures
        raise ExecutorClosed. How many those were."""
        limit = seconds("timeout", timeout) if timeout else 0.0
        self._closed = True
        for key, queue in self._queues.items():
            queue.refuse_crowd(key)
        if not await self._wait_for_workers(limit):
            return 0
        cut = sum(queue.cut_off() for queue in self._queues.values())
        await self._wait_for_workers(STUBBORN)
        return cut

    async def _submit(
        self, key: K, work: Callable[[], Awaitable[Any]], awaited_by: _Job | None
    ) -> asyncio.Future[Any]:
        if self._closed:
            raise ExecutorClosed(key)
        job = _Job(key, work, awaited_by)
        queue = self._queues.get(key)
        if queue is None:
            queue = self._queues[key] = _Queue()
            queue.waiting.append(job)
            queue.worker = asyncio.create_task(self._work_off(key, queue))
        elif len(queue.waiting) < self._limit:
            queue.waiting.append(job)
        elif self._waits:
            self._check_no_circle(key)
            await queue.join_crowd(job)
        else:
            self._metrics.count("request", self._name, "busy")
            raise QueueFull(key, self._limit)
        return job.future

    async def _work_off(self, key: K, queue: _Queue) -> None:
        while queue.waiting:
            job = queue.waiting.popleft()
            queue.let_in()
            if not job.future.done():
                await self._carry_out(job, queue)
        del self._queues[key]  # nobody can have come since the last look: there was no await

    async def _carry_out(self, job: _Job, queue: _Queue) -> None:
        # A task of its own, so that whatever comes of it, a cancellation too, stays in it.
        task = asyncio.create_task(self._perform(job), context=job.context)
        queue.running = self._running[task] = job
        job.start(task)
        await asyncio.wait({task})
        del self._running[task]
        queue.running = None
        job.finish(task)

    async def _perform(self, job: _Job) -> Any:
        self._metrics.count("request", self._name, "miss")
        with self._metrics.timed("request", self._name):
            try:
                return await job.work()
            except BaseException:
                self._metrics.count("request", self._name, "failed")
                raise

    def _current(self) -> _Job | None:
        task = asyncio.current_task()
        return None if task is None else self._running.get(task)

    def _check_no_circle(self, key: K) -> None:
        """Work that waits for its own queue would wait for ever."""
        job = self._current()
        while job is not None:
            if job.key == key:
                raise WaitsForItself(key)
            job = job.awaited_by

    async def _wait_for_workers(self, limit: float) -> bool:
        """Whether some are left."""
        workers = [queue.worker for queue in self._queues.values() if queue.worker]
        return bool(workers and (await asyncio.wait(workers, timeout=limit))[1])


class _Job:
    def __init__(
        self, key: Hashable, work: Callable[[], Awaitable[Any]], awaited_by: _Job | None
    ) -> None:
        self.key, self.work, self.awaited_by = key, work, awaited_by
        self.context = copy_context()
        self.future: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        self._begun = False

    def start(self, task: asyncio.Task[Any]) -> None:
        self._begun = True
        self.future.add_done_callback(lambda _: task.cancel())  # of no effect on what is done

    def finish(self, task: asyncio.Task[Any]) -> None:
        failure = None if task.cancelled() else task.exception()
        if self.future.done():
            return  # cancelled or cut off; there is nobody left to tell
        if task.cancelled():
            self.future.cancel()
        elif failure is not None:
            self.future.set_exception(failure)
        else:
            self.future.set_result(task.result())

    def cut_off(self) -> bool:
        if self.future.done():
            return False
        self.future.set_exception(ExecutorClosed(self.key, begun=self._begun))
        return True


class _Queue:
    """waiting  what was taken and has not begun
    crowd    who found no room, in order of arrival
    """

    def __init__(self) -> None:
        self.waiting: deque[_Job] = deque()
        self.crowd: deque[tuple[asyncio.Future[None], _Job]] = deque()
        self.running: _Job | None = None
        self.worker: asyncio.Task[None] | None = None

    async def join_crowd(self, job: _Job) -> None:
        """Returns when there is room. Who leaves before that, has submitted nothing."""
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.crowd.append((turn, job))
        try:
            await turn
        except asyncio.CancelledError:
            job.future.cancel()  # it may just have been let in
            raise

    def let_in(self) -> None:
        while self.crowd:
            turn, job = self.crowd.popleft()
            if not turn.done():
                turn.set_result(None)
                self.waiting.append(job)
                return

    def refuse_crowd(self, key: Hashable) -> None:
        for turn, _ in self.crowd:
            if not turn.done():
                turn.set_exception(ExecutorClosed(key))
        self.crowd.clear()

    def cut_off(self) -> int:
        jobs = [*self.waiting, *([self.running] if self.running else [])]
        self.waiting.clear()
        return sum(job.cut_off() for job in jobs)
