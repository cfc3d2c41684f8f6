"""What is said to the database about the records of commands.

By the database's clock, at the moment of the statement: now() of PostgreSQL stands still for as
long as a transaction is open, and the transactions here are the user's.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    JSON,
    ColumnElement,
    DateTime,
    Double,
    Integer,
    String,
    Table,
    and_,
    bindparam,
    delete,
    func,
    literal,
    null,
    or_,
    select,
    true,
    tuple_,
    update,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement

from inbox.commands.record import CommandState
from inbox.schema import DEFAULT_STATUS

PENDING, COMPLETED, FAILED = (str(state) for state in CommandState)


class time_after(FunctionElement[Any]):  # noqa: N801  # an SQL function
    """The time so many seconds from now, by the database's clock."""

    type = DateTime(timezone=True)
    inherit_cache = True


@compiles(time_after, "postgresql")
def _on_postgresql(element: Any, compiler: Any, **options: Any) -> str:
    seconds = compiler.process(element.clauses, **options)
    return f"(clock_timestamp() + make_interval(secs => {seconds}))"


@compiles(time_after, "sqlite")
def _on_sqlite(element: Any, compiler: Any, **options: Any) -> str:
    # As SQLAlchemy writes a time there, so that texts compare as times do.
    seconds = compiler.process(element.clauses, **options)
    return f"strftime('%Y-%m-%d %H:%M:%f000', 'now', {seconds} || ' seconds')"


class Statements:
    """For one table in one dialect. Parameters start with p_, unlike any column."""

    def __init__(self, table: Table, dialect: str) -> None:
        self._table = table
        self._postgresql = dialect == "postgresql"
        c = table.c
        tenant, key = _text("p_tenant"), _text("p_key")
        now = time_after(literal(0.0, Double()))
        expiry = time_after(bindparam("p_ttl", type_=Double()))
        seen = bindparam("p_created_at", type_=DateTime(timezone=True))
        record = and_(c.tenant_id == tenant, c.idempotency_key == key)
        self._expired = and_(c.expires_at.is_not(None), c.expires_at <= now)
        pending: dict[str, Any] = {
            "operation": _text("p_operation"),
            "request_hash": _text("p_request_hash"),
            "response": null(),
            "status_code": literal(DEFAULT_STATUS, Integer()),
            "state": literal(PENDING, String()),
            "created_at": now,
            "expires_at": expiry,
        }
        place = {"tenant_id": tenant, "idempotency_key": key}
        failed = {**pending, "state": literal(FAILED, String())}

        self.read = select(table, self._expired.label("expired")).where(record)
        self.lock = (
            self._insert({**place, **pending}).on_conflict_do_nothing().returning(c.created_at)
        )
        # Only as it was seen: somebody else may have taken it over since.
        as_seen = and_(record, c.created_at == seen, c.state == _text("p_state"))
        self.take_over = (
            update(table)
            .where(as_seen, self._nobody_works_on_it())
            .values(**pending)
            .returning(c.created_at)
        )
        # Whoever has not locked the key with this very object does not know when that was; its
        # lock must still last.
        held = or_(c.created_at == seen, and_(seen.is_(None), ~self._expired))
        mine = and_(record, c.state == PENDING, held)
        self.complete = (
            update(table)
            .where(mine)
            .values(
                state=COMPLETED,
                response=bindparam("p_response", type_=JSON()),
                status_code=bindparam("p_status_code", type_=Integer()),
                expires_at=expiry,
            )
            .returning(c.state)
        )
        self.fail = (
            update(table).where(mine).values(state=FAILED, expires_at=expiry).returning(c.state)
        )
        self.record_failure = self._insert({**place, **failed}).on_conflict_do_update(
            index_elements=[c.tenant_id, c.idempotency_key],
            set_=failed,
            where=or_(self._expired, c.state == FAILED),
        )

    def cleanup(self, *, all_tenants: bool, limit: int | None) -> Any:
        c = self._table.c
        tenant = true() if all_tenants else c.tenant_id == _text("p_tenant")
        # What somebody is about to take over is left alone, not waited for.
        found = select(c.tenant_id, c.idempotency_key).where(self._expired, tenant).limit(limit)
        found = found.with_for_update(skip_locked=True)
        return delete(self._table).where(tuple_(c.tenant_id, c.idempotency_key).in_(found))

    def _insert(self, values: dict[str, Any]) -> Any:
        if not self._postgresql:
            return sqlite.insert(self._table).values(values)
        row = select(*values.values()).where(self._nobody_works_on_it())
        return postgresql.insert(self._table).from_select(list(values), row)

    def _nobody_works_on_it(self) -> ColumnElement[bool]:
        """True for one transaction at a time; held to its end, or to that of its savepoint.

        The primary key alone would keep it right, but an insert that meets another transaction's
        row waits for as long as that is open. SQLite has one writer anyway.
        """
        if not self._postgresql:
            return true()
        table = self._table
        schema = func.current_schema() if table.schema is None else literal(table.schema, String())
        name = func.concat(schema, literal(f".{table.name}:", String()), _text("p_name"))
        return func.pg_try_advisory_xact_lock(func.hashtextextended(name, 0))


def _text(name: str) -> Any:
    return bindparam(name, type_=String())
