"""Writes pending events on a connection, inside its transaction. Never commits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING
from uuid import UUID

from sqlalchemy.engine import Connection

from outbox import keys
from outbox.errors import DuplicateSeq, KeyUnknown, NoTransaction
from outbox.notification import can_notify
from outbox.pending import Pending
from outbox.rows import Row, delayed_row, log_row
from outbox.statements import versioned_arrays
from outbox.versions import AUTO, mapped_version

if TYPE_CHECKING:
    from outbox.outbox import Outbox


def write(connection: Connection, items: Sequence[Pending]) -> None:
    """One statement for the log, one for what is delayed, and a NOTIFY if asked for, per outbox.

    Outboxes in the order of their tables' names, and keys sorted within them, so that writers who
    take `AUTO` numbers queue instead of deadlocking. After an error, roll back.
    """
    _check_transaction(connection)
    batches: dict[Outbox, list[Pending]] = {}
    for item in items:
        _resolve(item)
        batches.setdefault(item.outbox, []).append(item)
    for outbox, batch in sorted(batches.items(), key=lambda pair: pair[0].table.fullname):
        outbox.meet(connection)
        _write_log(connection, outbox, [i for i in batch if i.event.deliver_at is None])
        _write_delayed(connection, outbox, [i for i in batch if i.event.deliver_at is not None])
        if outbox.notifies and can_notify(connection) and any(map(_relayable, batch)):
            connection.exec_driver_sql(outbox.statements.notify.sql)


def _relayable(item: Pending) -> bool:
    """Written to the log: neither delayed nor left out."""
    return item.event.deliver_at is None and not item.skipped


def _check_transaction(connection: Connection) -> None:
    dialect = connection.dialect
    # Not on SQLite: there, AUTOCOMMIT plus an explicit BEGIN is SQLAlchemy's own recipe.
    if dialect.name == "postgresql" and dialect.detect_autocommit_setting(
        connection.connection.dbapi_connection  # type: ignore[arg-type]  # open: it is committing
    ):
        raise NoTransaction


def _resolve(item: Pending) -> None:
    """What only the flush could tell: a new object's primary key, a mapped version."""
    event = item.event
    key = event._key if event._key_owner is None else keys.key_text(event._key_owner)
    if key is None:
        raise KeyUnknown(event.id, event.type, event._key_owner)
    item.key = key
    if item.version_of is not None:
        if item.seq is None:  # no flush has raised it
            item.seq = mapped_version(item.version_of)
    elif event._seq is not AUTO:
        item.seq = event._seq


def _write_delayed(connection: Connection, outbox: Outbox, items: Sequence[Pending]) -> None:
    if items:
        rows = [delayed_row(item.event, item.key, outbox.lanes) for item in items]
        connection.execute(outbox.statements.delayed, rows)


def _write_log(connection: Connection, outbox: Outbox, items: Sequence[Pending]) -> None:
    rows = [log_row(item.event, item.key, item.seq, outbox.lanes) for item in items]
    auto = [item.event._seq is AUTO and item.version_of is None for item in items]
    seqs = insert_rows(connection, outbox, rows, auto)
    if seqs is None:
        return
    _check_duplicates(items, seqs)
    for item, taken in zip(items, auto, strict=True):
        if taken:
            item.seq = seqs[item.event.id][0]


Seqs = dict[UUID, list[int | None]]
"""The seqs under which each event was inserted; an event that was left out is missing."""


def insert_rows(
    connection: Connection, outbox: Outbox, rows: Sequence[Row], auto: Sequence[bool]
) -> Seqs | None:
    """Insert into the log, taking numbers for the rows marked `auto`. None if no row has one."""
    on_postgresql = connection.dialect.name == "postgresql"
    if any(auto) or any(row["seq"] is not None for row in rows):
        insert = _insert_postgresql if on_postgresql else _insert_sqlite
        return insert(connection, outbox, rows, auto)
    if on_postgresql and len(rows) == 1:
        outbox.statements.insert_one(connection, rows[0])
    elif on_postgresql and rows:
        connection.execute(outbox.statements.bulk, versioned_arrays(rows, auto))
    elif rows:
        connection.execute(outbox.statements.plain, rows)
    return None


def _insert_postgresql(
    connection: Connection, outbox: Outbox, rows: Sequence[Row], auto: Sequence[bool]
) -> Seqs:
    inserted: Seqs = {}
    arrays = versioned_arrays(rows, auto)
    for event_id, seq in connection.execute(outbox.statements.versioned, arrays):
        inserted.setdefault(event_id, []).append(seq)
    return inserted


def _insert_sqlite(
    connection: Connection, outbox: Outbox, rows: Sequence[Row], auto: Sequence[bool]
) -> Seqs:
    """SQLite has no writing CTEs, but only one writer: two steps are as good as one."""
    numbered = [row for row, taken in zip(rows, auto, strict=True) if taken]
    counts = Counter((row["topic"], row["key"]) for row in numbered)
    last = {}
    for (topic, key), count in sorted(counts.items()):
        parameters = {"topic": topic, "key": key, "seq": count}
        last[topic, key] = connection.execute(outbox.statements.count_up, parameters).scalar_one()
    for row in reversed(numbered):
        row["seq"] = last[row["topic"], row["key"]]
        last[row["topic"], row["key"]] -= 1
    by_id = {row["event_id"]: row["seq"] for row in rows}
    inserted: Seqs = {}
    for (event_id,) in connection.execute(outbox.statements.insert_each, rows):
        inserted.setdefault(event_id, []).append(by_id[event_id])
    return inserted


def _check_duplicates(items: Sequence[Pending], inserted: Seqs) -> None:
    left = {event_id: len(seqs) for event_id, seqs in inserted.items()}
    for item in items:
        event = item.event
        if left.get(event.id, 0):
            left[event.id] -= 1
        elif item.on_duplicate == "skip" and item.seq is not None:
            item.skipped = True
        else:
            raise DuplicateSeq(event.id, event.topic, event.type, item.key, item.seq)
