"""Compares a live database with what an outbox needs, and names every difference."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

from sqlalchemy import Table
from sqlalchemy.engine import Connection

from outbox import catalog
from outbox.catalog import LiveTable, name_of
from outbox.comparison import Comparison, plain

if TYPE_CHECKING:
    from outbox.outbox import Outbox


def differences(connection: Connection, outbox: Outbox) -> list[str]:
    """A sentence for each difference; empty if the database is as the outbox needs it.

    Reads the catalogs and the meta table; writes nothing.
    """
    return [line for table in outbox.tables.all() for line in _of_table(connection, outbox, table)]


def missing_tables(connection: Connection, outbox: Outbox) -> list[str]:
    """The names of those of the outbox's tables that are not there."""
    return [
        name_of(connection, table)
        for table in outbox.tables.all()
        if catalog.read(connection, table) is None
    ]


def _of_table(connection: Connection, outbox: Outbox, table: Table) -> Iterator[str]:
    live = catalog.read(connection, table)
    name = name_of(connection, table)
    if live is None:
        yield (
            f"table {name} is missing: run `projector migrate`, your own Alembic migration, "
            "or metadata.create_all"
        )
        return
    yield from Comparison(connection, table, live).lines()
    if table is outbox.tables.log:
        yield from _lanes(name, live, outbox.lanes)
    if table is outbox.tables.meta and set(table.c.keys()) <= set(live.columns):
        yield from _meta(connection, outbox)


def _lanes(name: str, live: LiveTable, lanes: int) -> Iterator[str]:
    checks = {_lane_range(check.expression): check for check in live.checks}
    checks.pop(None, None)
    if not checks:
        yield (
            f"{name} has no CHECK that lane is from 0 to {lanes - 1}: a writer with another lane "
            "count would put events where no relay looks"
        )
    for bounds, check in checks.items():
        assert bounds is not None
        if bounds != (0, lanes - 1):
            yield (
                f"a CHECK of {name} allows lanes {bounds[0]} to {bounds[1]}, expected 0 to "
                f"{lanes - 1}: the table was made for another lane count than lanes={lanes}"
            )
        elif not check.enforced:
            yield f"the CHECK on {name}.lane is NOT VALID or NOT ENFORCED: validate it"


def _meta(connection: Connection, outbox: Outbox) -> Iterator[str]:
    name = name_of(connection, outbox.tables.meta)
    for row in connection.execute(outbox.statements.read_meta):
        if row.name != outbox.name:
            yield (
                f"{name} says that these tables belong to outbox {row.name!r}, not to "
                f"{outbox.name!r}: pass name={row.name!r}, or use other tables (schema=, prefix=)"
            )
        if row.lanes != outbox.lanes:
            yield (
                f"{name} says that these tables have {row.lanes} lanes, not {outbox.lanes}: "
                f"pass lanes={row.lanes}"
            )


_BOUND = re.compile(r"lane(>=|>|<=|<)(-?\d+)")


def _lane_range(expression: str) -> tuple[int, int] | None:
    """The lanes that a CHECK allows; None for one that is about something else."""
    low, high = -32768, 32767
    for part in plain(expression).split("and"):
        bound = _BOUND.fullmatch(part)
        if bound is None:
            return None
        number = int(bound[2])
        if ">" in bound[1]:
            low = max(low, number + (bound[1] == ">"))
        else:
            high = min(high, number - (bound[1] == "<"))
    return low, high
