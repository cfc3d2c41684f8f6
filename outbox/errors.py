"""What can go wrong when an event is written. Every error carries its data as attributes."""

from __future__ import annotations

from collections.abc import Sequence
from uuid import UUID


class OutboxError(Exception):
    """The base of every error of this package."""


class InvalidField(OutboxError, ValueError):
    """A field of the event is not acceptable; nothing was written and the session is usable."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


class NotEncodable(OutboxError, TypeError):
    """The data cannot be written as JSON; `path` leads to the value inside it."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(
            f"data at {path} cannot be encoded as JSON: {problem}. "
            "Convert it first, or pass bytes with a content_type"
        )
        self.path = path
        self.problem = problem


class NotDecodable(OutboxError, ValueError):
    """The data of an event does not fit the type that was asked for."""

    def __init__(self, wanted: str, problem: str) -> None:
        super().__init__(f"data does not decode to {wanted}: {problem}")
        self.wanted = wanted
        self.problem = problem


class EventTooLarge(OutboxError, ValueError):
    """The encoded event is larger than the outbox allows."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(
            f"data and headers are {size:,} bytes, the limit is {limit:,}: store the payload "
            "elsewhere and send a reference, or raise Outbox(max_size=…)"
        )
        self.size = size
        self.limit = limit


class NotASession(OutboxError, TypeError):
    """`emit` was given something that is neither a Session nor an AsyncSession."""

    def __init__(self, given: object) -> None:
        super().__init__(
            f"emit() needs a Session or an AsyncSession, not {type(given).__name__}: "
            "on a connection, execute events.insert(event) instead"
        )


class SessionNotUsable(OutboxError):
    """The session cannot take events now: it is closed, not begun, or must be rolled back."""

    def __init__(self, problem: str) -> None:
        super().__init__(f"the session cannot take events: {problem}")


class NoTransaction(OutboxError):
    """The connection is in AUTOCOMMIT, where an event cannot share the fate of its changes."""

    def __init__(self) -> None:
        super().__init__(
            "the connection is in AUTOCOMMIT: events would be written apart from your changes. "
            "Use a session whose engine keeps transactions"
        )


class NoBind(OutboxError):
    """It cannot be told which of the session's databases holds the outbox."""

    def __init__(self, table: str) -> None:
        super().__init__(
            f"the session has no bind for {table!r} and no single connection to go by: "
            "add events.table to the session's binds"
        )
        self.table = table


class NotWritten(OutboxError):
    """A value that the commit decides was read before it."""

    def __init__(self, field: str) -> None:
        super().__init__(f"event.{field} is known once the transaction has committed")
        self.field = field


class NeverWritten(OutboxError):
    """A joined transaction went past its last chance to write these events: roll it back."""

    def __init__(self, events: Sequence[object]) -> None:
        super().__init__(
            f"{len(events)} events of a joined session were not written, {events[0]} first: roll "
            "the outer transaction back. Commit the session itself and not its transaction object "
            "while a savepoint is open, and roll back after an error"
        )
        self.events = events


class KeyUnknown(OutboxError):
    """The object that was to give the event its key has no primary key at commit."""

    def __init__(self, event_id: UUID, type: str, owner: object) -> None:
        super().__init__(
            f"event {type!r} ({event_id}) takes its key from a {owner.__class__.__name__} that has "
            "no primary key at commit: add the object to the session, or pass the key itself"
        )
        self.event_id = event_id


class VersionSeqError(OutboxError):
    """A seq cannot be taken from the object's version_id_col."""

    def __init__(self, owner: type, problem: str) -> None:
        super().__init__(
            f"{owner.__name__}.emit cannot take seq from the version: {problem}. "
            '__seq__ = "version" allows one event per version and none on delete; '
            "__seq__ = AUTO has no such limits"
        )
        self.owner = owner


class DuplicateSeq(OutboxError):
    """An event with this topic, key and seq is in the outbox already."""

    def __init__(self, event_id: UUID, topic: str, type: str, key: str, seq: int | None) -> None:
        what = f"event {type!r} ({event_id}) of key {key!r} in topic {topic!r}"
        super().__init__(
            f"{what} was to take the next number, but somebody gave that one by hand: roll back; "
            "use either AUTO or numbers of your own on a key"
            if seq is None
            else f"{what} repeats seq {seq}: roll back; emit with the next seq, with AUTO, "
            'or with on_duplicate="skip"'
        )
        self.event_id = event_id
        self.topic = topic
        self.type = type
        self.key = key
        self.seq = seq


class OutboxMismatch(OutboxError):
    """The database was set up for another outbox name or another number of lanes."""

    def __init__(self, field: str, configured: object, stored: object) -> None:
        super().__init__(
            f"Outbox({field}={configured!r}) does not match this database, where {field} is "
            f"{stored!r}: pass {field}={stored!r}, or use other tables (schema=, prefix=)"
        )
        self.field = field
        self.configured = configured
        self.stored = stored


class TablesMissing(OutboxError):
    """The outbox tables are not in this database."""

    def __init__(self, table: str) -> None:
        super().__init__(
            f"table {table!r} is missing: run `projector migrate`, your own Alembic migration, "
            "or metadata.create_all"
        )
        self.table = table
