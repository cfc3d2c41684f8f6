"""Claims in a table of PostgreSQL or SQLite, by the database's clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

from sqlalchemy import Engine, MetaData
from sqlalchemy.engine import Connection
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine, async_sessionmaker
from sqlalchemy.orm import sessionmaker

from inbox.claims import claim as machine
from inbox.claims.claim import (
    VERSION,
    Applied,
    Claim,
    Claimed,
    ClaimOutcome,
    Record,
    SettleOutcome,
    State,
)
from inbox.claims.key import Seconds, check_claim, check_key, check_limit, outcome, seconds
from inbox.claims.loop import loop_thread
from inbox.claims.operation import AsyncStore, Operation, SyncStore
from inbox.claims.statements import Statements
from inbox.errors import CorruptRecord, InvalidSource, NewerRecord, StoreUnavailable
from inbox.schema import tables

Source: TypeAlias = Engine | AsyncEngine | sessionmaker[Any] | async_sessionmaker[Any]

TRIES = 50
"""How often a record is looked at that changes under our hands each time."""

AUTOCOMMIT = {"isolation_level": "AUTOCOMMIT"}


class SqlAlchemyStore(AsyncStore):
    """Claims in the table `inbox_claims`, for everyone who reaches the same database.

    Takes an engine or a session factory, sync or async; either way the store serves both. It works
    on connections and in transactions of its own, never in yours: a claim must be seen by others
    while your transaction is still open. Async code with a sync engine waits in threads. Sync code
    with an async engine goes through an event loop of our own with a pool of its own, made like the
    engine's: connections belong to one loop. The table comes with `projector migrate`, or with
    `inbox.tables(metadata)` and your own migrations.
    """

    def __init__(self, source: Source, *, schema: str | None = None, prefix: str = "") -> None:
        self.engine = engine = _engine(source)
        if engine.dialect.name not in ("postgresql", "sqlite"):
            raise InvalidSource(
                f"SqlAlchemyStore needs PostgreSQL or SQLite, not {engine.dialect.name}"
            )
        table = tables(MetaData(), schema=schema, prefix=prefix).claims
        operations = SqlOperations(Statements(table, engine.dialect.name))
        if isinstance(engine, AsyncEngine):
            super().__init__(
                operations,
                partial(_run_async, engine.execution_options(**AUTOCOMMIT)),
                lambda: _in_own_loop(operations, engine),
            )
        else:
            run = partial(_run, engine.execution_options(**AUTOCOMMIT))
            super().__init__(
                operations, partial(asyncio.to_thread, run), lambda: SyncStore(operations, run)
            )


def _engine(source: Source) -> Engine | AsyncEngine:
    factory = isinstance(source, sessionmaker | async_sessionmaker)
    engine = source.kw.get("bind") if factory else source  # type: ignore[union-attr]
    if not isinstance(engine, Engine | AsyncEngine):
        raise InvalidSource(
            "SqlAlchemyStore needs an Engine, an AsyncEngine, or a session factory that is bound "
            f"to one, not {source!r}"
        )
    return engine


def _in_own_loop(operations: SqlOperations, engine: AsyncEngine) -> SyncStore:
    base = engine.sync_engine
    twin = AsyncEngine(Engine(base.pool.recreate(), base.dialect, base.url))
    committing = twin.execution_options(**AUTOCOMMIT)
    return SyncStore(
        operations,
        lambda request: loop_thread().run(_run_async(committing, request)),
        lambda: loop_thread().run(twin.dispose()),
    )


@dataclass(frozen=True, slots=True)
class Change:
    """`write` does what `step`, a transition of the machine, would do; where it does nothing, the
    step tells why from the record as it stands."""

    key: str
    write: Any
    parameters: dict[str, Any]
    written: Callable[[Any], Any]
    step: Callable[..., tuple[Any, Record | None]]
    statements: Statements

    def __call__(self, connection: Connection) -> Any:
        for _ in range(TRIES):
            written, row = self._try(connection)
            if written:
                return self.written(row)
            record, now = self._read(connection)
            answer, after = self.step(record, now=now)
            if after is record:
                return answer
        raise StoreUnavailable("SQL", f"the record of {self.key!r} never stood still")

    def _try(self, connection: Connection) -> tuple[bool, Any]:
        try:
            row = connection.execute(self.write, self.parameters).one_or_none()
        except DBAPIError as exc:
            # Where the server's default isolation is stricter than READ COMMITTED.
            if getattr(exc.orig, "sqlstate", None) != "40001":
                raise
            return False, None
        return row is not None, row

    def _read(self, connection: Connection) -> tuple[Record | None, float]:
        row = connection.execute(self.statements.read, {"p_key": self.key}).one_or_none()
        if row is None:
            return None, float(connection.execute(self.statements.now).scalar_one())
        return _record(row), row.now


class SqlOperations:
    def __init__(self, statements: Statements) -> None:
        self._statements = statements

    def claim(
        self, key: str, fingerprint: str, token: str, lease: Seconds
    ) -> Operation[ClaimOutcome]:
        check_claim(key, fingerprint, token)
        length = seconds("lease", lease)
        return self._change(
            key,
            self._statements.claim,
            {"p_token": token, "p_fingerprint": fingerprint, "p_seconds": length},
            lambda row: Claimed(Claim(key, token, row.fence, fingerprint), row.taken_over),
            partial(machine.claim, key=key, fingerprint=fingerprint, token=token, lease=length),
        )

    def renew(self, claim: Claim, lease: Seconds) -> Operation[bool]:
        length = seconds("lease", lease)
        return self._change(
            claim.key,
            self._statements.renew,
            {**_owner(claim), "p_seconds": length},
            lambda _: True,
            partial(machine.renew, claim=claim, lease=length),
        )

    def settle(
        self, claim: Claim, state: State, payload: bytes | None, ttl: Seconds
    ) -> Operation[SettleOutcome]:
        state, payload = outcome(state, payload)
        length = seconds("ttl", ttl)
        return self._change(
            claim.key,
            self._statements.settle,
            {**_owner(claim), "p_state": str(state), "p_payload": payload, "p_seconds": length},
            lambda _: Applied(),
            partial(machine.settle, claim=claim, state=state, payload=payload, ttl=length),
        )

    def release(self, claim: Claim) -> Operation[bool]:
        return self._change(
            claim.key,
            self._statements.release,
            _owner(claim),
            lambda _: True,
            partial(machine.release, claim=claim),
        )

    def peek(self, key: str) -> Operation[Record | None]:
        check_key(key)

        def peek(connection: Connection) -> Record | None:
            row = connection.execute(self._statements.read, {"p_key": key}).one_or_none()
            return None if row is None else machine.peek(_record(row), now=row.now)[0]

        return Operation(peek, _itself)

    def forget(self, key: str) -> Operation[bool]:
        check_key(key)

        def forget(connection: Connection) -> bool:
            forgotten = connection.execute(self._statements.forget, {"p_key": key}).one_or_none()
            if forgotten is not None:
                return True
            return bool(connection.execute(self._statements.remove, {"p_key": key}).rowcount)

        return Operation(forget, bool)

    def purge(self, limit: int) -> Operation[int]:
        parameters = {"p_limit": check_limit(limit)}
        return Operation(lambda c: c.execute(self._statements.purge, parameters).rowcount, int)

    def _change(
        self,
        key: str,
        write: Any,
        parameters: dict[str, Any],
        written: Callable[[Any], Any],
        step: Callable[..., tuple[Any, Record | None]],
    ) -> Operation[Any]:
        parameters["p_key"] = key
        return Operation(Change(key, write, parameters, written, step, self._statements), _itself)


def _owner(claim: Claim) -> dict[str, Any]:
    return {"p_token": claim.token, "p_fence": claim.fence}


def _itself(reply: Any) -> Any:
    return reply


def _record(row: Any) -> Record:
    if row.version > VERSION:
        raise NewerRecord(row.key, row.version)
    if row.version < 1 or row.state not in list(State):
        raise CorruptRecord(row.key, f"version {row.version}, state {row.state!r}")
    return Record(
        key=row.key,
        state=State(row.state),
        token=row.token,
        fence=row.fence,
        fingerprint=row.fingerprint,
        payload=None if row.payload is None else bytes(row.payload),
        started_at=row.started_at,
        heartbeat=row.heartbeat,
        completed_at=row.completed_at,
        expires_at=row.expires_at,
        version=row.version,
    )


def _run(engine: Engine, request: Callable[[Connection], Any]) -> Any:
    with _explained(), engine.connect() as connection:
        return request(connection)


async def _run_async(engine: AsyncEngine, request: Callable[[Connection], Any]) -> Any:
    with _explained():
        async with engine.connect() as connection:
            return await connection.run_sync(request)


@contextmanager
def _explained() -> Iterator[None]:
    try:
        yield
    except (SQLAlchemyError, OSError) as exc:
        cause = exc.orig if isinstance(exc, DBAPIError) and exc.orig is not None else exc
        problem = str(cause).strip().partition("\n")[0] or type(cause).__name__
        if "inbox_claims" in problem:
            problem += " (the table comes with `projector migrate` or `inbox.tables(metadata)`)"
        raise StoreUnavailable("SQL", problem) from exc
