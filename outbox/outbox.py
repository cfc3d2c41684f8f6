"""The outbox of a service: its name, its tables, and the way events get into them."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar, overload
from uuid import UUID
from weakref import WeakKeyDictionary

from sqlalchemy import MetaData, Table
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import DBAPIError, InvalidRequestError
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session
from sqlalchemy.sql.dml import Insert, ReturningInsert

from outbox import fields, hooks, rows, statements, validation
from outbox.errors import (
    EventTooLarge,
    InvalidField,
    NotASession,
    OutboxMismatch,
    SessionNotUsable,
    TablesMissing,
)
from outbox.event import Event
from outbox.keys import Key
from outbox.notification import Notification, channel_of
from outbox.pending import OnDuplicate, Pending, buffer_of, frame_of
from outbox.tables import Tables
from outbox.tracing import trace_headers
from outbox.versions import AUTO, Auto

if TYPE_CHECKING:
    from outbox.emits import Emits

T = TypeVar("T")

AnySession = Session | AsyncSession | scoped_session[Any] | async_scoped_session[Any]

MAX_SIZE = 1024 * 1024
MAX_INSERT = 2_000
"""Events of one `insert` statement: PostgreSQL takes 32,767 arguments."""
METADATA_KEY = "oncebox"


class Outbox:
    """Writes events in the transaction of the caller's session.

    `metadata`  where the tables are defined; with your own, your Alembic autogenerates them
    `name`      the outbox's name: the source of its events and the prefix of its Redis keys
    `lanes`     how many lanes keys are spread over; fixed once the tables exist (default 8)
    `schema`    the database schema of the tables (default: the connection's own)
    `prefix`    put before each table's name, "event_" gives "event_outbox" (default: none)
    `max_size`  the limit in bytes of an event's data and headers (default: 1 MiB)
    `notify`    wake the projector at each commit; makes such commits queue (default: no)
    """

    def __init__(
        self,
        metadata: MetaData | None = None,
        *,
        name: str,
        lanes: int = 8,
        schema: str | None = None,
        prefix: str = "",
        max_size: int = MAX_SIZE,
        notify: bool = False,
    ) -> None:
        if isinstance(lanes, bool) or not isinstance(lanes, int) or not 1 <= lanes <= 32767:
            raise InvalidField("lanes", f"must be a number from 1 to 32767, not {lanes!r}")
        self.name = fields.name("name", name)
        self.lanes = lanes
        self.max_size = max_size
        self.notifies = notify
        self.channel = channel_of(self.name)
        self.metadata = MetaData() if metadata is None else metadata
        self.tables = Tables(self.metadata, lanes=lanes, schema=schema, prefix=prefix)
        self.statements = statements.Statements(self.tables, self.channel)
        self.metadata.info.setdefault(METADATA_KEY, self)
        self._met: WeakKeyDictionary[Engine, set[str | None]] = WeakKeyDictionary()
        self._observers: list[Any] = []
        hooks.install()

    @property
    def table(self) -> Table:
        """The table of the events."""
        return self.tables.log

    @overload
    def emit(
        self, session: AnySession, event: Event[T], /, *, on_duplicate: OnDuplicate = "error"
    ) -> Event[T]: ...

    @overload
    def emit(
        self,
        session: AnySession,
        type: str,
        /,
        *,
        topic: str,
        key: Key,
        data: T,
        seq: int | Auto | None = None,
        headers: Mapping[str, str] | None = None,
        deliver_at: datetime | None = None,
        event_id: UUID | None = None,
        content_type: str | None = None,
        on_duplicate: OnDuplicate = "error",
    ) -> Event[T]: ...

    def emit(
        self,
        session: AnySession,
        type: str | Event[Any],
        /,
        *,
        on_duplicate: OnDuplicate = "error",
        **event: Any,
    ) -> Event[Any]:
        """Let the event go out if, and only if, the session's transaction commits.

        Never awaits, never commits, never touches the network. The row is written right before
        COMMIT; a rollback, also of the savepoint the event was emitted in, leaves no trace.
        """
        if isinstance(type, Event):
            if event:
                raise InvalidField(next(iter(event)), "is given by the Event already")
            made = type
        else:
            made = Event(type, **event)
        self.adopt(made)
        self.keep(session, made, on_duplicate)
        return made

    def adopt(self, event: Event[Any]) -> None:
        """Check the event's size, and make this outbox its source, with the trace context."""
        trace = trace_headers()
        headers = fields.headers({**trace, **event.headers}) if trace else event.headers
        if (size := rows.size_of(event.raw, headers)) > self.max_size:
            raise EventTooLarge(size, self.max_size)
        event._set(source=self.name, headers=headers)

    def keep(
        self,
        session: AnySession,
        event: Event[Any],
        on_duplicate: OnDuplicate = "error",
        version_of: object | None = None,
        home: Emits | None = None,
    ) -> None:
        """Add an adopted event to what the session will write."""
        _check_on_duplicate(on_duplicate)
        plain = begun_session(session)
        buffer = buffer_of(plain)
        buffer.add(Pending(self, event, on_duplicate, version_of, home), frame_of(plain))
        for observer in self._observers:
            observer.emitted(event)
        hooks.emitted(plain, buffer)

    def insert(
        self, *events: Event[Any], on_duplicate: OnDuplicate = "error"
    ) -> Insert | ReturningInsert[Any]:
        """A statement that writes the events at once, for `connection.execute`, sync or async.

        Order is then yours: hold the key's lock before you execute it. A repeated seq is the
        database's error. `AUTO` works on PostgreSQL. The lane count is not compared with the
        database's, since no connection is at hand; `validate` does it. It does not notify;
        `notify()` does.
        """
        _check_on_duplicate(on_duplicate)
        if not 1 <= len(events) <= MAX_INSERT:
            raise InvalidField("events", f"give 1 to {MAX_INSERT:,} of them, not {len(events):,}")
        if late := [e for e in events if e._key is None or e.deliver_at is not None]:
            raise InvalidField("key", f"{late[0]!r} has a late key or a deliver_at: emit() it")
        for event in events:
            self.adopt(event)
        auto = [event._seq is AUTO for event in events]
        values = [
            rows.log_row(e, e.key, None if a else e.seq, self.lanes)
            for e, a in zip(events, auto, strict=True)
        ]
        for observer in self._observers:
            for event in events:
                observer.emitted(event)
        if any(auto):
            arrays = statements.versioned_arrays(values, auto)
            return statements.versioned(self.tables, arrays, skip=on_duplicate == "skip")
        plain = self.statements.plain if on_duplicate == "error" else self.statements.skipping
        return plain.values(values)

    def notify(self) -> Notification:
        """A statement that wakes the projector once the transaction commits: for those who write
        with `insert` and want the hint. Any number in a transaction is one notification. Nothing
        on SQLite; an error of PostgreSQL in a transaction that is to be prepared."""
        return self.statements.notify

    def validate(self, connection: Connection) -> list[str]:
        """Every difference between this database and what the outbox needs; empty if none.

        On an AsyncConnection: `await connection.run_sync(events.validate)`.
        """
        return validation.differences(connection, self)

    def meet(self, connection: Connection) -> None:
        """Once per engine and schema: is this the database this outbox was configured for?"""
        translate = connection.get_execution_options().get("schema_translate_map") or {}
        schema = translate.get(self.tables.schema, self.tables.schema)
        met = self._met.setdefault(connection.engine, set())
        if schema in met:
            return
        stored = self.read_meta(connection)
        ours = stored is None
        if ours:
            parameters = {"name": self.name, "lanes": self.lanes}
            connection.execute(self.statements.claim_meta, parameters)
            stored = self.read_meta(connection)  # somebody else may have been faster
        assert stored is not None, "somebody has claimed it"
        for field, configured, found in zip(
            ("name", "lanes"), (self.name, self.lanes), stored, strict=True
        ):
            if configured != found:
                raise OutboxMismatch(field, configured, found)
        if not ours:  # else this transaction may yet roll back
            met.add(schema)

    def read_meta(self, connection: Connection) -> tuple[str, int] | None:
        try:
            row = connection.execute(self.statements.read_meta).first()
        except DBAPIError as exc:
            undefined = getattr(exc.orig, "sqlstate", None) == "42P01"
            if undefined or "no such table" in str(exc.orig):
                raise TablesMissing(self.tables.meta.fullname) from exc
            raise
        return None if row is None else (row.name, row.lanes)

    def _committed(self, item: Pending) -> None:
        item.event._set(_key=item.key, _key_owner=None)
        if item.event.deliver_at is None:
            item.event._set(_seq=item.seq)
        if not item.skipped:
            for observer in self._observers:
                observer.committed(item.event)


def _check_on_duplicate(value: object) -> None:
    if value not in ("error", "skip"):
        raise InvalidField("on_duplicate", f"must be 'error' or 'skip', not {value!r}")


def begun_session(session: object) -> Session:
    """The plain session behind whatever the caller uses, in a transaction that takes events."""
    if isinstance(session, scoped_session | async_scoped_session):
        session = session()
    if isinstance(session, AsyncSession):
        session = session.sync_session
    if not isinstance(session, Session):
        raise NotASession(session)
    if not session.in_transaction():
        _begin(session)
    if not session.is_active:
        raise SessionNotUsable("its transaction has ended or failed; roll back and begin anew")
    return session


def _begin(session: Session) -> None:
    """As session.add() does. No connection is taken."""
    if not session.autobegin:
        raise SessionNotUsable("it does not begin by itself; call session.begin() first")
    try:
        session.begin()
    except InvalidRequestError as exc:
        raise SessionNotUsable(str(exc)) from exc
