"""The status as aligned text for people."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta

from projector.status.report import Backlog, Group, Holder, Lane, Status, Stream

NOTHING = "-"
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
    yield from _table(
        ("LANE", "HELD BY", "LEASE", "BACKLOG", "LATE", "OLDEST", "POSITION", ""),
        [_lane(lane) for lane in status.lanes],
    )
    yield from _table(
        ("DETACHED TOPIC", "LANE", "BACKLOG", "OLDEST", "POSITION"),
        [
            (topic.topic, str(lane.lane), *_backlog(topic.backlog), _time(topic.position_age))
            for lane in status.lanes
            for topic in lane.detached
        ],
    )
    if status.paused:
        yield f"\npaused by hand: {', '.join(status.paused)}"
    yield from _table(
        ("REJECTED EVENT", "LANE", "TOPIC", "TYPE", "KEY", "SIZE", "CAUSE"),
        [
            (str(r.event_id), str(r.lane), r.topic, r.type, r.key, _size(r.size), r.cause)
            for r in status.rejected
        ],
    )
    yield from _table(
        ("STREAM", "LENGTH", "MEMORY", "LAST ID", "ADDED", ""),
        [_stream(stream) for stream in status.streams],
    )
    yield from _table(
        ("GROUP", "STREAM", "LAG", "PENDING", "OLDEST PENDING", "IDLE", "CONSUMERS", "LOST"),
        [_group(stream, group) for stream in status.streams for group in stream.groups],
    )
    yield from _table(
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
        _time(lane.lease_left),
        count,
        f"{late:,}" if late else NOTHING,
        oldest,
        _time(lane.position_age),
        lane.problem or note,
    )


def _backlog(backlog: Backlog | None) -> tuple[str, str]:
    """How many, and how old the oldest is."""
    if backlog is None:
        return "?", "?"
    return f"{'' if backlog.exact else '~'}{backlog.events:,}", _time(backlog.oldest_age)


def _stream(stream: Stream) -> Sequence[str]:
    if stream.problem:
        return (stream.key, *[NOTHING] * 4, stream.problem)
    return (
        stream.key,
        f"{stream.length:,}",
        _size(stream.memory),
        stream.last_id or NOTHING,
        _time(stream.last_age),
        "" if stream.groups else "no group reads it",
    )


def _group(stream: Stream, group: Group) -> Sequence[str]:
    return (
        group.name,
        stream.key,
        f"{'' if group.lag_exact else '~'}{group.lag:,}",
        f"{group.pending:,}",
        _time(group.oldest_pending_age),
        _time(group.oldest_pending_idle),
        str(group.consumers),
        f"{group.lost:,}" if group.lost else NOTHING,
    )


def _holder(holder: Holder) -> Sequence[str]:
    return (
        f"{holder.kind} {holder.name or ''}".strip(),
        NOTHING if holder.pid is None else str(holder.pid),
        _time(holder.age),
        NOTHING if holder.xids is None else f"{holder.xids:,}",
        holder.state or NOTHING,
        holder.query or "",
    )


def _table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Nothing at all without rows."""
    lines = [titles, *(tuple(map(_printable, row)) for row in rows)]
    if len(lines) == 1:
        return
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    yield ""
    for line in lines:
        yield "  ".join(f"{cell:{w}}" for cell, w in zip(line, widths, strict=True)).rstrip()


def _printable(cell: str) -> str:
    """A query or a name must not move the cursor."""
    return "".join(letter if letter.isprintable() else "�" for letter in cell)


def _time(value: timedelta | None) -> str:
    if value is None:
        return NOTHING
    seconds = max(value.total_seconds(), 0)
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, hours = int(seconds // 60), int(seconds // 3600)
    if hours == 0:
        return f"{minutes} m {int(seconds % 60)} s"
    return f"{hours} h {minutes % 60} m" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def _size(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
