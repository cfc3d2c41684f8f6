"""Streams as a projector fills them, without one: what the tests of consumers have in common."""

from __future__ import annotations

import json
from typing import Any
from uuid import uuid4

from redis.asyncio import Redis

from outbox import layout
from outbox.keys import lane_of


class Streams:
    """The streams of an outbox that nobody else uses."""

    def __init__(self, redis: Redis, lanes: int = 2) -> None:
        self.redis = redis
        self.name = f"t{uuid4().hex[:10]}"
        self.lanes = lanes

    async def open(self, retention: int = 3600) -> None:
        known: Any = {"lanes": self.lanes, "retention": retention}
        await self.redis.hset(layout.meta(self.name), mapping=known)

    def stream(self, key: str, topic: str = "t") -> str:
        return layout.stream(self.name, lane_of(key, self.lanes), topic)

    async def add(
        self,
        key: str,
        seq: int | None = None,
        *,
        topic: str = "t",
        type: str = "changed",
        data: Any = None,
        event_id: str | None = None,
    ) -> str:
        """An event's entry. Gives the event's id."""
        event_id = event_id or str(uuid4())
        raw = data if isinstance(data, bytes) else json.dumps(data)
        entry = {
            **{"id": event_id, "source": self.name, "type": type, "subject": key},
            **{"time": "2026-01-01T00:00:00.000000Z", "datacontenttype": "application/json"},
            "data": raw,
        }
        if seq is not None:
            entry["sequence"] = str(seq)
        await self.redis.xadd(self.stream(key, topic), entry)
        return event_id

    async def pending(self, group: str, topic: str = "t") -> int:
        """Entries that were delivered and are not acknowledged."""
        count = 0
        for lane in range(self.lanes):
            stream = layout.stream(self.name, lane, topic)
            if not await self.redis.exists(stream):
                continue
            for info in await self.redis.xinfo_groups(stream):
                if info["name"].decode() == group:
                    count += info["pending"]
        return count
