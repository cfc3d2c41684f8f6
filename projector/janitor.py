"""What a projector does beside relaying: checkpoints, due events, pruning.

Lane by lane on the lanes it holds, in small steps, and never in the hot path.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any

from redis.asyncio import Redis
from sqlalchemy import ColumnElement, Delete, delete, select, text
from sqlalchemy.ext.asyncio import AsyncEngine

from outbox import Outbox
from outbox.delayed import move_due
from projector import keys
from projector.checkpoint import PUBLISHED, Checkpoints, older
from projector.lane import LaneState
from projector.position import Position
from projector.progress import GroupState, Mark, Marks
from projector.relay import Relay
from projector.sink.script import text as decoded

log = logging.getLogger("projector.janitor")

PRUNED_AT_ONCE = 1_000

Groups = dict[str, dict[str, GroupState]]
"""Per group, what Redis says of it on each stream of a lane."""


@dataclass(slots=True)
class Janitor:
    """Keeps one outbox tidy. Safe to run in several projectors: each works on its own lanes."""

    engine: AsyncEngine
    redis: Redis
    outbox: Outbox
    checkpoints: Checkpoints
    retention: timedelta
    _marks: dict[int, Marks] = field(default_factory=dict)

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
        published = _at_rest(relay.state)
        tops = await self._tops(lane)  # read after the position: later ids only make us wait
        marks = self._marks.setdefault(lane, Marks())
        marks.add(Mark(published, tops))
        positions = {PUBLISHED: published}
        for group, streams in (await self._groups(lane, tops)).items():
            reached = marks.newest_reached(streams)
            if reached is not None:
                positions[group] = reached
        await self.checkpoints.save(lane, positions)

    async def prune(self, lane: int, now: datetime | None = None) -> int:
        """Delete what every group has acknowledged and what is old enough. How many rows."""
        bound = await self.checkpoints.acknowledged(lane)
        if bound is None or bound.origin.system != self.checkpoints.origin.system:
            return 0
        statement = self._doomed(lane, bound, (now or datetime.now(UTC)) - self.retention)
        pruned = 0
        while True:
            async with self.engine.begin() as connection:
                count = (await connection.execute(statement)).rowcount
            pruned += count
            if count < PRUNED_AT_ONCE:
                return pruned

    def _doomed(self, lane: int, bound: Position, before: datetime) -> Delete:
        log_table = self.outbox.table
        seen: ColumnElement[bool]
        if self.engine.dialect.name == "sqlite":
            seen = log_table.c.id < bound.base.snapshot.xmax
        else:
            visible: Any = text("pg_visible_in_snapshot(xid, cast(:base as pg_snapshot))")
            seen = visible.bindparams(base=str(bound.base.snapshot))
        oldest = (
            select(log_table.c.id)
            .where(log_table.c.lane == lane, log_table.c.id <= bound.head)
            .where(log_table.c.created_at < before, seen)
            .order_by(log_table.c.id)
            .limit(PRUNED_AT_ONCE)
        )
        return delete(log_table).where(log_table.c.lane == lane, log_table.c.id.in_(oldest))

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


def _at_rest(state: LaneState) -> Position:
    """The oldest of a lane's positions, without its open window: up to there, all is published."""
    position = min((state.main, *state.detached.values()), key=older)
    return replace(position, upto=None, after=0)
