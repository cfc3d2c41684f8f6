"""What a projector does beside relaying: checkpoints, due events, and, in files of their own, the
rest. Lane by lane on the lanes it holds, in small steps, and never in the hot path.

A checkpoint begins with a look at the lane's streams; trimming, recovery and the search for losses
go by that look, and their scripts check again what they are about to do.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any

from redis.exceptions import NoPermissionError, ResponseError
from sqlalchemy.ext.asyncio import AsyncEngine

from outbox import Outbox
from outbox.delayed import move_due
from projector import keys
from projector.checkpoint import PUBLISHED, Checkpoints, at_rest
from projector.cluster import AnyRedis
from projector.dead.census import census
from projector.janitor.consumers import Departed
from projector.janitor.look import StreamLook, look_at
from projector.janitor.loss import Losses
from projector.janitor.recovery import Recovery
from projector.janitor.trim import Trimmer
from projector.position import Position
from projector.progress import GroupState, Mark, Marks
from projector.relay import Relay
from projector.sink import script
from projector.telemetry import Telemetry
from projector.topology import PLAIN, Topology

log = logging.getLogger("projector.janitor")

NEARLY = 0.8
"""How full a stream is when it is time to say that nobody reads it."""
IDLE = timedelta(minutes=1)
"""Between two checkpoints of a lane that stands still."""
PENDING_IDLE = timedelta(minutes=5)
CONSUMER_IDLE = timedelta(hours=24)
ROUNDS = 5
"""How many rounds of recovery fit into the time after which an entry is recovered."""

Groups = dict[str, dict[str, GroupState]]
"""Per group, what Redis says of it on each stream of a lane."""


@dataclass(slots=True)
class Janitor:
    """Keeps one outbox tidy. Safe to run in several projectors: each works on its own lanes."""

    engine: AsyncEngine
    redis: AnyRedis
    outbox: Outbox
    checkpoints: Checkpoints
    topology: Topology = field(default_factory=dict)
    telemetry: Telemetry = field(default_factory=Telemetry)
    trim: bool = True
    pending_idle: timedelta = PENDING_IDLE
    consumer_idle: timedelta = CONSUMER_IDLE
    _losses: Losses = field(init=False)
    _looks: dict[int, list[StreamLook]] = field(default_factory=dict)
    _recovered: dict[int, float] = field(default_factory=dict)
    _marks: dict[int, Marks] = field(default_factory=dict)
    _saved: dict[int, tuple[Mapping[str, Position], float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._losses = Losses(self.redis, self.outbox.name, self.telemetry)

    async def move_due(self) -> int:
        """Delayed events into the log. By one projector at a time, so that those of one key keep
        the order of their times."""
        moved = 0
        while True:
            async with self.engine.begin() as connection:
                count = await connection.run_sync(partial(move_due, outbox=self.outbox))
            moved += count
            if not count:
                return moved

    async def checkpoint(self, relay: Relay) -> None:
        """Remember how far the lane is published, and acknowledged by each of its groups."""
        await relay.save()
        lane = relay.lane
        published = at_rest(relay.state)
        tops = await self._tops(lane)  # read after the position: later ids only make us wait
        marks = self._marks.setdefault(lane, Marks())
        marks.add(Mark(published, tops))
        positions = {PUBLISHED: published}
        groups = await self._groups(lane, list(tops))
        for group, streams in groups.items():
            reached = marks.newest_reached(streams)
            if reached is not None:
                positions[group] = reached
        await self._count_letters(lane, groups)
        before, at = self._saved.get(lane, ({}, 0.0))
        if positions != before or time.monotonic() - at >= IDLE.total_seconds():
            await self.checkpoints.save(lane, positions)
            self._saved[lane] = positions, time.monotonic()

    async def _count_letters(self, lane: int, groups: Iterable[str]) -> None:
        with suppress(ResponseError):  # they are counted for people alone: nothing waits for it
            found = await census(self.redis, self.outbox.name, lane, sorted(groups))
            self.telemetry.letters(lane, found)

    async def _tops(self, lane: int) -> dict[str, str]:
        found: Any = await self.redis.hgetall(keys.tops(self.outbox.name, lane))
        return {script.text(stream): script.text(top) for stream, top in found.items()}

    async def tend(self, lane: int) -> None:
        """After a checkpoint: remove what every group has acknowledged and, now and then, see to
        what dead consumers have left."""
        looks = self._looks.get(lane, [])
        await self._losses.look(lane, looks)
        if self.trim:
            trimmer = Trimmer(self.redis, self.outbox.name, self.telemetry)
            topics = [look.topic for look in looks]
            await trimmer.trim(lane, topics, await self.checkpoints.groups())
        now = time.monotonic()
        if now - self._recovered.get(lane, -math.inf) >= self.pending_idle.total_seconds() / ROUNDS:
            await self._recovery().recover(lane, looks)
            departed = Departed(self.redis, self.consumer_idle)
            await departed.remove(lane, [look.key for look in looks])
            self._recovered[lane] = now

    def _recovery(self) -> Recovery:
        return Recovery(
            self.redis,
            self.outbox.name,
            self._losses,
            self.telemetry,
            self.topology,
            self.pending_idle,
        )

    async def _groups(self, lane: int, streams: Sequence[str]) -> Groups:
        """And register whoever is found, so that an emptied Redis does not make us forget."""
        self._looks[lane] = []
        try:
            looks = await look_at(self.redis, self.outbox.name, lane, streams, self.pending_idle)
        except NoPermissionError:
            return {}  # how far they are is not known: what was saved of them stays
        found: Groups = {}
        for look in looks:
            await self.checkpoints.register(look.topic, set(look.groups))
            self._watch(lane, look.topic, look.length, bool(look.groups))
            for group, seen in look.groups.items():
                found.setdefault(group, {})[look.key] = seen.state
        self._looks[lane] = looks
        return found

    def _watch(self, lane: int, topic: str, length: int, read: bool) -> None:
        """Says so in time if a stream fills up that nobody reads and nothing trims."""
        kept = self.topology.get(topic, PLAIN)
        filling = kept.high_water and length >= kept.high_water * NEARLY
        if read or kept.capped or not filling:
            self.telemetry.read(lane, topic)
            return
        detail = f"{length} of {kept.high_water} entries, and no group reads them"
        if self.telemetry.unread(lane, topic, detail):
            place = {"lane": lane, "topic": topic}
            log.warning("a stream fills up, and nobody reads it: %s", detail, extra=place)
