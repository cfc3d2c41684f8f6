"""What a projector does beside relaying: checkpoints, due events, and, in files of their own, the
rest. Lane by lane on the lanes it holds, in small steps, and never in the hot path."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from typing import Any

from redis.asyncio import Redis
from sqlalchemy.ext.asyncio import AsyncEngine

from outbox import Outbox
from outbox.delayed import move_due
from projector import keys
from projector.checkpoint import PUBLISHED, Checkpoints, at_rest
from projector.position import Position
from projector.progress import GroupState, Mark, Marks
from projector.relay import Relay
from projector.sink.script import text as decoded

IDLE = timedelta(minutes=1)
"""Between two checkpoints of a lane that stands still."""

Groups = dict[str, dict[str, GroupState]]
"""Per group, what Redis says of it on each stream of a lane."""


@dataclass(slots=True)
class Janitor:
    """Keeps one outbox tidy. Safe to run in several projectors: each works on its own lanes."""

    engine: AsyncEngine
    redis: Redis
    outbox: Outbox
    checkpoints: Checkpoints
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
        for group, streams in (await self._groups(lane, tops)).items():
            reached = marks.newest_reached(streams)
            if reached is not None:
                positions[group] = reached
        before, at = self._saved.get(lane, ({}, 0.0))
        if positions != before or time.monotonic() - at >= IDLE.total_seconds():
            await self.checkpoints.save(lane, positions)
            self._saved[lane] = positions, time.monotonic()

    async def _tops(self, lane: int) -> dict[str, str]:
        found: Any = await self.redis.hgetall(keys.tops(self.outbox.name, lane))
        return {decoded(stream): decoded(top) for stream, top in found.items()}

    async def _groups(self, lane: int, tops: Mapping[str, str]) -> Groups:
        """And register whoever is found, so that an emptied Redis does not make us forget."""
        found: Groups = {}
        for stream in tops:
            groups = await self._groups_of(stream)
            topic = stream.removeprefix(keys.stream(self.outbox.name, lane, ""))
            await self.checkpoints.register(topic, set(groups))
            for group, state in groups.items():
                found.setdefault(group, {})[stream] = state
        return found

    async def _groups_of(self, stream: str) -> dict[str, GroupState]:
        if not await self.redis.exists(stream):
            return {}
        groups = {}
        for info in await self.redis.xinfo_groups(stream):
            name, oldest = decoded(info["name"]), None
            if info["pending"]:
                pending: Any = await self.redis.xpending(stream, name)
                oldest = decoded(pending["min"]) if pending["min"] else None
            groups[name] = GroupState(decoded(info["last-delivered-id"]), oldest)
        return groups
