"""What a projector does beside relaying: checkpoints, due events, and, in files of their own, the
rest. Lane by lane on the lanes it holds, in small steps, and never in the hot path."""

from __future__ import annotations

import logging
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
    _marks: dict[int, Marks] = field(default_factory=dict)
    _saved: dict[int, tuple[Mapping[str, Position], float]] = field(default_factory=dict)

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
        try:
            groups = await self._groups(lane, list(tops))
        except NoPermissionError:
            groups = {}  # how far they are is not known: what was saved of them stays
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

    async def _groups(self, lane: int, streams: Sequence[str]) -> Groups:
        """And register whoever is found, so that an emptied Redis does not make us forget."""
        found: Groups = {}
        answers = await script.run(self.redis, "groups", streams, []) if streams else []
        for stream, (length, *told) in zip(streams, answers, strict=True):
            topic = stream.removeprefix(keys.stream(self.outbox.name, lane, ""))
            texts = map(script.text, told)
            groups = {
                name: GroupState(delivered, oldest or None)
                for name, delivered, oldest in zip(texts, texts, texts, strict=True)
            }
            await self.checkpoints.register(topic, set(groups))
            self._watch(lane, topic, int(length), bool(groups))
            for group, state in groups.items():
                found.setdefault(group, {})[stream] = state
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
