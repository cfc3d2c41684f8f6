"""Moves one lane: reads a page, publishes it with the new position, and goes on.

Never trusts its memory: every publish compares the stored state with what the page was read from.
If they differ, nothing was written, and the lane continues from what is stored.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from dataclasses import replace
from typing import Protocol, TypeVar

from projector.lane import LaneState
from projector.position import Moment, Position
from projector.rejected import fault
from projector.sink.outcome import Blocked, Moved, Outcome, Published
from projector.source.batch import EVERY_TOPIC, Ahead, Batch, Row, Topics
from projector.telemetry import Telemetry

log = logging.getLogger("projector.relay")

A = TypeVar("A")
B = TypeVar("B")

BATCH = 1_000
BATCH_BYTES = 4 * 1024 * 1024
TRY_AGAIN = 0.25
"""Seconds between two tries of a stream that takes no entries."""
FIRST_PAGE = 64
"""Rows that a lane reads first, before it knows how large they are."""
PAGES = 8
"""How many batches a lane publishes in a row before the others have their turn."""


class Source(Protocol):
    async def read(
        self, lane: int, position: Position, limit: int, topics: Topics = EVERY_TOPIC
    ) -> Batch:
        """The next events of the position's open window. Reading twice from one position yields the
        same events first; a closed window in the batch's position means that nothing is left."""


class Sink(Protocol):
    async def state(self, lane: int) -> str:
        """The lane's stored state; empty if there is none."""

    async def publish(
        self, lane: int, expected: str, new: str, rows: Sequence[Row], lost: str | None = None
    ) -> Outcome:
        """All rows and the new state, or nothing. An error leaves the outcome unknown. `lost` is a
        topic whose stream is gone, and may be made anew from now on."""


class Resume(Protocol):
    """What the database knows of a lane that Redis has forgotten."""

    async def lane(self, lane: int) -> Position:
        """Where to start: nothing that a group has yet to acknowledge lies before it."""

    async def topic(self, lane: int, topic: str) -> Position:
        """The same for one topic whose stream was lost."""

    async def fit(self, lane: int, state: LaneState) -> LaneState:
        """The stored state, as it holds on the database that answers now; raises if none does."""

    async def fell_back(self, lane: int, before: Position | None, now: Position) -> int:
        """How many events are published again by a lane that stood at `before`, or, if nobody
        remembers, at its checkpoint."""


class Rejects(Protocol):
    async def set_aside(self, lane: int, causes: Mapping[int, str]) -> None:
        """Keep rows that cannot be published, by their ids, with what is wrong with them."""


class Relay:
    """One lane. Its callers take turns; two relays of one lane do no harm, but work twice."""

    def __init__(
        self,
        lane: int,
        source: Source,
        sink: Sink,
        resume: Resume,
        rejects: Rejects,
        *,
        batch: int = BATCH,
        batch_bytes: int = BATCH_BYTES,
        pages: int = PAGES,
        telemetry: Telemetry | None = None,
    ) -> None:
        self.lane = lane
        self._source = source
        self._sink = sink
        self._resume = resume
        self._rejects = rejects
        self._batch = batch
        self._batch_bytes = batch_bytes
        self._pages = pages
        self._telemetry = telemetry or Telemetry()
        self._followed: dict[str, float] = {}
        self._faster: set[str] = set()
        self._limit = min(batch, FIRST_PAGE)
        self._sound: set[str] = set()
        self.paused: Set[str] = frozenset()
        """Topics that are held back by hand."""
        self._turn = asyncio.Lock()
        self._stored: str | None = None
        self._state: LaneState | None = None

    @property
    def state(self) -> LaneState:
        assert self._state is not None, "load() first"
        return self._state

    async def load(self) -> None:
        """Learn where the lane stands, from Redis, or from the database if Redis has forgotten."""
        await self._adopt(await self._sink.state(self.lane))

    def skip(self, moment: Moment, asked: Position) -> None:
        """Nothing was committed between the position `asked` about and `moment`: remember that,
        without storing it. Unless the lane stands elsewhere by now, or is just moving."""
        if self.state.main == asked and not self._turn.locked():
            self._state = self.state.moved(asked.opened(moment).closed())

    async def advance(self, moment: Moment, ahead: Ahead | None = None) -> int:
        """Publish what is committed up to `moment`, taken after load(). Returns how many events.
        `ahead` is the first page, if it was read along with the moment.

        Stops after some pages, so that the lanes of a process take turns, and when the state turned
        out to be another one. Either way, call again.
        """
        async with self._turn:
            for topic in self.paused - self.state.detached.keys():
                await self._detach(Blocked(topic, "paused", "by hand"))
            main = self.state.main
            if main.upto is None:
                if main.base == moment:
                    return 0
                main = main.opened(moment)
            first = None
            # Read for a lane that stands elsewhere by now, or goes on without a topic: of no use.
            if ahead and ahead.start == main and not self.state.detached:
                first = await self._sound_part(_capped(ahead.page, main, self._batch_bytes))
            return await self._publish(main, self._without_detached(), self.state.moved, first)

    async def follow(self, topic: str) -> int:
        """Let a detached topic get on, up to where the lane stands. Returns how many events."""

        def moved(to: Position) -> LaneState:
            return self.state.moved_topic(topic, to)

        async with self._turn:
            position, main = self.state.detached[topic], self.state.main
            if position.upto is None:
                if position.base == main.base:
                    await self._rejoin(topic, position)
                    return 0
                if not main.base.snapshot.covers(position.base.snapshot):
                    return 0  # it was faster, and waits for the lane
                position = position.opened(main.base)
            count = await self._publish(position, Topics(only=topic), moved)
            if not count:  # else it flows again, and need not wait to catch up
                self._followed[topic] = time.monotonic()
            now = self.state.detached.get(topic)
            if now is not None and now.base == position.upto:
                self._faster.add(topic)
            return count

    async def _rejoin(self, topic: str, position: Position) -> None:
        """A topic rejoins by publishing up to where the lane stands. One that had done so before
        the lane got there rejoins now; one that was just detached has yet to show that it can."""
        if topic in self._faster and self.state.main.upto is None:
            await self._store(self.state.moved_topic(topic, position), [])

    def due(self, topic: str) -> bool:
        """Whether a detached topic may be tried again: its stream is not asked at every turn."""
        rested = time.monotonic() - self._followed.get(topic, 0) > TRY_AGAIN
        return rested and topic not in self.paused

    async def save(self) -> None:
        """Store a position that moved without events, and notice if Redis has lost the last one."""
        async with self._turn:
            if isinstance(outcome := await self._store(self.state, []), Moved):
                await self._moved(outcome)

    async def _publish(
        self,
        position: Position,
        topics: Topics,
        moved: Callable[[Position], LaneState],
        first: Batch | None = None,
    ) -> int:
        count = 0
        page = first or await self._read(position, topics)
        for _ in range(self._pages - 1):
            if page.position.upto is None:
                break
            # The next page is read while this one is published.
            handled, following = await _both(
                self._handled(moved(page.position), page.rows),
                self._read(page.position, topics),
            )
            if not handled:
                return count
            count += len(page.rows)
            page = following
        if await self._handled(moved(page.position), page.rows):
            count += len(page.rows)
        return count

    async def _read(self, position: Position, topics: Topics) -> Batch:
        batch = await self._source.read(self.lane, position, self._limit, topics)
        size = sum(len(row.data or b"") for row in batch.rows)
        enough = (self._batch, self._batch_bytes)
        self._limit = page_limit(self._limit, *enough, len(batch.rows), size)
        return await self._sound_part(_capped(batch, position, self._batch_bytes))

    async def _sound_part(self, batch: Batch) -> Batch:
        """What can be published; the rest is set aside before the lane passes it."""
        suspects = [r for r in batch.rows if r.data is None or r.topic not in self._sound]
        causes = {row.id: cause for row in suspects if (cause := fault(row))}
        self._sound.update(row.topic for row in suspects if row.id not in causes)
        if not causes:
            return batch
        await self._rejects.set_aside(self.lane, causes)
        for row_id, cause in causes.items():
            log.error(
                "a row cannot be published and was set aside: %s",
                cause,
                extra={"lane": self.lane, "row": row_id},
            )
            self._telemetry.rejected(self.lane)
        return Batch([row for row in batch.rows if row.id not in causes], batch.position)

    async def _handled(self, state: LaneState, rows: Sequence[Row]) -> bool:
        """Whether the rows are published; if not, the lane's state is what it turned out to be."""
        if not rows and state.main.upto is None:
            self._state = state  # nothing to publish: Redis need not know yet
            return True
        match await self._store(state, rows):
            case Published(strangers):
                for stream in strangers:
                    log.warning("somebody else writes to a stream", extra={"stream": stream})
                    self._telemetry.stranger(stream)
                return True
            case Moved() as outcome:
                await self._moved(outcome)
            case Blocked() as outcome:
                await self._detach(outcome)
        return False

    async def _store(
        self, state: LaneState, rows: Sequence[Row], lost: str | None = None
    ) -> Outcome:
        assert self._stored is not None, "load() first"
        new = str(state)
        began = time.monotonic()
        outcome = await self._sink.publish(self.lane, self._stored, new, rows, lost)
        if isinstance(outcome, Published):
            seconds = time.monotonic() - began
            for topic, count in Counter(row.topic for row in rows).items():
                self._telemetry.published(self.lane, topic, count, seconds)
            for topic in self.state.detached.keys() - state.detached.keys():
                log.info("a topic rejoined its lane", extra={"lane": self.lane, "topic": topic})
                self._telemetry.rejoined(self.lane, topic)
            self._stored, self._state = new, state
        return outcome

    async def _moved(self, outcome: Moved) -> None:
        log.warning(
            "the lane stands elsewhere than expected; continuing from there",
            extra={"lane": self.lane, "expected": self._stored, "stored": outcome.stored},
        )
        self._telemetry.moved(self.lane)
        await self._adopt(outcome.stored)

    async def _adopt(self, stored: str) -> None:
        before = self._state.main if self._state else None
        if stored:
            state = await self._resume.fit(self.lane, LaneState.parse(stored))
        else:
            state = LaneState(await self._resume.lane(self.lane))
        if again := await self._resume.fell_back(self.lane, before, state.main):
            log.warning(
                "Redis has lost events; they are published again",
                extra={"lane": self.lane, "events": again},
            )
        self._stored, self._state = stored, state
        for topic in self._state.detached:
            self._telemetry.detached(self.lane, topic, "earlier", "")

    async def _detach(self, outcome: Blocked) -> None:
        topic, reason, detail = outcome.topic, outcome.reason, outcome.detail
        self._faster.discard(topic)
        if self._telemetry.detached(self.lane, topic, reason, detail):
            log.error(
                "a stream takes no entries; the lane goes on without its topic",
                extra={"lane": self.lane, "topic": topic, "reason": reason, "detail": detail},
            )
        state = self.state
        lost = topic if reason == "deleted" else None
        if lost:
            position = await self._resume.topic(self.lane, topic)
            state = replace(state, detached={**state.detached, topic: position})
        elif topic in state.detached:
            return  # it stays where it stands, and is tried again
        else:
            state = state.detach(topic)
        if isinstance(stored := await self._store(state, [], lost), Moved):
            await self._moved(stored)

    def _without_detached(self) -> Topics:
        return Topics(without=tuple(self.state.detached))


async def _both(first: Awaitable[A], second: Awaitable[B]) -> tuple[A, B]:
    """Both to their end, also if one fails: none is left running behind an error."""
    results = await asyncio.gather(first, second, return_exceptions=True)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results  # type: ignore[return-value]  # no exceptions are left in it


def page_limit(limit: int, most: int, most_bytes: int, rows: int, size: int) -> int:
    """How many rows to read next, when of `limit` that were asked for `rows` came, with `size`
    bytes: as many as make up a batch. A page of a thousand large events could fill the memory."""
    fitting = max(1, most_bytes * rows // size) if size else most
    return min(most, 2 * limit, fitting)


def _capped(batch: Batch, start: Position, limit: int) -> Batch:
    """At most `limit` bytes of data, and at least one row; the rest is read again."""
    size = 0
    for number, row in enumerate(batch.rows):
        size += len(row.data or b"")
        if size > limit and number:
            kept = batch.rows[:number]
            return Batch(kept, start.advanced(kept[-1].id))
    return batch
