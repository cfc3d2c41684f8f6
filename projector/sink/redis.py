"""Publishes batches to Redis Streams: entries and the lane's state in one script."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from hashlib import sha1
from importlib import resources
from typing import Any

import hiredis
from redis.asyncio import Redis
from redis.exceptions import NoScriptError

from projector import keys
from projector.sink.outcome import Blocked, Moved, Outcome, Published
from projector.source.batch import Row

HIGH_WATER = 1_000_000


@dataclass(frozen=True, slots=True)
class Stream:
    """How a topic's streams are kept."""

    groups: Sequence[str] = ()
    """Created at 0 together with the stream."""
    maxlen: int = 0
    """Trim to this length; 0 never trims."""
    approximate: bool = True
    high_water: int = HIGH_WATER
    """Take no more entries at this length; 0 for no limit."""

    def arguments(self) -> list[str | int]:
        how = "~" if self.approximate else "="
        return [self.high_water, self.maxlen, how, len(self.groups), *self.groups]


PLAIN = Stream()


@dataclass(frozen=True, slots=True)
class RedisSink:
    """Streams and state of one outbox. `redis` must not retry by itself: a resent batch would be
    refused by the compare, and the answer to the first be lost."""

    redis: Redis
    name: str
    topology: Mapping[str, Stream] = field(default_factory=dict)

    async def state(self, lane: int) -> str:
        """The lane's stored state; empty if there is none."""
        stored: bytes | str | None = await self.redis.get(keys.position(self.name, lane))
        return _text(stored or b"")

    async def publish(self, lane: int, expected: str, new: str, rows: Sequence[Row]) -> Outcome:
        """All rows and the new state, or nothing. An error leaves the outcome unknown: read the
        state back."""
        topics = list(dict.fromkeys(row.topic for row in rows))
        streams = [keys.stream(self.name, lane, topic) for topic in topics]
        fixed = [keys.position(self.name, lane), keys.tops(self.name, lane)]
        arguments: list[Any] = [len(fixed) + len(streams), *fixed, *streams, expected, new]
        for topic in topics:
            arguments += self.topology.get(topic, PLAIN).arguments()
        arguments += _entries(self.name, rows, {topic: n for n, topic in enumerate(topics, 1)})
        reply = await self._script("publish", arguments)
        return _outcome(reply, topics)

    async def _script(self, name: str, arguments: Sequence[Any]) -> Any:
        """On one connection, packed once: redis-py's own packing costs more than the script."""
        source, digest = script(name)
        pool: Any = self.redis.connection_pool  # partly untyped in redis-py
        connection = await pool.get_connection()
        try:
            try:
                return await _call(connection, ["EVALSHA", digest, *arguments])
            except NoScriptError:  # it did not run
                return await _call(connection, ["EVAL", source, *arguments])
        except BaseException:
            await connection.disconnect(nowait=True)  # an answer may yet come; nobody must read it
            raise
        finally:
            await pool.release(connection)


@cache
def script(name: str) -> tuple[str, str]:
    """A script's text and digest."""
    source = (resources.files("projector.sink") / "lua" / f"{name}.lua").read_text("utf-8")
    return source, sha1(source.encode(), usedforsecurity=False).hexdigest()


async def _call(connection: Any, command: Sequence[Any]) -> Any:
    await connection.send_packed_command(hiredis.pack_command(tuple(command)))
    return await connection.read_response()


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
    match _text(reply[0]):
        case "ok":
            return Published(tuple(map(_text, reply[1:])))
        case "moved":
            return Moved(_text(reply[1]))
        case _:
            return Blocked(topics[int(reply[1]) - 1], _text(reply[2]), _text(reply[3]))


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
