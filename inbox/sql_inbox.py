"""The inbox in the handler's own database: a row in the handler's own transaction.

The handler's changes, the row that says so, and the events it emits commit together or not at all.
This is the one place where "exactly once" is said.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from sqlalchemy import MetaData, delete, event, select, tuple_
from sqlalchemy.dialects.postgresql import insert as upsert  # SQLite renders its ON CONFLICT too
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session, sessionmaker

from inbox.claims.held import Held
from inbox.claims.key import Seconds, seconds
from inbox.consumer.handlers import Given, Handler
from inbox.consumer.message import Message
from inbox.errors import BadHandler, CommitRefused
from inbox.outcome import Duplicate, Handled
from inbox.schema import tables

T = TypeVar("T")

AnySessions = async_sessionmaker[Any] | sessionmaker[Any]


class SqlInbox:
    """Remembers in the database which events a group has handled.

    sessions  makes the sessions that handlers work in: async for async handlers, sync for sync ones
    group     whose events; needed for a loop of your own only
    window    how long rows are kept; longer than any event may be published again
    """

    def __init__(
        self,
        sessions: AnySessions | None = None,
        group: str = "",
        *,
        window: Seconds = timedelta(days=7),
        schema: str | None = None,
        prefix: str = "",
    ) -> None:
        self.window = timedelta(seconds=seconds("window", window))
        self.group = group
        self._sessions = sessions
        self._table = tables(MetaData(), schema=schema, prefix=prefix).handled

    # In a Consumer

    @property
    def kept(self) -> timedelta:
        """Redis need not remember: the rows do."""
        return timedelta(0)

    def check(self, handler: Handler[Any]) -> None:
        """Raises BadHandler if a handler cannot work in our sessions."""
        asynchronous = asyncio.iscoroutinefunction(handler.function)
        if isinstance(self._sessions, sessionmaker):
            if asynchronous:
                raise BadHandler(handler.function, "async, but SqlInbox has sync sessions")
        elif handler.wants_session is Session:
            raise BadHandler(handler.function, "wants a sync Session: give SqlInbox a sessionmaker")

    async def run(
        self, group: str, messages: Sequence[Message], handler: Handler[Any], claim: Held | None
    ) -> None:
        """The handler, once for each event, in one transaction for all of them."""
        if isinstance(self._sessions, sessionmaker):
            await asyncio.to_thread(self._run_sync, group, messages, handler, claim)
            return
        assert self._sessions is not None, "SqlInbox(sessions) for a Consumer"
        async with self._sessions() as session, session.begin():
            with _uncommitted(session.sync_session):
                connection = await session.connection()
                fresh = {
                    row[0]
                    for row in await connection.execute(
                        self._remember(group, [message.event_id for message in messages])
                    )
                }
                left = [message for message in messages if message.event_id in fresh]
                if left:
                    await handler(Given(left, session, claim))

    def _run_sync(
        self, group: str, messages: Sequence[Message], handler: Handler[Any], claim: Held | None
    ) -> None:
        with self._sessions() as session, session.begin(), _uncommitted(session):  # type: ignore[misc]
            ids = [message.event_id for message in messages]
            found = session.connection().execute(self._remember(group, ids))
            fresh = {row[0] for row in found}
            left = [message for message in messages if message.event_id in fresh]
            if left:
                handler.call_sync(Given(left, session, claim))

    async def purge(self, limit: int = 1000) -> int:
        """Delete rows that are older than the window. How many."""
        statement = self._doomed(datetime.now(UTC) - self.window, limit)
        if isinstance(self._sessions, sessionmaker):
            return await asyncio.to_thread(self._purge_sync, statement)
        assert self._sessions is not None
        async with self._sessions() as session, session.begin():
            return int((await session.execute(statement)).rowcount)

    def _purge_sync(self, statement: Any) -> int:
        with self._sessions() as session, session.begin():  # type: ignore[misc]
            return int(session.execute(statement).rowcount)

    # In a loop of your own

    async def process(
        self,
        session: AsyncSession,
        event_id: object,
        handler: Callable[[], Awaitable[T]],
    ) -> Handled[T] | Duplicate:
        """Run the handler in the session's transaction unless the event was handled before. You
        commit, and then acknowledge; a rollback lets the event be handled again. Somebody else who
        handles it at the same time is waited for."""
        connection = await session.connection()
        found = await connection.execute(self._remember(self.group, [str(event_id)]))
        if found.first() is None:
            return Duplicate()
        with _uncommitted(session.sync_session):
            return Handled(await handler())

    def process_sync(
        self, session: Session, event_id: object, handler: Callable[[], T]
    ) -> Handled[T] | Duplicate:
        """`process` for sync code."""
        found = session.connection().execute(self._remember(self.group, [str(event_id)]))
        if found.first() is None:
            return Duplicate()
        with _uncommitted(session):
            return Handled(handler())

    def once(self, *, key: Callable[..., object]) -> Callable[[Callable[..., Any]], Any]:
        """A handler whose first argument is a session, and which runs once for what `key` makes of
        its arguments. Its answer is `Handled` or `Duplicate`; you commit."""

        def wrap(function: Callable[..., Any]) -> Any:
            if asyncio.iscoroutinefunction(function):

                @functools.wraps(function)
                async def run(session: AsyncSession, *arguments: Any, **named: Any) -> Any:
                    call = functools.partial(function, session, *arguments, **named)
                    return await self.process(session, key(session, *arguments, **named), call)

                return run

            @functools.wraps(function)
            def run_sync(session: Session, *arguments: Any, **named: Any) -> Any:
                call = functools.partial(function, session, *arguments, **named)
                return self.process_sync(session, key(session, *arguments, **named), call)

            return run_sync

        return wrap

    def _remember(self, group: str, event_ids: Sequence[str]) -> Any:
        """Gives back the ids that are new. In sorted order, so that batches cannot deadlock."""
        rows = [{"consumer": group, "event_id": event_id} for event_id in sorted(set(event_ids))]
        statement = upsert(self._table).values(rows).on_conflict_do_nothing()
        return statement.returning(self._table.c.event_id)

    def _doomed(self, before: datetime, limit: int) -> Any:
        table = self._table
        old = select(table.c.consumer, table.c.event_id).where(table.c.handled_at < before)
        return delete(table).where(tuple_(table.c.consumer, table.c.event_id).in_(old.limit(limit)))


@contextmanager
def _uncommitted(session: Session) -> Iterator[None]:
    """Refuses to commit the session's outermost transaction while a handler runs."""

    def refuse(committing: Session) -> None:
        if not committing.in_nested_transaction():
            raise CommitRefused

    event.listen(session, "before_commit", refuse)
    try:
        yield
    finally:
        event.remove(session, "before_commit", refuse)
