"""One lane of a consumer: reads its streams, hands messages out to workers, and settles them.

Nothing here decides twice: the scripts of the ledger say who may read, who may run, and what is
done. When anything went wrong, the lane starts over from what is pending.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from datetime import timedelta
from functools import partial
from typing import Any

from redis.asyncio import Redis
from redis.exceptions import RedisError
from tenacity import AsyncRetrying, retry_if_exception_type, wait_random_exponential

from inbox.consumer.effect import Effect, Failed
from inbox.consumer.ledger import NEW, LaneLost, Ledger, Read
from inbox.consumer.message import Message
from inbox.consumer.policy import Policy
from inbox.consumer.work import Chain, Pool
from outbox import layout
from outbox.ending import end

log = logging.getLogger("inbox.consumer")

OUTAGE = (RedisError, OSError)
BLOCK = timedelta(seconds=1)
"""How long a lane waits for entries before it looks around."""


class Lane:
    """From taking a lane to giving it back."""

    def __init__(self, ledger: Ledger, policy: Policy, pool: Pool, waiting: Redis) -> None:
        self.ledger = ledger
        self.number = ledger.lane
        self._policy = policy
        self._pool = pool
        self._waiting = waiting
        self._effect = Effect(ledger, policy, pool.alone)
        self._flying: dict[tuple[str, bytes], Message] = {}
        self._events: set[str] = set()
        self._twins: list[Message] = []
        self._chains: dict[str, Chain] = {}
        self._done: list[Message] = []
        self._settling = asyncio.Event()
        self._landed = asyncio.Event()
        self._retrying: set[str] = set()
        self._arriving: asyncio.Task[None] | None = None
        self._unreadable: dict[str, str] = {}
        self._closing = False
        self._reclaimed_at = time.monotonic()
        self._tasks: list[asyncio.Task[None]] = []
        self._caught_up = asyncio.Event()
        self._lost = False
        self.problem: BaseException | None = None

    def start(self) -> None:
        for job in (self._read_on, self._keep_settling, self._keep_claims):
            task = asyncio.create_task(job())
            task.add_done_callback(self._ended)
            self._tasks.append(task)

    def _ended(self, task: asyncio.Task[None]) -> None:
        """A bug of ours must not look like a quiet lane."""
        if not task.cancelled() and (problem := task.exception()):
            self._broken(problem)

    def _broken(self, problem: BaseException) -> None:
        log.error("a lane is broken", exc_info=problem, extra={"lane": self.number})
        self.problem = problem
        self._caught_up.set()

    def check(self) -> None:
        """Raises what has ended the lane and should not have."""
        if self.problem is not None:
            raise self.problem

    @property
    def at_rest(self) -> bool:
        """There was nothing left to read, and everything read is done."""
        return self._caught_up.is_set() and not self._lost

    @property
    def lost(self) -> bool:
        """Another process has the lane, or may have it."""
        return self._lost

    def lose(self) -> None:
        self._lost = True
        self._caught_up.set()

    async def changed(self) -> None:
        """Until the lane has come to rest, or is lost."""
        await self._caught_up.wait()
        if self._lost:
            await asyncio.sleep(0.01)  # whoever holds lanes sees to it

    async def close(self, deadline: float) -> None:
        """Read no more; let what runs finish, as long as the loop's clock is below `deadline`.
        What has not begun is given back, and what does not finish is left pending."""
        self._closing = True
        reading, settling, keeping = self._tasks
        await end(reading, *([self._arriving] if self._arriving else []))
        for chain in self._chains.values():
            chain.messages.clear()
        done = set(self._done)
        waiting = [m for m in self._flying.values() if m.fence and m not in done]
        waiting = [m for m in waiting if m not in self._effect.running]
        with suppress(*OUTAGE):
            await self.ledger.give_back([m for m in waiting if m.begun], begun=True)
            await self.ledger.give_back([m for m in waiting if not m.begun], begun=False)
        self._land(waiting)
        with suppress(TimeoutError):
            async with asyncio.timeout_at(deadline):
                while self._effect.running or self._flying:
                    self._landed.clear()
                    await self._landed.wait()
        await end(settling, keeping)
        if not self._lost:
            with suppress(*OUTAGE):
                await self.ledger.leave()

    def retry(self, places: Iterable[str]) -> None:
        """Work off the queues of parked keys; whoever asked is not told twice."""
        for place in places:
            if place not in self._retrying and not self._closing:
                self._retrying.add(place)
                self._pool.start(Chain(place, partial(self._guarded, job=self._retry)))

    # Reading

    async def _read_on(self) -> None:
        while not self._closing and not self._lost:
            async for attempt in AsyncRetrying(
                retry=retry_if_exception_type(OUTAGE),
                wait=wait_random_exponential(multiplier=0.05, max=2),
            ):
                with attempt:
                    await self._session()

    async def _session(self) -> None:
        """From what is pending to what is new, until something goes wrong."""
        try:
            if self._policy.ordered:
                await self.ledger.adopt()
            await self._replay()
            while not self._closing:
                await self._room()
                twins, self._twins = self._twins, []
                await self._claim(self._without_twins(twins))
                await self._reclaim()
                new = dict.fromkeys(self.ledger.topics, NEW)
                found = await self._read(new)
                await self._dispatch(found.messages)
                if not found.messages:
                    await self._idle(found)
        except LaneLost:
            log.warning("a lane is another's by now", extra={"lane": self.number})
            self.lose()
        except OUTAGE as problem:
            log.warning("reading a lane failed: %s", problem, extra={"lane": self.number})
            raise

    async def _replay(self) -> None:
        """What was delivered and not acknowledged, by whomever, in id order."""
        after = dict.fromkeys(self.ledger.topics, "0")
        while after:
            await self._room()
            found = await self._read(after)
            fresh = [m for m in found.messages if (m.topic, m.entry_id) not in self._flying]
            await self._dispatch(fresh)
            last = {m.topic: m.entry_id.decode() for m in found.messages}
            after = {topic: last[topic] for topic in after if topic in last}

    async def _read(self, after: dict[str, str]) -> Read:
        found = await self.ledger.read(after, self._policy.batch, fenced=self._policy.ordered)
        if found.deleted:
            log.error(
                "entries were trimmed or deleted before the group had handled them",
                extra={"lane": self.number, "events": found.deleted},
            )
        for topic, problem in found.problems.items():
            if self._unreadable.get(topic) != problem:
                log.error(
                    "a stream cannot be read: %s",
                    problem,
                    extra={"lane": self.number, "topic": topic},
                )
        self._unreadable = dict(found.problems)
        if found.groups_made:
            log.warning("consumer groups were made anew", extra={"lane": self.number})
        return found

    async def _room(self) -> None:
        while len(self._flying) > self._policy.batch:
            self._landed.clear()
            await self._landed.wait()

    async def _idle(self, found: Read) -> None:
        """Wait for entries, without the group: a consumer that sleeps takes none away."""
        if not self._flying and not self._retrying:
            self._caught_up.set()
        streams = {
            layout.stream(self.ledger.name, self.number, topic): top
            for topic, top in found.tops.items()
        }
        if not streams:
            await asyncio.sleep(BLOCK.total_seconds())  # none of them can be read
            return
        if self._arriving is None:
            self._arriving = asyncio.create_task(self._arrival(streams))
        landing = asyncio.create_task(self._landed.wait())
        self._landed.clear()
        try:
            busy = self._flying or self._retrying
            awaited = {self._arriving, landing} if busy else {self._arriving}
            await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
        finally:
            landing.cancel()
        if self._arriving.done():
            self._arriving = None

    async def _arrival(self, streams: dict[Any, Any]) -> None:
        """Something has come, or it is time to look around. An error is told by the next read."""
        with suppress(*OUTAGE):
            block = int(BLOCK / timedelta(milliseconds=1))
            await self._waiting.xread(streams, count=1, block=block)

    async def _reclaim(self) -> None:
        """Unordered consumers take over what others have left lying."""
        idle = self._policy.pending_idle
        if self._policy.ordered or time.monotonic() - self._reclaimed_at < idle.total_seconds() / 5:
            return
        self._reclaimed_at = time.monotonic()
        lost = await self.ledger.reclaim(idle)
        if lost:
            log.error(
                "entries were trimmed or deleted before the group had handled them",
                extra={"lane": self.number, "events": lost},
            )
        await self._replay()

    # Handing out

    async def _dispatch(self, messages: Sequence[Message]) -> None:
        if not messages:
            return
        self._caught_up.clear()
        for message in messages:
            self._flying[message.topic, message.entry_id] = message
        await self._claim(self._without_twins(messages))

    def _without_twins(self, messages: Sequence[Message]) -> list[Message]:
        """An event that is in the stream twice, while its first entry is on its way: our claim of
        the one would let the other pass. It waits until the first has landed."""
        alone = []
        for message in messages:
            if message.event_id in self._events:
                self._twins.append(message)
            else:
                self._events.add(message.event_id)
                alone.append(message)
        return alone

    async def _claim(self, messages: Sequence[Message]) -> None:
        if not messages:
            return
        before = []
        try:
            verdicts = await self.ledger.take(messages, unsettled=self._effect.unsettled)
        except BaseException:
            self._land(messages)  # they are pending, and are read again
            raise
        for message, verdict in zip(messages, verdicts, strict=True):
            if verdict.kind == "done":
                before.append(message)
            else:
                self._enqueue(message)
        if before:
            self._land(before)
            await self.ledger.acknowledge(before)
            self._policy.metrics.count_many("message", self._policy.group, "hit", len(before))

    def _enqueue(self, message: Message) -> None:
        handler = self._policy.handlers.find(message)
        if not self._policy.ordered:
            place = message.entry_id.decode()
        elif handler is not None and handler.batch:
            place = handler.name  # one batch after another keeps the order of every key
        else:
            place = message.place
        chain = self._chains.get(place)
        if chain is None:
            chain = self._chains[place] = Chain(place, partial(self._guarded, job=self._work))
            self._pool.start(chain)
        chain.messages.append(message)

    async def _guarded(self, chain: Chain, job: Callable[[Chain], Awaitable[None]]) -> None:
        try:
            await job(chain)
        except Exception as problem:
            self._broken(problem)

    async def _work(self, chain: Chain) -> None:
        """Until the chain is empty. An error of ours ends the lane's session, not the worker."""
        try:
            while chain.messages:
                handled = await self._effect.next(chain.messages)
                self._done += handled.settled
                if handled.settled:
                    self._settling.set()
                self._land(handled.gone)
        except OUTAGE as problem:
            # They stay pending, and are read again.
            log.warning("handling failed: %s", problem, extra={"lane": self.number})
            self._forget(chain.messages)
            self._again()
        finally:
            if self._chains.get(chain.place) is chain:
                del self._chains[chain.place]
            self._landed.set()

    async def _retry(self, chain: Chain) -> None:
        """Work off what waits in the queue of a parked key, in place and in order."""
        try:
            while not self._closing:
                if not await self._effect.retry(chain.place):
                    return
        except (*OUTAGE, Failed) as problem:
            log.warning("a retry failed: %s", problem, extra={"lane": self.number})
        finally:
            self._retrying.discard(chain.place)
            self._landed.set()

    # Settling

    async def _keep_settling(self) -> None:
        while True:
            await self._settling.wait()
            self._settling.clear()
            await asyncio.sleep(0)  # whoever is about to finish comes along
            batch, self._done = self._done[:1000], self._done[1000:]
            if self._done:
                self._settling.set()
            if batch:
                await self._settle(batch)

    async def _settle(self, batch: list[Message]) -> None:
        async for attempt in AsyncRetrying(
            retry=retry_if_exception_type(OUTAGE),
            wait=wait_random_exponential(multiplier=0.05, max=2),
        ):
            with attempt:
                lost = await self.ledger.settle(batch)
        group, metrics = self._policy.group, self._policy.metrics
        for message in lost:
            log.warning(
                "an event was handled, but its claim was lost meanwhile: it may be handled twice",
                extra={"lane": self.number, "event": message.event_id},
            )
            metrics.count("message", group, "lost")
        metrics.count_many("message", group, "miss", len(batch) - len(lost))
        self._land(batch)

    async def _keep_claims(self) -> None:
        lease = self._policy.claim_lease.total_seconds()
        while True:
            await asyncio.sleep(lease / 3)
            sent = time.monotonic()
            with suppress(*OUTAGE):
                flying = [message for message in self._flying.values() if message.fence]
                # Letters that are handled once more do not fly.
                mine = list({*flying, *self._effect.running})
                lost = set(await self.ledger.keep(mine))
                for message in mine:
                    self._effect.renewed(message, message not in lost, sent)

    def _land(self, messages: Iterable[Message]) -> None:
        for message in messages:
            self._flying.pop((message.topic, message.entry_id), None)
            self._events.discard(message.event_id)
            self._effect.landed(message)
        self._landed.set()

    def _forget(self, messages: Iterable[Message]) -> None:
        self._land(list(messages))

    def _again(self) -> None:
        """Start over from what is pending."""
        if self._tasks and not self._closing:
            reading = self._tasks[0]
            self._tasks[0] = asyncio.create_task(self._restart(reading))
            self._tasks[0].add_done_callback(self._ended)

    async def _restart(self, before: asyncio.Task[None]) -> None:
        await end(before)
        await asyncio.sleep(0.1)
        await self._read_on()
