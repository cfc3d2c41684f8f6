"""Removes consumers that are gone and have nothing pending: a process that restarts under a new
name leaves one behind each time."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from outbox import layout
from projector.cluster import AnyRedis
from projector.janitor.look import milliseconds
from projector.sink import script

log = logging.getLogger("projector.janitor")


@dataclass(frozen=True, slots=True)
class Departed:
    """`idle`: how long a consumer must not have been seen. One that waits in a single long read is
    not seen either; it does not notice that it is removed, and made anew by its next entry."""

    redis: AnyRedis
    idle: timedelta

    async def remove(self, lane: int, streams: Sequence[str]) -> int:
        """How many were removed."""
        if not streams:
            return 0
        arguments = [milliseconds(self.idle), layout.LANE_CONSUMER]
        removed: int = sum(await script.run(self.redis, "remove_consumers", streams, arguments))
        if removed:
            log.info("consumers that are gone were removed", extra={"lane": lane, "count": removed})
        return removed
