"""What Redis knows: who holds which lane, where it stands, and how its streams are doing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TypeVar

from redis.exceptions import NoPermissionError, RedisError

from outbox import layout
from projector import keys
from projector.cluster import AnyRedis
from projector.dead.census import Census, census, summed
from projector.errors import ProjectorError
from projector.lane import LaneState
from projector.sink import script
from projector.status.lag import Facts, true_lag
from projector.status.report import Group, Stream
from projector.trouble import told

T = TypeVar("T")

COUNTED = 1_000
COUNTED_BYTES = 1_000_000
"""After how many undelivered entries of a group, or bytes of them, the server stops counting."""


@dataclass(frozen=True, slots=True)
class Stored:
    """What is kept beside a lane's streams."""

    state: str = ""
    holder: str | None = None
    lease_left: timedelta | None = None
    streams: tuple[str, ...] = ()
    """The keys that a projector has published to, or could not."""
    lost: Mapping[str, int] = field(default_factory=dict)
    """Entries that were gone before a group had them, as `layout.loss` names them."""
    now: timedelta = timedelta(0)
    """The clock of the lane's server, since 1970."""
    problem: RedisError | None = None
    """Its server, one of several, does not tell."""

    def __bool__(self) -> bool:
        return bool(self.state or self.holder or self.streams)


@dataclass(frozen=True, slots=True)
class Stock:
    """One look at all lanes."""

    projectors: tuple[str, ...]
    lanes: Mapping[int, Stored]
    problem: RedisError | None = None
    """Why the projectors are not known, though lanes are."""


async def take_stock(redis: AnyRedis, name: str, lanes: Iterable[int]) -> Stock:
    """One read, and one for each lane. Raises if no server answers."""
    lanes = list(lanes)
    found = await asyncio.gather(*(_told(_stored(redis, name, lane)) for lane in lanes))
    stored = {
        lane: Stored(problem=answer) if isinstance(answer, RedisError) else answer
        for lane, answer in zip(lanes, found, strict=True)
    }
    alive = await _told(script.run(redis, "members", [keys.members(name)], []))
    if not isinstance(alive, RedisError):
        return Stock(tuple(sorted(map(script.text, alive))), stored)
    if all(lane.problem for lane in stored.values()):
        raise alive
    return Stock((), stored, alive)


async def _told(answer: Awaitable[T]) -> T | RedisError:
    try:
        return await answer
    except RedisError as problem:
        return problem


async def _stored(redis: AnyRedis, name: str, lane: int) -> Stored:
    touched = [keys.position(name, lane), keys.lease(name, lane), keys.tops(name, lane)]
    touched.append(layout.lost(name, lane))
    answer = await script.run(redis, "stock", touched, [])
    seconds, micros, state, holder, left, streams, lost = answer
    state = script.text(state)
    detached = {keys.stream(name, lane, topic) for topic in _detached(state)}
    return Stored(
        state=state,
        holder=script.text(holder) or None,
        lease_left=timedelta(milliseconds=left) if left >= 0 else None,
        streams=tuple(sorted(detached.union(map(script.text, streams)))),
        lost={script.text(k): int(v) for k, v in zip(lost[::2], lost[1::2], strict=True)},
        now=timedelta(seconds=int(seconds), microseconds=int(micros)),
    )


def _detached(state: str) -> Iterable[str]:
    try:
        return LaneState.parse(state).detached if state else ()
    except ProjectorError:
        return ()  # told where the lane's backlog is


async def look_at_streams(
    redis: AnyRedis, stock: Stock, counted: int = COUNTED
) -> tuple[Stream, ...]:
    """One script call a lane, which reads without writing and hands over no entries."""
    found = await asyncio.gather(
        *(
            _lane(redis, lane, stored.streams, stored, counted)
            for lane, stored in stock.lanes.items()
        )
    )
    return tuple(stream for streams in found for stream in streams)


async def _lane(
    redis: AnyRedis, lane: int, names: tuple[str, ...], stored: Stored, counted: int
) -> list[Stream]:
    if not names:
        return []
    try:
        reply = await script.run(redis, "inspect", names, (counted, COUNTED_BYTES))
    except NoPermissionError as problem:
        if len(names) == 1:
            return [stream_of(names[0], lane, {"problem": told(problem)}, stored)]
        each = [await _lane(redis, lane, (key,), stored, counted) for key in names]
        return [stream for streams in each for stream in streams]
    # A group's name may be any bytes.
    text = reply.decode(errors="replace") if isinstance(reply, bytes) else reply
    found = zip(names, json.loads(text), strict=True)
    return [stream_of(key, lane, facts, stored) for key, facts in found]


async def count_letters(
    redis: AnyRedis, name: str, streams: Iterable[Stream]
) -> tuple[Census, ...]:
    """Of every group that reads a stream, over all lanes. One script call a lane."""
    groups: dict[int, set[str]] = {}
    for stream in streams:
        groups.setdefault(stream.lane, set()).update(group.name for group in stream.groups)
    found = await asyncio.gather(
        *(_told(census(redis, name, lane, sorted(names))) for lane, names in groups.items())
    )
    return summed(
        each for counted in found if not isinstance(counted, RedisError) for each in counted
    )


def stream_of(key: str, lane: int, facts: Facts, stored: Stored) -> Stream:
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
        last_age=_age(facts["last"], stored.now),
        groups=tuple(_group(topic, facts, group, stored) for group in facts["groups"]),
    )


def _group(topic: str, stream: Facts, group: Facts, stored: Stored) -> Group:
    now = stored.now
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
        lost=sum(
            stored.lost.get(layout.loss(why, topic, group["name"]), 0)
            for why in ("unread", "pending")
        ),
    )


def _age(entry_id: str, now: timedelta) -> timedelta:
    return max(now - timedelta(milliseconds=int(entry_id.partition("-")[0])), timedelta(0))
