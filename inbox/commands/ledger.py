"""The steps that a command's record takes, each in the transaction of the session it is given."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeAlias

import msgspec
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from inbox.claims.claim import Running
from inbox.claims.key import Seconds, check_limit, seconds
from inbox.commands.record import CommandState
from inbox.commands.statements import Statements
from inbox.errors import (
    AlreadyLocked,
    IdempotencyConflictError,
    InvalidKey,
    InvalidOutcome,
    NotLocked,
    OutcomeNotVisible,
)
from inbox.schema import HASH_LENGTH, KEY_LENGTH, OPERATION_LENGTH
from outbox import codec

RETRY_AFTER = timedelta(seconds=1)
"""What we advise while another transaction works on a key: when it will end, nobody knows."""

SERIALIZATION_FAILURE = "40001"


@dataclass(frozen=True, slots=True)
class Locked:
    """The key is yours, for this transaction."""

    created_at: datetime
    taken_over: bool = False
    """An earlier lock had been committed and has expired: its effect may have happened."""


@dataclass(frozen=True, slots=True)
class StoredResponse:
    """What was answered when the command was completed."""

    response: Any
    status_code: int | None


LockOutcome: TypeAlias = Locked | Running | StoredResponse


@dataclass(frozen=True, slots=True)
class Attempt:
    operation: str
    request_hash: str | None
    created_at: datetime


class Ledger:
    """Remembers which keys were locked through it, and when: the time tells whether a pending
    record is still of that attempt, and the rest is needed to write FAILED once it is gone."""

    def __init__(self, statements: Statements, tenant: str, ttl: float) -> None:
        check_text("tenant_id", tenant, KEY_LENGTH)
        self._statements = statements
        self._tenant = tenant
        self._ttl = ttl
        self._attempts: dict[str, Attempt] = {}

    def find(
        self, key: str, operation: str | None, request_hash: str | None
    ) -> Callable[[Session], StoredResponse | None]:
        parameters = self._parameters(key)

        def find(session: Session) -> StoredResponse | None:
            row = session.connection().execute(self._statements.read, parameters).one_or_none()
            if row is None or row.expired:
                return None
            _check_same(row, operation, request_hash)
            return _stored(row) if row.state == CommandState.COMPLETED else None

        return find

    def lock(
        self, key: str, operation: str, request_hash: str | None, wait: Seconds | None
    ) -> Callable[[Session], LockOutcome]:
        check_text("operation", operation, OPERATION_LENGTH)
        if request_hash is not None:
            check_text("request_hash", request_hash, HASH_LENGTH)
        parameters = self._parameters(key, p_operation=operation, p_request_hash=request_hash)
        longest = patience(wait)

        def lock(session: Session) -> LockOutcome:
            connection = session.connection()
            with _patient(connection, longest), _explained(key):
                outcome = self._lock(connection, parameters)
            if isinstance(outcome, Locked):
                self._attempts[key] = Attempt(operation, request_hash, outcome.created_at)
            return outcome

        return lock

    def _lock(self, connection: Connection, parameters: dict[str, Any]) -> LockOutcome:
        try:
            created_at = connection.execute(self._statements.lock, parameters).scalar_one_or_none()
        except DBAPIError as exc:
            if not _is_locked_sqlite(exc):
                raise
            return Running(RETRY_AFTER)
        if created_at is not None:
            return Locked(created_at)
        row = connection.execute(self._statements.read, parameters).one_or_none()
        if row is None:  # in a transaction that is still open, or was when we asked
            return Running(RETRY_AFTER)
        if not row.expired:
            _check_same(row, parameters["p_operation"], parameters["p_request_hash"])
            if row.state == CommandState.COMPLETED:
                return _stored(row)
            if row.state == CommandState.PENDING:
                self._check_not_ours(row)
                return Running(RETRY_AFTER)
        seen = {"p_created_at": row.created_at, "p_state": row.state}
        taken = connection.execute(self._statements.take_over, {**parameters, **seen})
        created_at = taken.scalar_one_or_none()
        if created_at is None:
            return Running(RETRY_AFTER)
        return Locked(created_at, taken_over=row.state == CommandState.PENDING)

    def _check_not_ours(self, row: Any) -> None:
        attempt = self._attempts.get(row.idempotency_key)
        if attempt is not None and attempt.created_at == row.created_at:
            raise AlreadyLocked(row.idempotency_key, RETRY_AFTER)

    def complete(self, key: str, response: Any, status_code: int) -> Callable[[Session], None]:
        parameters = self._parameters(
            key, p_response=_plain(response), p_status_code=status_code, **self._attempt(key)
        )

        def complete(session: Session) -> None:
            done = session.connection().execute(self._statements.complete, parameters)
            if done.one_or_none() is None:
                raise NotLocked(key)

        return complete

    def fail(self, key: str) -> Callable[[Session], None]:
        attempt = self._attempts.get(key)
        parameters = self._parameters(key, **self._attempt(key))

        def fail(session: Session) -> None:
            session.rollback()
            connection = session.connection()
            # A lock that was committed by itself is still there; others went with the rollback.
            if connection.execute(self._statements.fail, parameters).one_or_none() is not None:
                return
            if attempt is None:
                raise NotLocked(key)
            content = {"p_operation": attempt.operation, "p_request_hash": attempt.request_hash}
            connection.execute(self._statements.record_failure, {**parameters, **content})

        return fail

    def cleanup(self, all_tenants: bool, limit: int | None) -> Callable[[Session], int]:
        if limit is not None:
            check_limit(limit)
        statement = self._statements.cleanup(all_tenants=all_tenants, limit=limit)
        parameters = {} if all_tenants else {"p_tenant": self._tenant}
        return lambda session: int(session.connection().execute(statement, parameters).rowcount)

    def _attempt(self, key: str) -> dict[str, Any]:
        attempt = self._attempts.get(key)
        return {"p_created_at": None if attempt is None else attempt.created_at}

    def _parameters(self, key: str, **more: Any) -> dict[str, Any]:
        check_text("idempotency_key", key, KEY_LENGTH)
        return {
            "p_tenant": self._tenant,
            "p_key": key,
            # The length keeps tenant and key apart, whatever they contain.
            "p_name": f"{len(self._tenant)}:{self._tenant}{key}",
            "p_ttl": self._ttl,
            **more,
        }


def patience(wait: Seconds | None) -> float | None:
    """Seconds to wait: 0 for not at all, None for as long as it takes."""
    if wait is None:
        return None
    return seconds("wait_timeout", wait) if wait else 0.0


def check_text(field: str, value: object, longest: int) -> None:
    """Before the database refuses it, which would take the whole transaction with it."""
    if not isinstance(value, str):
        raise InvalidKey(field, f"needs a str, not {type(value).__name__}")
    if not 1 <= len(value) <= longest:
        raise InvalidKey(field, f"needs 1 to {longest} characters, not {len(value)}")
    if not value.isprintable():
        raise InvalidKey(field, f"{value!r} has characters that cannot be printed")


def _check_same(row: Any, operation: str | None, request_hash: str | None) -> None:
    """A hash that is not known, on either side, is not compared."""
    if operation not in (None, row.operation):
        raise IdempotencyConflictError(row.idempotency_key, f"the operation {row.operation!r}")
    if None not in (request_hash, row.request_hash) and request_hash != row.request_hash:
        raise IdempotencyConflictError(row.idempotency_key)


def _stored(row: Any) -> StoredResponse:
    return StoredResponse(row.response, row.status_code)


def _plain(response: object) -> Any:
    """As it will come out of the database, so that both answers are the same."""
    raw, content_type = codec.encode(response)
    if not codec.is_json(content_type):
        raise InvalidOutcome(f"a response is what JSON can say, not {type(response).__name__}")
    return msgspec.json.decode(raw)


@contextmanager
def _explained(key: str) -> Iterator[None]:
    try:
        yield
    except DBAPIError as exc:
        # REPEATABLE READ and SERIALIZABLE show a transaction nothing of what came after it.
        if getattr(exc.orig, "sqlstate", None) != SERIALIZATION_FAILURE:
            raise
        raise OutcomeNotVisible(key) from exc


@contextmanager
def _patient(connection: Connection, wait: float | None) -> Iterator[None]:
    """On SQLite: wait for the one writer as long as asked, not as the driver is set to."""
    if connection.dialect.name != "sqlite":
        yield
        return
    before = connection.exec_driver_sql("PRAGMA busy_timeout").scalar_one()
    milliseconds = 2**31 - 1 if wait is None else min(int(wait * 1000), 2**31 - 1)
    connection.exec_driver_sql(f"PRAGMA busy_timeout = {milliseconds}")
    try:
        yield
    finally:
        connection.exec_driver_sql(f"PRAGMA busy_timeout = {before}")


def _is_locked_sqlite(exc: DBAPIError) -> bool:
    return "database is locked" in str(exc.orig)
