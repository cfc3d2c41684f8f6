"""Publishes batches to Redis Streams: entries and the lane's state in one script."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from redis.exceptions import NoPermissionError

from projector import keys
from projector.cluster import AnyRedis
from projector.sink import script
from projector.sink.outcome import Blocked, Moved, Outcome, Published
from projector.source.batch import Row
from projector.topology import PLAIN, Topology


@dataclass(slots=True)
class RedisSink:
    """Streams and state of one outbox. `redis` must not retry by itself: a resent batch would be
    refused by the compare, and the answer to the first be lost."""

    redis: AnyRedis
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
        if script.text(await self.redis.type(stream)) != "stream":
            return False
        return bool(await self.redis.xgroup_destroy(stream, group))

    async def tell(self, lanes: int, retention: timedelta) -> None:
        """What consumers need to know of the outbox."""
        known: Any = {"lanes": lanes, "retention": int(retention.total_seconds())}
        await self.redis.hset(keys.meta(self.name), mapping=known)

    async def create_groups(self, lane: int) -> None:
        """Those of the topology, at 0, on the streams that exist. The others are made together with
        their streams."""
        for topic, kept in self.topology.items():
            if kept.groups:
                stream = keys.stream(self.name, lane, topic)
                arguments = [len(kept.groups), *kept.groups]
                with suppress(NoPermissionError):  # told when there is something to publish
                    await script.run(self.redis, "create_groups", [stream], arguments)

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
        try:
            return _outcome(await script.run(self.redis, "publish", touched, arguments), topics)
        except NoPermissionError as problem:
            # For one key of many the server refuses the whole script, before it runs, and does not
            # say which. Without the lane's own keys, no topic is to blame.
            if await self._permitted(*touched[:2]):
                for topic, stream in zip(topics, streams, strict=True):
                    if not await self._permitted(stream):
                        return Blocked(topic, "refused", str(problem))
            raise

    async def _permitted(self, *keys: str) -> bool:
        try:
            await script.run(self.redis, "touch", keys, [])
        except NoPermissionError:
            return False
        return True


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
