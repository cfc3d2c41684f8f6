"""Removes from the streams what every group has acknowledged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from redis.exceptions import NoPermissionError

from outbox import layout
from projector.cluster import AnyRedis
from projector.sink import script
from projector.telemetry import Telemetry

AT_ONCE = 10_000
"""Entries that one script removes, about: it is over in a millisecond. Not fewer than fit into one
node of a stream (100, unless the server is told otherwise), or nothing would ever go."""
STEPS = 100
"""Scripts in a row, before other chores have their turn."""


@dataclass(frozen=True, slots=True)
class Trimmer:
    """Never removes what a group has yet to read or to acknowledge."""

    redis: AnyRedis
    name: str
    telemetry: Telemetry = field(default_factory=Telemetry)

    async def trim(self, lane: int, topics: Sequence[str], known: Mapping[str, Set[str]]) -> int:
        """How many entries were removed. `known`: groups that must be on a topic's stream; where
        one is missing, it may have lost its place, and everything stays."""
        total = 0
        for _ in range(STEPS):
            removed = await self._step(lane, topics, known)
            total += removed
            if removed < AT_ONCE // 2:
                break
        return total

    async def _step(self, lane: int, topics: Sequence[str], known: Mapping[str, Set[str]]) -> int:
        if not topics:
            return 0
        streams = [layout.stream(self.name, lane, topic) for topic in topics]
        arguments: list[Any] = [AT_ONCE]
        for topic in topics:
            groups = sorted(known.get(topic, ()))
            arguments += (len(groups), *groups)
        try:
            removed = await script.run(self.redis, "trim", streams, arguments)
        except NoPermissionError:
            # For one key of many the server refuses the whole script; the others are still ours.
            if len(topics) == 1:
                return 0
            return sum([await self._step(lane, [topic], known) for topic in topics])
        for topic, count in zip(topics, removed, strict=True):
            if count:
                self.telemetry.trimmed(lane, topic, count)
        return sum(removed)
