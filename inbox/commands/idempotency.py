"""One effect per command: its record lives and dies in the transaction of its effect."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from datetime import timedelta
from functools import lru_cache
from typing import Any, Generic, Protocol, TypeVar, overload

from sqlalchemy import MetaData
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session
from tenacity import AsyncRetrying, Retrying

from inbox.claims.claim import Running
from inbox.claims.key import Seconds, seconds
from inbox.claims.waiting import polling
from inbox.commands.ledger import Ledger, Locked, LockOutcome, StoredResponse
from inbox.commands.statements import Statements
from inbox.errors import AlreadyCompleted, InProgressError, InvalidSource
from inbox.schema import DEFAULT_STATUS, tables

TTL = timedelta(hours=24)
WAIT_TIMEOUT = timedelta(seconds=30)

T = TypeVar("T")
S = TypeVar("S", bound=Session | AsyncSession)


class IdempotencyStore(Protocol):
    """What a command needs of whoever remembers commands. SqlAlchemyIdempotency is one."""

    async def get_response(self, idempotency_key: str) -> StoredResponse | None: ...

    async def lock(
        self, idempotency_key: str, operation: str, request_hash: str | None = None
    ) -> Locked: ...

    async def store_response(
        self, idempotency_key: str, response: Any, status_code: int = DEFAULT_STATUS
    ) -> None: ...

    async def mark_failed(self, idempotency_key: str) -> None: ...

    async def cleanup_expired(self) -> int: ...


class SqlAlchemyIdempotency(Generic[S]):
    """The records of one tenant's commands, in the table `idempotency` of PostgreSQL or SQLite.

    Everything is written in the transaction of `session`, and only its owner commits. So the record
    and the effect are committed together, or neither is: a process that dies leaves nothing behind,
    and whoever waited for it runs the command. With an AsyncSession every method is awaited, with
    a Session it is not.

    A record lasts for `ttl` from its last change; what has expired is as good as absent. A lock
    that was committed by itself, which nothing here does, binds the key until it expires.
    """

    @overload
    def __init__(
        self: SqlAlchemyIdempotency[AsyncSession],
        session: AsyncSession | async_scoped_session[Any],
        tenant_id: str = ...,
        ttl: Seconds = ...,
        *,
        schema: str | None = ...,
        prefix: str = ...,
    ) -> None: ...

    @overload
    def __init__(
        self: SqlAlchemyIdempotency[Session],
        session: Session | scoped_session[Any],
        tenant_id: str = ...,
        ttl: Seconds = ...,
        *,
        schema: str | None = ...,
        prefix: str = ...,
    ) -> None: ...

    def __init__(
        self,
        session: Any,
        tenant_id: str = "default",
        ttl: Seconds = TTL,
        *,
        schema: str | None = None,
        prefix: str = "",
    ) -> None:
        self._session: Any = _plain(session)
        statements = _statements(self._session.get_bind().dialect.name, schema, prefix)
        self._ledger = Ledger(statements, tenant_id, seconds("ttl", ttl))

    @overload
    def get_response(
        self: SqlAlchemyIdempotency[AsyncSession],
        idempotency_key: str,
        operation: str | None = ...,
        request_hash: str | None = ...,
    ) -> Coroutine[Any, Any, StoredResponse | None]: ...

    @overload
    def get_response(
        self: SqlAlchemyIdempotency[Session],
        idempotency_key: str,
        operation: str | None = ...,
        request_hash: str | None = ...,
    ) -> StoredResponse | None: ...

    def get_response(
        self, idempotency_key: str, operation: str | None = None, request_hash: str | None = None
    ) -> Any:
        """What was answered to the command with this key, or None if it was not completed.

        With `operation` or `request_hash`, a key that was used for something else raises
        IdempotencyConflictError; without, nothing is compared.
        """
        return self._perform(self._ledger.find(idempotency_key, operation, request_hash))

    @overload
    def lock(
        self: SqlAlchemyIdempotency[AsyncSession],
        idempotency_key: str,
        operation: str,
        request_hash: str | None = ...,
        *,
        wait_timeout: Seconds | None = ...,
    ) -> Coroutine[Any, Any, Locked]: ...

    @overload
    def lock(
        self: SqlAlchemyIdempotency[Session],
        idempotency_key: str,
        operation: str,
        request_hash: str | None = ...,
        *,
        wait_timeout: Seconds | None = ...,
    ) -> Locked: ...

    def lock(
        self,
        idempotency_key: str,
        operation: str,
        request_hash: str | None = None,
        *,
        wait_timeout: Seconds | None = WAIT_TIMEOUT,
    ) -> Any:
        """The right to run the command, until this transaction ends; returns only with it.

        A key that another transaction works on is waited for, but not longer than `wait_timeout`
        (0: not at all, None: as long as it takes), then InProgressError. When that one commits, you
        get AlreadyCompleted, with its answer; when it rolls back or dies, the lock. A key that was
        used for another operation, or for another request if both hashes are known, raises
        IdempotencyConflictError. After FAILED, and after expiry, the key is free.

        On SQLite all wait for the one writer, and a lock that was committed by itself cannot be
        waited for; the wait is for the database to be free. Roll back after a refusal there.
        """
        attempt = self._ledger.lock(idempotency_key, operation, request_hash, wait_timeout)
        # Where one writer waits, all others wait for it: it must go away, not ask again.
        retrying = polling(wait_timeout if self._is_postgresql else 0)
        if isinstance(self._session, AsyncSession):
            return self._lock_async(idempotency_key, attempt, retrying)
        return _locked(idempotency_key, Retrying(**retrying)(attempt, self._session))

    @overload
    def store_response(
        self: SqlAlchemyIdempotency[AsyncSession],
        idempotency_key: str,
        response: Any,
        status_code: int = ...,
    ) -> Coroutine[Any, Any, None]: ...

    @overload
    def store_response(
        self: SqlAlchemyIdempotency[Session],
        idempotency_key: str,
        response: Any,
        status_code: int = ...,
    ) -> None: ...

    def store_response(
        self, idempotency_key: str, response: Any, status_code: int = DEFAULT_STATUS
    ) -> Any:
        """Save the answer with the effect; commit after it. `response` is what JSON can say.

        NotLocked if the lock is not held any more: roll back then, and the effect is undone.
        """
        return self._perform(self._ledger.complete(idempotency_key, response, status_code))

    @overload
    def mark_failed(
        self: SqlAlchemyIdempotency[AsyncSession], idempotency_key: str
    ) -> Coroutine[Any, Any, None]: ...

    @overload
    def mark_failed(self: SqlAlchemyIdempotency[Session], idempotency_key: str) -> None: ...

    def mark_failed(self, idempotency_key: str) -> Any:
        """**Roll the session back**, half-done work and lock included, and write FAILED in a fresh
        transaction; commit after it.

        The next one with the same request may try again. If somebody else is trying already, or
        has succeeded, their record stands. NotLocked if this object never locked the key.
        """
        return self._perform(self._ledger.fail(idempotency_key))

    @overload
    def cleanup_expired(
        self: SqlAlchemyIdempotency[AsyncSession],
        *,
        all_tenants: bool = ...,
        limit: int | None = ...,
    ) -> Coroutine[Any, Any, int]: ...

    @overload
    def cleanup_expired(
        self: SqlAlchemyIdempotency[Session], *, all_tenants: bool = ..., limit: int | None = ...
    ) -> int: ...

    def cleanup_expired(self, *, all_tenants: bool = False, limit: int | None = None) -> Any:
        """Delete expired records, of this tenant or of all, and say how many; commit after it.

        Only saves room: what has expired is not seen anyhow.
        """
        return self._perform(self._ledger.cleanup(all_tenants, limit))

    @property
    def _is_postgresql(self) -> bool:
        return bool(self._session.get_bind().dialect.name == "postgresql")

    def _perform(self, step: Callable[[Session], T]) -> Any:
        """The one place where sync and async part: `step` works on the plain session of both."""
        if isinstance(self._session, AsyncSession):
            return self._session.run_sync(step)
        return step(self._session)

    async def _lock_async(
        self, key: str, attempt: Callable[[Session], LockOutcome], retrying: dict[str, Any]
    ) -> Locked:
        asking = AsyncRetrying(**retrying)
        return _locked(key, await asking(self._session.run_sync, attempt))


def _locked(key: str, outcome: LockOutcome) -> Locked:
    match outcome:
        case Running(retry_after):
            raise InProgressError(key, retry_after)
        case StoredResponse(response, status_code):
            raise AlreadyCompleted(key, response, status_code)
        case Locked():
            return outcome


def _plain(session: object) -> Session | AsyncSession:
    if isinstance(session, scoped_session | async_scoped_session):
        session = session()
    if not isinstance(session, Session | AsyncSession):
        raise InvalidSource(f"needs a Session or an AsyncSession, not {session!r}")
    return session


@lru_cache(maxsize=64)  # putting statements together takes longer than most commands
def _statements(dialect: str, schema: str | None, prefix: str) -> Statements:
    if dialect not in ("postgresql", "sqlite"):
        raise InvalidSource(f"commands need PostgreSQL or SQLite, not {dialect}")
    table = tables(MetaData(), schema=schema, prefix=prefix).idempotency
    return Statements(table, dialect)
