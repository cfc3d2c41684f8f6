"""Notices entries that were trimmed or deleted before a group had them.

By us never; but a cap does it, and so may anybody with a client. Redis says nothing, and the
group's `lag` then lies. What can be told: a group's next entry that we saw is gone, and the group
has not come so far; more were removed than the group ever read; an entry is pending, and gone. What
a group loses and passes between two looks goes unnoticed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from outbox import layout
from projector.cluster import AnyRedis
from projector.janitor.look import GroupLook, StreamLook
from projector.progress import stream_id
from projector.sink import script
from projector.telemetry import Telemetry

log = logging.getLogger("projector.janitor")


def missing(stream: StreamLook, group: GroupLook) -> int | None:
    """How many entries were removed before the group read them, ever, by the server's counters.
    None if they cannot tell."""
    delivered = stream_id(group.state.last_delivered)
    if stream.added is None or group.read is None:
        return None
    if delivered < stream_id(stream.deleted):
        return None  # maybe a batch that was taken back at once, which nobody could have read
    if stream.first is None or delivered < stream_id(stream.first):
        return max(stream.added - stream.length - group.read, 0)
    if delivered >= stream_id(stream.last):
        return max(stream.added - group.read, 0)
    return None


def skipped(before: GroupLook, now: GroupLook) -> bool:
    """The entry that was the group's next is gone, and the group has not come so far."""
    delivered = stream_id(now.state.last_delivered)
    if before.following is None or delivered >= stream_id(before.following):
        return False
    if delivered < stream_id(before.state.last_delivered):
        return False  # it starts over, by hand or on a new stream
    return now.following is None or stream_id(now.following) > stream_id(before.following)


@dataclass(slots=True)
class Losses:
    """Reports each loss once, also across projectors: what is reported is counted in Redis."""

    redis: AnyRedis
    name: str
    telemetry: Telemetry = field(default_factory=Telemetry)
    _before: dict[int, dict[str, StreamLook]] = field(default_factory=dict)

    async def look(self, lane: int, streams: Sequence[StreamLook]) -> None:
        told = await self._reported(lane)
        for stream in streams:
            before = self._earlier(lane, stream)
            for name, group in stream.groups.items():
                last = before.groups.get(name) if before else None
                reported = told.get(layout.loss("unread", stream.topic, name), 0)
                at_least = int(last is not None and skipped(last, group))
                count = max(_more(missing(stream, group), reported), at_least)
                await self._report(lane, stream.topic, name, "unread", count)
                fresh = group.gone - (last.gone if last else frozenset())
                await self._report(lane, stream.topic, name, "pending", len(fresh))
        self._before[lane] = {stream.topic: stream for stream in streams}

    async def gone(self, lane: int, topic: str, group: str, ids: Iterable[str]) -> None:
        """Pending entries were found to be gone. Unless the last look has found that already."""
        before = self._before.get(lane, {}).get(topic)
        last = before.groups.get(group) if before else None
        fresh = set(ids) - (last.gone if last else frozenset())
        await self._report(lane, topic, group, "pending", len(fresh))

    def _earlier(self, lane: int, stream: StreamLook) -> StreamLook | None:
        """The same stream, and not one of which only the name is the same."""
        before = self._before.get(lane, {}).get(stream.topic)
        anew = before and (stream.added or 0) < (before.added or 0)
        return None if anew else before

    async def _reported(self, lane: int) -> Mapping[str, int]:
        found: Any = await self.redis.hgetall(layout.lost(self.name, lane))
        return {script.text(field): int(count) for field, count in found.items()}

    async def _report(
        self, lane: int, topic: str, group: str, why: Literal["unread", "pending"], count: int
    ) -> None:
        if not count:
            return
        await self.redis.hincrby(
            layout.lost(self.name, lane), layout.loss(why, topic, group), count
        )
        self.telemetry.lost(lane, topic, group, why, count)
        log.error(
            "entries were removed from a stream before a group had handled them",
            extra={"lane": lane, "topic": topic, "group": group, "events": count, "they_were": why},
        )


def _more(found: int | None, reported: int) -> int:
    return max(0 if found is None else found - reported, 0)
