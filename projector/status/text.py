"""The status as aligned text for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import timedelta

from projector.dead.census import Census
from projector.status.report import Backlog, Group, Holder, Lane, Status, Stream
from projector.table import NOTHING, size, table, time

LONG = timedelta(seconds=1)
"""Younger transactions come and go; they are no news."""


def render(status: Status) -> str:
    return "\n".join(_sections(status)) + "\n"


def _sections(status: Status) -> Iterator[str]:
    alive = ", ".join(status.projectors) or "none alive"
    yield f"outbox      {status.name}, {status.at:%Y-%m-%d %H:%M:%S} UTC"
    yield f"database    {status.database_problem or 'ok'}"
    yield f"redis       {status.redis_problem or 'ok'}"
    yield f"projectors  {'unknown' if status.redis_problem else alive}"
    yield from table(
        ("LANE", "HELD BY", "LEASE", "BACKLOG", "LATE", "OLDEST", "POSITION", ""),
        [_lane(lane) for lane in status.lanes],
    )
    yield from table(
        ("DETACHED TOPIC", "LANE", "BACKLOG", "OLDEST", "POSITION"),
        [
            (topic.topic, str(lane.lane), *_backlog(topic.backlog), time(topic.position_age))
            for lane in status.lanes
            for topic in lane.detached
        ],
    )
    if status.paused:
        yield f"\npaused by hand: {', '.join(status.paused)}"
    yield from table(
        ("REJECTED EVENT", "LANE", "TOPIC", "TYPE", "KEY", "SIZE", "CAUSE"),
        [
            (str(r.event_id), str(r.lane), r.topic, r.type, r.key, size(r.size), r.cause)
            for r in status.rejected
        ],
    )
    yield from table(
        ("STREAM", "LENGTH", "MEMORY", "LAST ID", "ADDED", ""),
        [_stream(stream) for stream in status.streams],
    )
    yield from table(
        ("GROUP", "STREAM", "LAG", "PENDING", "OLDEST PENDING", "IDLE", "CONSUMERS", "LOST"),
        [_group(stream, group) for stream in status.streams for group in stream.groups],
    )
    yield from table(
        ("GROUP", "DEAD LETTERS", "WAITING BEHIND", "PARKED KEYS", "OLDEST"),
        [_letters(each) for each in status.letters if each.dead or each.waiting],
    )
    yield from table(
        ("HOLDS THE HORIZON", "PID", "AGE", "XIDS", "STATE", "QUERY"),
        [_holder(h) for h in status.horizon if h.age is None or h.age >= LONG],
    )


def _lane(lane: Lane) -> Sequence[str]:
    count, oldest = _backlog(lane.backlog)
    late = lane.backlog.late if lane.backlog else 0
    note = "" if lane.published or lane.backlog is None else "no position yet"
    return (
        str(lane.lane),
        lane.holder or NOTHING,
        time(lane.lease_left),
        count,
        f"{late:,}" if late else NOTHING,
        oldest,
        time(lane.position_age),
        lane.problem or note,
    )


def _backlog(backlog: Backlog | None) -> tuple[str, str]:
    """How many, and how old the oldest is."""
    if backlog is None:
        return "?", "?"
    return f"{'' if backlog.exact else '~'}{backlog.events:,}", time(backlog.oldest_age)


def _stream(stream: Stream) -> Sequence[str]:
    if stream.problem:
        return (stream.key, *[NOTHING] * 4, stream.problem)
    return (
        stream.key,
        f"{stream.length:,}",
        size(stream.memory),
        stream.last_id or NOTHING,
        time(stream.last_age),
        "" if stream.groups else "no group reads it",
    )


def _group(stream: Stream, group: Group) -> Sequence[str]:
    return (
        group.name,
        stream.key,
        f"{'' if group.lag_exact else '~'}{group.lag:,}",
        f"{group.pending:,}",
        time(group.oldest_pending_age),
        time(group.oldest_pending_idle),
        str(group.consumers),
        f"{group.lost:,}" if group.lost else NOTHING,
    )


def _letters(found: Census) -> Sequence[str]:
    counts = (f"{count:,}" for count in (found.dead, found.waiting, found.parked))
    return (found.group, *counts, time(found.oldest_age))


def _holder(holder: Holder) -> Sequence[str]:
    return (
        f"{holder.kind} {holder.name or ''}".strip(),
        NOTHING if holder.pid is None else str(holder.pid),
        time(holder.age),
        NOTHING if holder.xids is None else f"{holder.xids:,}",
        holder.state or NOTHING,
        holder.query or "",
    )
