"""What Redis knows: who holds which lane, where it stands, and how its streams are doing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from redis.asyncio import Redis

from projector import keys
from projector.errors import ProjectorError
from projector.lane import LaneState
from projector.sink import script
from projector.status.lag import Facts, true_lag
from projector.status.report import Group, Stream

COUNTED = 1_000
COUNTED_BYTES = 1_000_000
"""After how many undelivered entries of a group, or bytes of them, the server stops counting."""


@dataclass(frozen=True, slots=True)
class Stored:
    """What is kept beside a lane's streams."""

    state: str
    holder: str | None
    lease_left: timedelta | None
    streams: tuple[str, ...]
    """The keys that a projector has published to, or could not."""

    def __bool__(self) -> bool:
        return bool(self.state or self.holder or self.streams)


@dataclass(frozen=True, slots=True)
class Stock:
    """One look at all lanes."""

    now: timedelta
    """The server's clock, since 1970."""
    projectors: tuple[str, ...]
    lanes: Mapping[int, Stored]


async def take_stock(redis: Redis, name: str, lanes: Iterable[int]) -> Stock:
    """Two reads in one trip, and four for each lane."""
    lanes = list(lanes)
    async with redis.pipeline(transaction=False) as pipe:
        pipe.time()
        pipe.zrange(keys.members(name), 0, -1, withscores=True)
        for lane in lanes:
            pipe.get(keys.position(name, lane))
            pipe.get(keys.lease(name, lane))
            pipe.pttl(keys.lease(name, lane))
            pipe.hkeys(keys.tops(name, lane))
        (seconds, micros), members, *replies = await pipe.execute()
    now = timedelta(seconds=int(seconds), microseconds=int(micros))
    alive = [script.text(token) for token, until in members if until / 1000 > now.total_seconds()]
    stored = {
        lane: _stored(name, lane, *replies[4 * number : 4 * number + 4])
        for number, lane in enumerate(lanes)
    }
    return Stock(now, tuple(sorted(alive)), stored)


def _stored(
    name: str, lane: int, state: Any, holder: Any, left: int, streams: Iterable[Any]
) -> Stored:
    state = script.text(state or "")
    detached = {keys.stream(name, lane, topic) for topic in _detached(state)}
    return Stored(
        state=state,
        holder=script.text(holder) if holder else None,
        lease_left=timedelta(milliseconds=left) if left >= 0 else None,
        streams=tuple(sorted(detached.union(map(script.text, streams)))),
    )


def _detached(state: str) -> Iterable[str]:
    try:
        return LaneState.parse(state).detached if state else ()
    except ProjectorError:
        return ()  # told where the lane's backlog is


async def look_at_streams(redis: Redis, stock: Stock, counted: int = COUNTED) -> tuple[Stream, ...]:
    """One script call a lane, which reads without writing and hands over no entries."""
    found = await asyncio.gather(
        *(
            _lane(redis, lane, stored.streams, stock.now, counted)
            for lane, stored in stock.lanes.items()
        )
    )
    return tuple(stream for streams in found for stream in streams)


async def _lane(
    redis: Redis, lane: int, names: tuple[str, ...], now: timedelta, counted: int
) -> list[Stream]:
    if not names:
        return []
    reply = await script.run(redis, "inspect", names, (counted, COUNTED_BYTES))
    # A group's name may be any bytes.
    text = reply.decode(errors="replace") if isinstance(reply, bytes) else reply
    found = zip(names, json.loads(text), strict=True)
    return [stream_of(key, lane, facts, now) for key, facts in found]


def stream_of(key: str, lane: int, facts: Facts, now: timedelta) -> Stream:
    topic = key.partition("}:")[2]
    if problem := facts.get("problem"):
        return Stream(key, lane, topic, problem=problem)
    if facts["kind"] != "stream":
        none = facts["kind"] == "none"
        problem = "there is no such stream" if none else f"its key holds a {facts['kind']}"
        return Stream(key, lane, topic, problem=problem)
    return Stream(
        key=key,
        lane=lane,
        topic=topic,
        length=facts["length"],
        memory=facts["memory"],
        last_id=facts["last"],
        last_age=_age(facts["last"], now),
        groups=tuple(_group(facts, group, now) for group in facts["groups"]),
    )


def _group(stream: Facts, group: Facts, now: timedelta) -> Group:
    lag, exact = true_lag(stream, group)
    oldest: str | None = group.get("oldest")
    return Group(
        name=group["name"],
        consumers=group["consumers"],
        lag=lag,
        lag_exact=exact,
        pending=group["pending"],
        oldest_pending=oldest,
        oldest_pending_age=_age(oldest, now) if oldest else None,
        oldest_pending_idle=timedelta(milliseconds=group["idle"]) if oldest else None,
    )


def _age(entry_id: str, now: timedelta) -> timedelta:
    return max(now - timedelta(milliseconds=int(entry_id.partition("-")[0])), timedelta(0))
