"""Consumer groups on the stream of one lane, read with a plain client, and their caretakers."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import uuid4

from outbox import layout
from projector.janitor.look import StreamLook, look_at
from projector.janitor.loss import Losses
from projector.janitor.recovery import Recovery
from projector.janitor.trim import Trimmer
from projector.telemetry import Telemetry
from projector.topology import Topic

LANE = 0
TOPIC = "t"
AT_ONCE = timedelta(0)


def entries_of(read: Any) -> list[tuple[bytes, dict[bytes, bytes]]]:
    """Of one stream, in any of the shapes that XREADGROUP's answer has."""
    found = next(iter(read.values()))[0] if isinstance(read, dict) and read else read
    return found[0][1] if isinstance(read, list) and read else found or []


class Groups:
    def __init__(self, redis: Any) -> None:
        self.redis = redis
        self.name = f"t{uuid4().hex[:10]}"
        self.stream = layout.stream(self.name, LANE, TOPIC)
        self.telemetry = Telemetry()
        self.telemetry.holds({LANE})
        self.losses = Losses(redis, self.name, self.telemetry)
        self.topology = {TOPIC: Topic(recover=("plain",))}

    # What consumers do

    async def create(self, *names: str) -> None:
        for name in names:
            await self.redis.xgroup_create(self.stream, name, "0", mkstream=True)

    async def add(self, count: int) -> list[str]:
        """In one go, so that there may be many in a millisecond."""
        pipe = self.redis.pipeline(transaction=True)
        for _ in range(count):
            pipe.xadd(self.stream, {"n": 1})  # small: 100 fit into a node
        return [entry.decode() for entry in await pipe.execute()]

    async def read(self, group: str, count: int, consumer: str = "c", id: str = ">") -> list[str]:
        read = await self.redis.xreadgroup(group, consumer, {self.stream: id}, count=count)
        return [entry.decode() for entry, _ in entries_of(read)]

    async def acknowledge(self, group: str, ids: list[str]) -> None:
        if ids:
            await self.redis.xack(self.stream, group, *ids)

    async def greet(self, group: str, consumer: str) -> None:
        """The consumer has an entry, and is done with it: before 7.2 Redis knows it from then on,
        and not from its first read."""
        await self.add(1)
        await self.acknowledge(group, await self.read(group, 1, consumer))

    async def live(self, group: str, *consumers: str) -> None:
        """As our own consumers say it."""
        members = layout.members(self.name, group)
        await self.redis.zadd(members, dict.fromkeys(consumers, 9e15))

    # What is there

    async def left(self) -> list[str]:
        return [entry[0].decode() for entry in await self.redis.xrange(self.stream)]

    async def pending(self, group: str) -> dict[str, str]:
        """Whose the pending entries are."""
        found = await self.redis.xpending_range(self.stream, group, "-", "+", 1000)
        return {entry["message_id"].decode(): entry["consumer"].decode() for entry in found}

    async def delivered(self, group: str) -> str:
        (info,) = [
            info
            for info in await self.redis.xinfo_groups(self.stream)
            if info["name"].decode() == group
        ]
        return info["last-delivered-id"].decode()

    async def consumers(self, group: str) -> set[str]:
        found = await self.redis.xinfo_consumers(self.stream, group)
        return {consumer["name"].decode() for consumer in found}

    def problems(self) -> list[str]:
        return [problem.detail for problem in self.telemetry.health().problems]

    # What the janitor does

    async def look(self) -> list[StreamLook]:
        looks = await look_at(self.redis, self.name, LANE, [self.stream], AT_ONCE)
        await self.losses.look(LANE, looks)
        return looks

    async def trim(self, *known: str) -> int:
        trimmer = Trimmer(self.redis, self.name, self.telemetry)
        return await trimmer.trim(LANE, [TOPIC], {TOPIC: set(known)})

    async def recover(self, idle: timedelta = AT_ONCE) -> int:
        recovery = Recovery(self.redis, self.name, self.losses, self.telemetry, self.topology, idle)
        return await recovery.recover(LANE, await self.look())
