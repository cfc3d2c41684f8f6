"""Publishes batches to Redis Streams: entries and the lane's state in one script."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from redis.asyncio import Redis

from projector import keys
from projector.sink import script
from projector.sink.outcome import Blocked, Moved, Outcome, Published
from projector.source.batch import Row
from projector.topology import PLAIN, Topology


@dataclass(slots=True)
class RedisSink:
    """Streams and state of one outbox. `redis` must not retry by itself: a resent batch would be
    refused by the compare, and the answer to the first be lost."""

    redis: Redis
    name: str
    topology: Topology = field(default_factory=dict)
    """May be replaced at any time; it holds from the next batch on."""

    async def state(self, lane: int) -> str:
        """The lane's stored state; empty if there is none."""
        stored: bytes | str | None = await self.redis.get(keys.position(self.name, lane))
        return script.text(stored or b"")

    async def drop_group(self, lane: int, topic: str, group: str) -> bool:
        """Whether the topic's stream had the group."""
        stream = keys.stream(self.name, lane, topic)
        if not await self.redis.exists(stream):
            return False
        return bool(await self.redis.xgroup_destroy(stream, group))

    async def tell(self, lanes: int, retention: timedelta) -> None:
        """What consumers need to know of the outbox."""
        known: Any = {"lanes": lanes, "retention": int(retention.total_seconds())}
        await self.redis.hset(keys.meta(self.name), mapping=known)

    async def create_groups(self, lane: int) -> None:
        """Those of the topology, at 0, on the streams that exist. The others are made together with
        their streams."""
        wanted = {topic: kept.groups for topic, kept in self.topology.items() if kept.groups}
        if not wanted:
            return
        streams = [keys.stream(self.name, lane, topic) for topic in wanted]
        arguments = [item for groups in wanted.values() for item in (len(groups), *groups)]
        await script.run(self.redis, "create_groups", streams, arguments)

    async def publish(
        self, lane: int, expected: str, new: str, rows: Sequence[Row], lost: str | None = None
    ) -> Outcome:
        """All rows and the new state, or nothing. An error leaves the outcome unknown: read the
        state back. `lost` is a topic whose stream is gone, and may be made anew from now on."""
        topics = list(dict.fromkeys(row.topic for row in rows))
        streams = [keys.stream(self.name, lane, topic) for topic in topics]
        touched = [keys.position(self.name, lane), keys.tops(self.name, lane), *streams]
        forget = "" if lost is None else keys.stream(self.name, lane, lost)
        arguments: list[Any] = [expected, new, forget]
        for topic in topics:
            kept = self.topology.get(topic, PLAIN)
            arguments += (*kept.limits(), len(kept.groups), *kept.groups)
        arguments += _entries(self.name, rows, {topic: n for n, topic in enumerate(topics, 1)})
        return _outcome(await script.run(self.redis, "publish", touched, arguments), topics)


def _entries(name: str, rows: Iterable[Row], numbers: Mapping[str, int]) -> list[Any]:
    arguments: list[Any] = []
    for row in rows:
        fields = [
            *("id", row.event_id, "source", name, "type", row.type, "subject", row.key),
            *("time", row.time, "datacontenttype", row.content_type, "data", row.data),
        ]
        if row.seq is not None:
            fields += ("sequence", str(row.seq))
        for header in ("traceparent", "tracestate", "tenant", "headers"):
            value = getattr(row, header)
            if value is not None:
                fields += (header, value)
        arguments += (numbers[row.topic], len(fields), *fields)
    return arguments


def _outcome(reply: Sequence[Any], topics: Sequence[str]) -> Outcome:
    match script.text(reply[0]):
        case "ok":
            return Published(tuple(map(script.text, reply[1:])))
        case "moved":
            return Moved(script.text(reply[1]))
        case _:
            return Blocked(topics[int(reply[1]) - 1], script.text(reply[2]), script.text(reply[3]))
