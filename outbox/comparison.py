"""One table as it should be and as it is: a sentence for each difference.

What is needed is taken from the `Table`; indexes are compared by what they do, never by name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from sqlalchemy import Column, DefaultClause, Index, Table
from sqlalchemy.engine import Connection, Dialect
from sqlalchemy.schema import CreateIndex

from outbox.catalog import LiveColumn, LiveTable, name_of


class Comparison:
    def __init__(self, connection: Connection, table: Table, live: LiveTable) -> None:
        self.connection = connection
        self.dialect = connection.dialect
        self.on_postgresql = connection.dialect.name == "postgresql"
        self.table = table
        self.live = live
        self.name = name_of(connection, table)

    def lines(self) -> Iterator[str]:
        yield from self.kind()
        for column in self.table.c:
            yield from self.column(column)
        yield from self.strangers()
        yield from self.order()
        yield from self.primary_key()
        for index in sorted(self.table.indexes, key=lambda index: str(index.name)):
            yield from self.index(index)

    def kind(self) -> Iterator[str]:
        if self.live.kind != "table":
            yield f"{self.name} is a {self.live.kind}, expected a plain table"
        if self.live.persistence != "LOGGED":
            yield (
                f"{self.name} is {self.live.persistence}: a crash empties it, and what it held is "
                f"lost; ALTER TABLE {self.name} SET LOGGED, or create it anew"
            )

    def column(self, column: Column[Any]) -> Iterator[str]:
        label = f"{self.name}.{column.name}"
        live = self.live.columns.get(column.name)
        wanted = _type(column, self.dialect)
        if live is None:
            null = "NULL" if column.nullable else "NOT NULL"
            yield f"column {label} is missing, expected {wanted} {null}"
            return
        if not _same_type(live.type, wanted, self.on_postgresql):
            yield f"{label} is of type {live.type or 'none'}, expected {wanted}"
        if live.nullable and not column.nullable:
            yield f"{label} can be NULL, expected NOT NULL"
        if not live.nullable and column.nullable:
            yield f"{label} is NOT NULL, expected to allow NULL: events without it are refused"
        if live.generated:
            yield f"{label} is a generated column, expected a plain one: inserts would fail"
        yield from self.numbers(column, live) if column.identity else self.default(column, live)

    def default(self, column: Column[Any], live: LiveColumn) -> Iterator[str]:
        if not isinstance(column.server_default, DefaultClause):
            return
        wanted = str(column.server_default.arg.compile(dialect=self.dialect))  # type: ignore[union-attr]  # never a str in our tables
        label = f"{self.name}.{column.name}"
        if live.default is None:
            yield f"{label} has no default, expected {wanted}"
        elif column.name == "xid" and plain(live.default) != plain(wanted):
            yield (
                f"{label} has the default {live.default}, expected {wanted}: the relay tells by it "
                "which events have committed"
            )

    def numbers(self, column: Column[Any], live: LiveColumn) -> Iterator[str]:
        label = f"{self.name}.{column.name}"
        if not self.on_postgresql:
            if not self.live.autoincrement:
                yield (
                    f"{label} has no AUTOINCREMENT: SQLite would give the ids of pruned rows to "
                    "new ones; create the table anew"
                )
            return
        if live.identity != "ALWAYS":
            found = f"GENERATED {live.identity}" if live.identity else f"DEFAULT {live.default}"
            yield (
                f"{label} is {found}, expected GENERATED ALWAYS AS IDENTITY: a VALUES list of "
                "DEFAULTs could draw the id before the transaction id"
            )
        yield from self.sequence(column, live)

    def sequence(self, column: Column[Any], live: LiveColumn) -> Iterator[str]:
        label = f"{self.name}.{column.name}"
        sequence = live.sequence
        if sequence is None:
            return
        assert column.identity is not None
        cache = column.identity.cache
        if cache is not None and sequence.cache != cache:
            yield (
                f"{label} draws its ids with CACHE {sequence.cache}, expected {cache}: each "
                "connection would hand out ids from a block of its own, out of order; "
                f"ALTER TABLE {self.name} ALTER {column.name} SET CACHE {cache}"
            )
        if sequence.increment < 1 or sequence.cycles:
            yield f"{label}: sequence {sequence.name} must count up and never CYCLE"
        if not sequence.logged:
            yield (
                f"{label}: sequence {sequence.name} is UNLOGGED: after a crash it would give out "
                f"ids again; ALTER SEQUENCE {sequence.name} SET LOGGED"
            )

    def strangers(self) -> Iterator[str]:
        for live in self.live.columns.values():
            filled = live.nullable or live.default or live.generated or live.identity
            if live.name not in self.table.c and not filled:
                yield (
                    f"{self.name}.{live.name} is not ours, NOT NULL and without a default: every "
                    "insert would fail; give it a default or allow NULL"
                )

    def order(self) -> Iterator[str]:
        """Defaults are drawn in the order of the columns."""
        names = list(self.live.columns)
        if not self.on_postgresql or not {"xid", "id"} <= set(self.table.c.keys()) & set(names):
            return
        if names.index("xid") > names.index("id"):
            yield (
                f"{self.name}.xid comes after id, expected before: ids would be drawn before "
                "transaction ids, and the relay could miss events; create the table anew"
            )

    def primary_key(self) -> Iterator[str]:
        wanted = tuple(column.name for column in self.table.primary_key)
        if not self.on_postgresql and "id" in self.table.c:
            wanted = ("id",)
        if self.live.primary_key != wanted:
            found = _listed(self.live.primary_key) if self.live.primary_key else "missing"
            yield f"the primary key of {self.name} is {found}, expected {_listed(wanted)}"
        for index in self.live.indexes:
            if index.columns == wanted and index.unique and index.problem:
                yield f"the primary key of {self.name} {index.problem}"

    def index(self, index: Index) -> Iterator[str]:
        columns = tuple(column.name for column in index.columns)
        where = index.dialect_options[self.dialect.name]["where"]
        condition = "" if where is None else plain(str(where))
        alike = [live for live in self.live.indexes if live.columns == columns]
        for live in alike:
            same_rows = plain(live.where or "") == condition
            if same_rows and live.unique >= bool(index.unique) and live.problem is None:
                return
        create = self.statement(index)
        if not alike:
            yield f"{self.name} has no index on {_listed(columns)}: {create}"
        for live in alike:
            yield (
                f"index {live.name} of {self.name} on {_listed(columns)} "
                f"{live.problem or 'covers other rows or is not unique'}: drop it, then {create}"
            )

    def statement(self, index: Index) -> str:
        translate = self.connection.get_execution_options().get("schema_translate_map")
        compiled = CreateIndex(index).compile(
            dialect=self.dialect,
            schema_translate_map=translate,
            render_schema_translate=bool(translate),
        )
        return " ".join(str(compiled).split())


def _type(column: Column[Any], dialect: Dialect) -> str:
    return column.type.compile(dialect=dialect).lower()


def _same_type(live: str, wanted: str, exactly: bool) -> bool:
    """On SQLite a column's type is no more than its affinity."""
    return live == wanted if exactly else _affinity(live) == _affinity(wanted)


def _affinity(declared: str) -> str:
    """SQLite's own rules, in its own order."""
    rules = [("int", "integer"), ("char|clob|text", "text"), ("blob|^$", "blob")]
    rules += [("real|floa|doub", "real")]
    found = (kind for words, kind in rules if re.search(words, declared.lower()))
    return next(found, "numeric")


def plain(expression: str) -> str:
    """Without what deparsing adds: brackets, quotes, spaces, casts."""
    return re.sub(r"::\w+|[\s()\"'`\[\]]", "", expression.lower())


def _listed(columns: tuple[str, ...]) -> str:
    return f"({', '.join(columns)})"
