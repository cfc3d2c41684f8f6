"""The transitions of the claim machine as SQL: each one statement that does nothing where the
machine would write nothing."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Double,
    LargeBinary,
    Table,
    Text,
    and_,
    bindparam,
    case,
    cast,
    delete,
    or_,
    select,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from inbox.claims.claim import VERSION, State

SETTLED_FOR = 1.0
"""Seconds that a record has been expired before it is purged: longer than a claim can have been on
its way, which took its fence from the clock when it set out."""


class clock(FunctionElement[float]):  # noqa: N801  # an SQL function
    """The database's time in seconds since 1970, the same throughout a statement."""

    inherit_cache = True
    type = Double()


@compiles(clock, "postgresql")
def _postgresql_clock(*_: object, **__: object) -> str:
    return "CAST(extract(epoch FROM statement_timestamp()) AS double precision)"


@compiles(clock, "sqlite")
def _sqlite_clock(*_: object, **__: object) -> str:
    return "((julianday('now') - 2440587.5) * 86400.0)"


def _text(name: str) -> Any:
    return bindparam(name, type_=Text())


def _seconds(name: str) -> Any:
    return bindparam(name, type_=Double())


class Statements:
    """Parameters: p_key, p_token, p_fence, p_fingerprint, p_state, p_payload, p_seconds (a lease
    or a ttl) and p_limit."""

    def __init__(self, table: Table, dialect: str) -> None:
        t = table.c
        now = clock()
        readable = and_(t.version == VERSION, t.state.in_([str(state) for state in State]))
        running = and_(readable, t.state == str(State.RUNNING))
        held = and_(
            t.key == _text("p_key"),
            t.token == _text("p_token"),
            t.fence == bindparam("p_fence", type_=BigInteger()),
            running,
        )
        self.claim = self._claim(table, postgresql if dialect == "postgresql" else sqlite, readable)
        self.renew = (
            update(table)
            .where(held)
            .values(heartbeat=now, expires_at=now + _seconds("p_seconds"))
            .returning(t.key)
        )
        self.settle = (
            update(table)
            .where(held)
            .values(
                state=_text("p_state"),
                payload=bindparam("p_payload", type_=LargeBinary()),
                completed_at=now,
                expires_at=now + _seconds("p_seconds"),
            )
            .returning(t.key)
        )
        buried = {"state": str(State.RELEASED), "payload": None, "expires_at": now}
        self.release = update(table).where(held).values(**buried).returning(t.key)
        self.forget = (
            update(table)
            .where(t.key == _text("p_key"), readable, t.expires_at > now)
            .values(token="", **buried)
            .returning(t.key)
        )
        self.read = select(table, now.label("now")).where(t.key == _text("p_key"))
        self.now = select(now)
        self.remove = delete(table).where(t.key == _text("p_key"), ~readable)
        # Said twice: a record that is claimed between the search and its deletion is not expired.
        past = now - SETTLED_FOR
        expired = and_(readable, t.expires_at <= past, t.fence < _microseconds(past))
        found = select(t.key).where(expired).limit(bindparam("p_limit"))
        self.purge = delete(table).where(t.key.in_(found.scalar_subquery()), expired)

    def _claim(self, table: Table, dialect: Any, readable: ColumnElement[bool]) -> Any:
        t, now = table.c, clock()
        insert = dialect.insert(table).values(
            key=_text("p_key"),
            version=VERSION,
            state=str(State.RUNNING),
            token=_text("p_token"),
            fence=_microseconds(now),
            fingerprint=_text("p_fingerprint"),
            payload=None,
            taken_over=False,
            started_at=now,
            heartbeat=now,
            completed_at=None,
            expires_at=now + _seconds("p_seconds"),
        )
        new = insert.excluded
        running = t.state == str(State.RUNNING)
        mine = and_(running, t.token == new.token, t.fingerprint == new.fingerprint)
        # Not below the clock: where nothing remembers the last fence, time has moved on since.
        fence = case((t.fence >= new.fence, t.fence + 1), else_=new.fence)
        return insert.on_conflict_do_update(
            index_elements=[t.key],
            set_={
                "state": new.state,
                "token": new.token,
                "fence": case((mine, t.fence), else_=fence),
                "fingerprint": new.fingerprint,
                "payload": None,
                "taken_over": case((mine, False), else_=running),
                "started_at": case((mine, t.started_at), else_=new.started_at),
                "heartbeat": new.heartbeat,
                "completed_at": None,
                "expires_at": new.expires_at,
            },
            where=and_(readable, or_(mine, t.expires_at <= new.heartbeat)),
        ).returning(t.fence, t.taken_over)


def _microseconds(now: ColumnElement[float]) -> ColumnElement[int]:
    return cast(now * 1_000_000.0, BigInteger)
