"""What `projector status` found. Pure data, with a form for machines."""

from __future__ import annotations

from dataclasses import dataclass, fields, is_dataclass
from datetime import datetime, timedelta
from typing import Any
from uuid import UUID

from projector.dead.census import Census
from projector.rejected import SetAside


@dataclass(frozen=True, slots=True)
class Backlog:
    """Events that are committed and not yet published."""

    events: int
    exact: bool
    """Else it is an estimate, from the rows that come next."""
    late: int = 0
    """How many of them committed after events with higher ids had gone out."""
    oldest_age: timedelta | None = None


@dataclass(frozen=True, slots=True)
class Detached:
    """A topic that its lane goes on without."""

    topic: str
    backlog: Backlog | None
    position_age: timedelta | None


@dataclass(frozen=True, slots=True)
class Lane:
    lane: int
    holder: str | None = None
    """Host, process and token of the projector that holds the lease."""
    lease_left: timedelta | None = None
    published: bool = False
    """Redis knows a position. Without one, the backlog is everything that is retained."""
    position_age: timedelta | None = None
    """Of the newest event at the position. None if nothing was published or the row is pruned."""
    backlog: Backlog | None = None
    detached: tuple[Detached, ...] = ()
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Group:
    name: str
    consumers: int
    lag: int
    """Entries in the stream that were not delivered to the group yet."""
    lag_exact: bool
    pending: int
    """Entries that were delivered and are not acknowledged."""
    oldest_pending: str | None = None
    """The lowest id among those."""
    oldest_pending_age: timedelta | None = None
    """Since it entered the stream."""
    oldest_pending_idle: timedelta | None = None
    """Since it was last delivered."""
    lost: int = 0
    """Entries that were removed from the stream before the group had them, if it was noticed."""


@dataclass(frozen=True, slots=True)
class Stream:
    key: str
    lane: int
    topic: str
    length: int = 0
    memory: int = 0
    """Bytes, as MEMORY USAGE estimates them."""
    last_id: str | None = None
    last_age: timedelta | None = None
    """Since the last entry was added."""
    groups: tuple[Group, ...] = ()
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class Holder:
    """Something that holds the database's horizon back."""

    kind: str
    """session, prepared (transaction) or slot."""
    pid: int | None
    name: str | None
    """The session's application, the prepared transaction's or the slot's name."""
    state: str | None
    query: str | None
    """Its first 80 characters."""
    age: timedelta | None
    """Of the transaction."""
    xids: int | None
    """How many transactions have begun since."""


@dataclass(frozen=True, slots=True)
class Status:
    name: str
    at: datetime
    database_problem: str | None
    redis_problem: str | None
    projectors: tuple[str, ...]
    """Those that are alive."""
    lanes: tuple[Lane, ...]
    streams: tuple[Stream, ...]
    horizon: tuple[Holder, ...]
    rejected: tuple[SetAside, ...] = ()
    """Rows that were set aside, the newest first."""
    paused: tuple[str, ...] = ()
    """Topics that are held back by hand."""
    letters: tuple[Census, ...] = ()
    """The dead letters of each group, over all lanes."""


def plain(value: Any) -> Any:
    """Ready for JSON. Durations are seconds, and their names say so."""
    if is_dataclass(value):
        found: dict[str, Any] = {}
        for field in fields(value):
            content = getattr(value, field.name)
            timed = "timedelta" in str(field.type)
            found[f"{field.name}_seconds" if timed else field.name] = plain(content)
        return found
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    if isinstance(value, timedelta):
        return round(value.total_seconds(), 3)
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, UUID):
        return str(value)
    return value
