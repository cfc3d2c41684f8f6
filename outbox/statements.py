"""The statements that write events, one each, as SQLAlchemy constructs.

Constructs rather than texts, so that schemas, prefixes and `schema_translate_map` work.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import CTE, Column, Insert, bindparam, column, func, insert, select, text
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.dialects.postgresql import Insert as Upsert
from sqlalchemy.dialects.postgresql import insert as upsert  # SQLite renders its ON CONFLICT too
from sqlalchemy.engine import Connection, Dialect
from sqlalchemy.sql.dml import ReturningInsert
from sqlalchemy.types import BigInteger, TypeEngine

from outbox.notification import Notification
from outbox.rows import Row
from outbox.tables import Tables

# Made here, so not to be given: the transaction's id and the row's own.
GENERATED = ("xid", "id")

KeyId = tuple[str, str]
"""(topic, key): what a seq counts."""


class Statements:
    """The statements of one outbox, made once, so that SQLAlchemy compiles them once."""

    def __init__(self, tables: Tables, channel: str) -> None:
        log, seq = tables.log, tables.seq
        self._compiled: WeakKeyDictionary[Dialect, Any] = WeakKeyDictionary()
        # inline(): a single row would else get a RETURNING for its id, which nobody reads.
        self.plain = insert(log).inline()
        """Rows without a seq: one INSERT, whatever their number."""
        self.bulk = bulk(tables)
        """The same for several rows on PostgreSQL: a single statement, also for the server."""
        self.delayed = insert(tables.delayed).inline()
        self.routed = log.update()
        """Never run: what is asked about when the session has to choose a database."""
        self.skipping = skipping(tables)
        self.versioned = versioned(tables)
        self.notify = Notification(channel)
        self.read_meta = select(tables.meta.c.name, tables.meta.c.lanes)
        self.claim_meta = upsert(tables.meta).on_conflict_do_nothing()
        """The first writer of a database that has no count yet writes its own."""
        self.insert_each = self.skipping.returning(log.c.event_id)
        self.count_up = _counting(tables, upsert(seq)).returning(seq.c.seq)
        """SQLite's way to `versioned`: one upsert a key for the numbers, then the rows."""

    def insert_one(self, connection: Connection, row: Row) -> None:
        """One row without a number on PostgreSQL, the commonest of all transactions: the text is
        kept per dialect and handed to the driver, which spares a sixth of SQLAlchemy's work. Only
        a schema_translate_map must be put into the text each time."""
        if connection.get_execution_options().get("schema_translate_map"):
            connection.execute(self.plain, row)
            return
        compiled = self._compiled.get(connection.dialect)
        if compiled is None:
            compiled = self.plain.compile(dialect=connection.dialect, column_keys=list(row))
            self._compiled[connection.dialect] = compiled
        names = compiled.positiontup
        parameters: Any = row if names is None else tuple([row[name] for name in names])
        connection.exec_driver_sql(compiled.string, parameters)


def skipping(tables: Tables) -> Upsert:
    """Rows with a seq of their own; a repeated (topic, key, seq) is left out, not an error."""
    return upsert(tables.log).on_conflict_do_nothing(
        index_elements=["topic", "key", "seq"], index_where=text("seq IS NOT NULL")
    )


def bulk(tables: Tables) -> Insert:
    """Rows without a number, in the order of the arrays; `versioned_arrays` has what it takes."""
    columns = _written(tables)
    rows = _unnest([(c.name, c.type) for c in columns], "row", None)
    source = select(*[rows.c[c.name] for c in columns]).order_by(rows.c.ordinal)
    return insert(tables.log).from_select([c.name for c in columns], source)


def versioned(
    tables: Tables, arrays: dict[str, list[Any]] | None = None, *, skip: bool = True
) -> ReturningInsert[Any]:
    """PostgreSQL's way to insert numbered rows: the counters and the rows in one statement.

    The counters are taken in sorted order (see `versioned_arrays`), so that writers which share
    several keys queue instead of deadlocking. Rows are inserted in the order they were emitted. A
    row that repeats a (topic, key, seq) is missing from what RETURNING gives back, or with
    `skip=False` an error of the database.
    """
    columns = _written(tables)
    rows = _unnest([(c.name, c.type) for c in columns] + [("back", BigInteger())], "row", arrays)
    counters = _counters(tables, arrays)
    seq = func.coalesce(rows.c.seq, counters.c.seq - rows.c.back)
    source = (
        select(*[seq if c.name == "seq" else rows.c[c.name] for c in columns])
        .select_from(
            rows.outerjoin(
                counters,
                (counters.c.topic == rows.c.topic) & (counters.c.key == rows.c.key),
            )
        )
        .order_by(rows.c.ordinal)
    )
    target = skipping(tables) if skip else upsert(tables.log)
    statement = target.from_select([c.name for c in columns], source)
    return statement.returning(tables.log.c.event_id, tables.log.c.seq)


def versioned_arrays(rows: Sequence[Row], auto: Sequence[bool]) -> dict[str, list[Any]]:
    """The arguments of `versioned`: a list a column, and the counters each key needs.

    `back` says how far behind the key's new counter a row's number lies: the last AUTO row of a
    key has 0, the one before it 1.
    """
    taken: Counter[KeyId] = Counter()
    back: list[int | None] = [None] * len(rows)
    for index in range(len(rows) - 1, -1, -1):
        if auto[index]:
            key = (rows[index]["topic"], rows[index]["key"])
            back[index] = taken[key]
            taken[key] += 1
    ordered = sorted(taken)
    return {
        **{f"row_{name}": [row[name] for row in rows] for name in rows[0]},
        "row_back": back,
        "counter_topic": [topic for topic, _ in ordered],
        "counter_key": [key for _, key in ordered],
        "counter_seq": [taken[key] for key in ordered],
    }


def _written(tables: Tables) -> list[Column[Any]]:
    return [column for column in tables.log.c if column.name not in GENERATED]


def _counters(tables: Tables, arrays: dict[str, list[Any]] | None) -> CTE:
    table = tables.seq
    wanted = _unnest([(c.name, c.type) for c in table.c], "counter", arrays)
    statement = upsert(table).from_select(
        ["topic", "key", "seq"],
        select(wanted.c.topic, wanted.c.key, wanted.c.seq).order_by(wanted.c.ordinal),
    )
    counting = _counting(tables, statement)
    return counting.returning(table.c.topic, table.c.key, table.c.seq).cte("taken")


def _counting(tables: Tables, statement: Upsert) -> Upsert:
    return statement.on_conflict_do_update(
        index_elements=["topic", "key"],
        set_={"seq": tables.seq.c.seq + statement.excluded.seq},
    )


def _unnest(
    columns: Sequence[tuple[str, TypeEngine[Any]]],
    name: str,
    arrays: dict[str, list[Any]] | None,
) -> Any:
    """`unnest(…) WITH ORDINALITY`: one prepared statement for any number of rows."""
    arguments = [
        bindparam(key := f"{name}_{label}", value=arrays and arrays[key], type_=ARRAY(kind))
        for label, kind in columns
    ]
    typed: list[Any] = [column(label, kind) for label, kind in columns]
    return (
        func.unnest(*arguments)
        .table_valued(*typed, with_ordinality="ordinal", name=name)
        .render_derived()
    )
