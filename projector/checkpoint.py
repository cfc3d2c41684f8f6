"""What the database knows of the lanes: how far they are published, and acknowledged by whom.

It answers three questions. Where to resume when Redis has lost its data: at the oldest group's
checkpoint. How to survive a promotion: at the lane's own, which travelled with the WAL. What may be
pruned: what every group has behind it.
"""

from __future__ import annotations

import secrets
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import delete, func, select
from sqlalchemy.dialects.postgresql import insert as upsert  # SQLite renders its ON CONFLICT too
from sqlalchemy.ext.asyncio import AsyncEngine

from outbox.tables import Tables
from projector.errors import ProjectorError
from projector.lane import LaneState
from projector.origin import OtherDatabase, start
from projector.position import DAWN, Origin, Position

PUBLISHED = ""
"""The consumer under which a lane's own position is kept."""


class Hole(ProjectorError):
    """Redis came back from before rows that are pruned by now."""

    def __init__(self, lane: int, published_to: int, pruned_to: int) -> None:
        super().__init__(
            f"lane {lane} is published up to row {published_to}, but rows up to {pruned_to} are "
            "pruned: Redis was restored from an old copy, and what lies between is gone. "
            "Run `projector rebase` to go on with what is retained"
        )
        self.lane = lane
        self.published_to = published_to
        self.pruned_to = pruned_to


@dataclass(frozen=True, slots=True)
class Checkpoints:
    """The checkpoints of one outbox, as they hold for the database `origin`."""

    engine: AsyncEngine
    tables: Tables
    origin: Origin

    async def save(self, lane: int, positions: dict[str, Position]) -> None:
        """Remember positions of a lane: its own as `PUBLISHED`, and those of groups by name."""
        table = self.tables.checkpoint
        statement = upsert(table)
        statement = statement.on_conflict_do_update(
            index_elements=["lane", "consumer"],
            set_={"position": statement.excluded.position, "updated_at": func.now()},
        )
        rows = [
            {"lane": lane, "consumer": consumer, "position": str(position)}
            for consumer, position in positions.items()
        ]
        async with self.engine.begin() as connection:
            await connection.execute(statement, rows)

    async def load(self, lane: int) -> dict[str, Position]:
        table = self.tables.checkpoint
        statement = select(table.c.consumer, table.c.position).where(table.c.lane == lane)
        return {row.consumer: Position.parse(row.position) for row in await self._fetch(statement)}

    async def register(self, topic: str, groups: set[str]) -> None:
        """Remember groups for ever, or until they are dropped."""
        if groups:
            rows = [{"topic": topic, "name": group} for group in sorted(groups)]
            statement = upsert(self.tables.groups).on_conflict_do_nothing()
            async with self.engine.begin() as connection:
                await connection.execute(statement, rows)

    async def groups(self) -> dict[str, set[str]]:
        """The known groups of each topic."""
        table = self.tables.groups
        found: dict[str, set[str]] = {}
        for row in await self._fetch(select(table.c.topic, table.c.name)):
            found.setdefault(row.topic, set()).add(row.name)
        return found

    async def drop_group(self, group: str) -> None:
        """Forget a group: nothing waits for it any more."""
        groups, checkpoint = self.tables.groups, self.tables.checkpoint
        async with self.engine.begin() as connection:
            await connection.execute(delete(groups).where(groups.c.name == group))
            await connection.execute(delete(checkpoint).where(checkpoint.c.consumer == group))

    async def acknowledged(self, lane: int) -> Position | None:
        """Up to where every known group has acknowledged the lane; without groups, up to where it
        is published. None if somebody has acknowledged nothing yet."""
        saved = await self.load(lane)
        known = {group for groups in (await self.groups()).values() for group in groups}
        positions = [saved.get(consumer) for consumer in known or {PUBLISHED}]
        if any(position is None for position in positions):
            return None
        return min((p for p in positions if p is not None), key=older)

    # Where a lane resumes

    async def lane(self, lane: int) -> Position:
        """Redis has forgotten the lane: where its oldest group stands. With no group to go by,
        everything that is retained is published again."""
        known = await self.groups()
        oldest = await self.acknowledged(lane) if known else None
        return self._anew(oldest)

    async def topic(self, lane: int, _: str) -> Position:
        return await self.lane(lane)

    async def fit(self, lane: int, state: LaneState) -> LaneState:
        stored = state.main.origin
        if stored.system != self.origin.system:
            raise OtherDatabase(lane, stored, self.origin)
        if stored == self.origin:
            await self._refuse_holes(lane, state)
            return state
        # A promotion. Commits that the old primary had and this one has not may have given their
        # ids and xids to others; our own checkpoint came with the WAL, and so did all before it.
        # Unless Redis, too, has lost something. A checkpoint from after the promotion tells nothing
        # of where the old primary and this one parted.
        saved = (await self.load(lane)).get(PUBLISHED)
        if saved is None or saved.origin != stored:
            return LaneState(start(self.origin))
        return LaneState(self._anew(min(saved, at_rest(state), key=older)))

    async def fell_back(self, lane: int, before: Position | None, now: Position) -> int:
        """How many events are published again by a lane that stood at `before`, or, if nobody
        remembers, at its checkpoint. Roughly: by ids."""
        before = before or (await self.load(lane)).get(PUBLISHED)
        if before is None or before.published_to <= now.published_to:
            return 0
        log = self.tables.log
        rows = select(func.count()).where(
            log.c.lane == lane, log.c.id > now.published_to, log.c.id <= before.published_to
        )
        return int((await self._fetch(rows))[0][0])

    async def _refuse_holes(self, lane: int, state: LaneState) -> None:
        """Rows that the position has yet to publish must not be pruned already. In its first window
        a lane only promises what is retained."""
        checkpoint = self.tables.checkpoint
        mine = (checkpoint.c.lane == lane, checkpoint.c.consumer == PUBLISHED)
        found = await self._fetch(select(checkpoint.c.pruned_to).where(*mine))
        pruned_to = found[0][0] if found else None
        position = at_rest(state)
        if pruned_to is not None and position.base != DAWN and position.head < pruned_to:
            raise Hole(lane, position.head, pruned_to)

    def _anew(self, position: Position | None) -> Position:
        if position is None or position.origin.system != self.origin.system:
            return start(self.origin)
        return replace(position, origin=self.origin, epoch=secrets.token_hex(4))

    async def _fetch(self, statement: Any) -> list[Any]:
        async with self.engine.connect() as connection:
            return list(await connection.execute(statement))


def at_rest(state: LaneState) -> Position:
    """The oldest of a lane's positions, without its open window: up to there, all is published."""
    position = min((state.main, *state.detached.values()), key=older)
    return replace(position, upto=None, after=0)


def older(position: Position) -> tuple[int, ...]:
    """Sorts the positions of one lane, the oldest first. Of two snapshots with the same end, the
    older one has more transactions running."""
    base = position.base.snapshot
    return base.xmax, -len(base.running), position.head, position.after
