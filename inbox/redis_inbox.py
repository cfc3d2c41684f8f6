"""The inbox in Redis: SETNX with a lease, a token and a fence.

A bare SETNX loses the event if the process dies between the key and the handler. Here the key says
`running` until the handler is done, for as long as somebody keeps renewing it.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Awaitable, Callable, Sequence
from datetime import timedelta
from typing import Any, TypeVar

import redis
import redis.asyncio

from inbox.claims.claim import Applied, Claimed, Done, Mismatch, Running, State, new_token
from inbox.claims.heartbeat import holding, holding_sync
from inbox.claims.held import Held
from inbox.claims.key import Seconds, seconds, store_key
from inbox.claims.redis import RedisStore
from inbox.consumer.handlers import Given, Handler
from inbox.consumer.message import Message
from inbox.errors import BadHandler, ClaimLost, CorruptRecord
from inbox.metrics import METRICS, Metrics
from inbox.outcome import Busy, Duplicate, Handled, Processed

T = TypeVar("T")

WINDOW = timedelta(days=7)
LEASE = timedelta(seconds=60)


class RedisInbox:
    """Remembers in Redis which events a group has handled.

    Given to a Consumer, which does all there is to do; or around a handler in a loop of your own,
    where `process` says whether to acknowledge.

    group   whose events; needed for a loop of your own only
    window  how long it is remembered that an event was handled
    lease   how long an event stays with a process that has died
    """

    def __init__(
        self,
        client: redis.Redis | redis.asyncio.Redis,
        group: str = "",
        *,
        window: Seconds = WINDOW,
        lease: Seconds = LEASE,
        metrics: Metrics = METRICS,
    ) -> None:
        self.window = timedelta(seconds=seconds("window", window))
        self.lease = timedelta(seconds=seconds("lease", lease))
        self.group = group
        self._store = RedisStore(client, prefix="inbox:")
        self._metrics = metrics

    # In a Consumer

    @property
    def kept(self) -> timedelta:
        """How long Redis remembers."""
        return self.window

    async def run(
        self, _: str, messages: Sequence[Message], handler: Handler[Any], claim: Held | None
    ) -> None:
        await handler(Given(messages, claim=claim))

    async def purge(self) -> int:
        return 0  # Redis expires its keys by itself

    def check(self, handler: Handler[Any]) -> None:
        if handler.wants_session is not None:
            raise BadHandler(handler.function, "wants a session: that is what SqlInbox has")

    # In a loop of your own

    async def process(self, event_id: object, handler: Callable[[], Awaitable[T]]) -> Processed[T]:
        """Run the handler unless the event was handled before, or is being handled elsewhere. What
        the handler raises is raised, and the event may be tried again at once."""
        key, token = self._key(event_id), new_token()
        match await self._store.claim(key, fingerprint="", token=token, lease=self.lease):
            case Claimed(claim):
                try:
                    async with holding(self._store, claim, self.lease):
                        with self._metrics.timed("message", self.group):
                            result = await handler()
                except BaseException:
                    await self._store.release(claim)
                    raise
                settled = await self._store.settle(claim, State.COMPLETED, None, self.window)
                self._applied(key, settled)
                return Handled(result)
            case outcome:
                return self._told(key, outcome)

    def process_sync(self, event_id: object, handler: Callable[[], T]) -> Processed[T]:
        """`process` for sync code."""
        store = self._store.sync
        key, token = self._key(event_id), new_token()
        match store.claim(key, fingerprint="", token=token, lease=self.lease):
            case Claimed(claim):
                timed = self._metrics.timed("message", self.group)
                try:
                    with holding_sync(store, claim, self.lease), timed:
                        result = handler()
                except BaseException:
                    store.release(claim)
                    raise
                self._applied(key, store.settle(claim, State.COMPLETED, None, self.window))
                return Handled(result)
            case outcome:
                return self._told(key, outcome)

    def once(self, *, key: Callable[..., object]) -> Callable[[Callable[..., Any]], Any]:
        """A handler that runs once for what `key` makes of its arguments, and tells by its answer
        whether to acknowledge: `Handled`, `Duplicate` or `Busy`."""

        def wrap(function: Callable[..., Any]) -> Any:
            if inspect.iscoroutinefunction(function):

                @functools.wraps(function)
                async def run(*arguments: Any, **named: Any) -> Processed[Any]:
                    call = functools.partial(function, *arguments, **named)
                    return await self.process(key(*arguments, **named), call)

                return run

            @functools.wraps(function)
            def run_sync(*arguments: Any, **named: Any) -> Processed[Any]:
                call = functools.partial(function, *arguments, **named)
                return self.process_sync(key(*arguments, **named), call)

            return run_sync

        return wrap

    def _key(self, event_id: object) -> str:
        return store_key(str(event_id), scope=self.group)

    def _applied(self, key: str, outcome: object) -> None:
        if not isinstance(outcome, Applied):
            self._metrics.count("message", self.group, "lost")
            raise ClaimLost(key)
        self._metrics.count("message", self.group, "miss")

    def _told(self, key: str, outcome: Running | Done | Mismatch | Claimed) -> Duplicate | Busy:
        match outcome:
            case Done():
                self._metrics.count("message", self.group, "hit")
                return Duplicate()
            case Running(retry_after):
                self._metrics.count("message", self.group, "busy")
                return Busy(retry_after)
        raise CorruptRecord(key, f"a message has no fingerprint, but it says {outcome}")
