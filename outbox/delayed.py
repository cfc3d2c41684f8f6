"""Delayed events become due: they move from their own table into the log."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

from sqlalchemy import delete, select
from sqlalchemy.engine import Connection

from outbox.writer import insert_rows

if TYPE_CHECKING:
    from outbox.outbox import Outbox


def move_due(
    connection: Connection, outbox: Outbox, *, limit: int = 500, now: datetime | None = None
) -> int:
    """Move what is due, in the order of its times, inside the connection's transaction. How many.

    Safe side by side: rows that another mover has locked are passed over. `now` is the clock of the
    caller, UTC; by default this machine's.
    """
    table = outbox.tables.delayed
    due = (
        select(table)
        .where(table.c.deliver_at <= (now or datetime.now(UTC)))
        .order_by(table.c.deliver_at, table.c.id)
        .limit(limit)
        .with_for_update(skip_locked=True)
    )
    found = [dict(row) for row in connection.execute(due).mappings()]
    if not found:
        return 0
    connection.execute(delete(table).where(table.c.id.in_([row["id"] for row in found])))
    auto = [row["auto"] for row in found]
    for row in found:
        row["seq"] = None
        for column in ("id", "deliver_at", "auto"):
            del row[column]
    insert_rows(connection, outbox, found, auto)
    return len(found)
