"""What a database really holds: the live shape of a table, from PostgreSQL's or SQLite's catalogs.

Names of constraints and indexes are kept for messages only; nothing is found by them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, NamedTuple

from sqlalchemy import Row, Table, text
from sqlalchemy.engine import Connection


@dataclass(frozen=True, slots=True)
class LiveSequence:
    """Where an identity column gets its numbers."""

    name: str
    cache: int
    increment: int
    cycles: bool
    logged: bool


@dataclass(frozen=True, slots=True)
class LiveColumn:
    name: str
    type: str
    nullable: bool
    default: str | None
    generated: bool
    identity: str | None
    """'ALWAYS', 'BY DEFAULT', or None."""
    sequence: LiveSequence | None = None


@dataclass(frozen=True, slots=True)
class LiveIndex:
    name: str
    columns: tuple[str, ...]
    unique: bool
    where: str | None
    problem: str | None
    """Why it cannot be used as it is."""


@dataclass(frozen=True, slots=True)
class LiveCheck:
    expression: str
    enforced: bool


@dataclass(frozen=True, slots=True)
class LiveTable:
    kind: str
    """'table' is what we need; else a view, a partitioned table …"""
    persistence: str
    """'LOGGED', 'UNLOGGED' or 'TEMPORARY'."""
    columns: dict[str, LiveColumn]
    """In the order of the table."""
    primary_key: tuple[str, ...]
    indexes: tuple[LiveIndex, ...]
    checks: tuple[LiveCheck, ...]
    autoincrement: bool = False


def schema_of(connection: Connection, table: Table) -> str | None:
    """The schema that statements on this connection look into, after schema_translate_map."""
    translate = connection.get_execution_options().get("schema_translate_map") or {}
    schema: str | None = translate.get(table.schema, table.schema)
    return schema


def name_of(connection: Connection, table: Table) -> str:
    """The table's name for messages, in the schema it is looked for."""
    schema = schema_of(connection, table)
    return table.name if schema is None else f"{schema}.{table.name}"


def read(connection: Connection, table: Table) -> LiveTable | None:
    """The table as it is, or None if a statement on this connection would not find it."""
    schema = schema_of(connection, table)
    if connection.dialect.name == "postgresql":
        return _read_postgresql(connection, table.name, schema)
    return _read_sqlite(connection, table.name, schema or "main")


_KINDS = {"r": "table", "p": "partitioned table", "v": "view", "m": "materialized view"}
_PERSISTENCE = {"p": "LOGGED", "u": "UNLOGGED", "t": "TEMPORARY"}
_IDENTITY = {"a": "ALWAYS", "d": "BY DEFAULT"}

# "char" columns are cast to text: drivers do not agree on what they are.
_RELATION = text("""
    SELECT oid, relkind::text AS kind, relpersistence::text AS persistence
    FROM pg_class WHERE oid = to_regclass(CAST(:name AS text))
""")

_COLUMNS = text("""
    SELECT a.attname AS name, format_type(a.atttypid, a.atttypmod) AS type,
           NOT a.attnotnull AS nullable, pg_get_expr(d.adbin, d.adrelid) AS default_,
           a.attgenerated::text <> '' AS generated, a.attidentity::text AS identity,
           q.relname AS sequence, q.relpersistence::text AS persistence,
           s.seqcache AS cache, s.seqincrement AS increment, s.seqcycle AS cycles
    FROM pg_attribute a
    LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
    LEFT JOIN (
        pg_depend p JOIN pg_sequence s ON s.seqrelid = p.objid JOIN pg_class q ON q.oid = p.objid
    ) ON p.classid = 'pg_class'::regclass AND p.refclassid = 'pg_class'::regclass
        AND p.refobjid = a.attrelid AND p.refobjsubid = a.attnum AND p.deptype = 'i'
    WHERE a.attrelid = CAST(:oid AS oid) AND a.attnum > 0 AND NOT a.attisdropped
    ORDER BY a.attnum
""")

_INDEXES = text("""
    SELECT c.relname AS name, m.amname AS method, i.indisunique AS unique, i.indisprimary AS pk,
           i.indisvalid AND i.indisready AND i.indislive AS valid, i.indimmediate AS immediate,
           pg_get_expr(i.indpred, i.indrelid) AS where_,
           (SELECT array_agg(
                coalesce(a.attname::text, pg_get_indexdef(i.indexrelid, k.n::int, true))
                || CASE WHEN i.indoption[k.n - 1] & 1 = 1 THEN ' DESC' ELSE '' END ORDER BY k.n)
            FROM unnest(i.indkey::int2[]) WITH ORDINALITY AS k (attnum, n)
            LEFT JOIN pg_attribute a ON a.attrelid = i.indrelid AND a.attnum = k.attnum
                AND k.attnum <> 0
            WHERE k.n <= i.indnkeyatts) AS columns
    FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid JOIN pg_am m ON m.oid = c.relam
    WHERE i.indrelid = CAST(:oid AS oid)
    ORDER BY c.relname
""")

# NOT ENFORCED (PostgreSQL 18) shows as not validated too.
_CHECKS = text("""
    SELECT pg_get_expr(conbin, conrelid) AS expression, convalidated AS enforced
    FROM pg_constraint WHERE conrelid = CAST(:oid AS oid) AND contype = 'c'
    ORDER BY conname
""")


def _read_postgresql(connection: Connection, name: str, schema: str | None) -> LiveTable | None:
    quote = connection.dialect.identifier_preparer.quote_identifier
    qualified = ".".join(quote(part) for part in (schema, name) if part is not None)
    relation = connection.execute(_RELATION, {"name": qualified}).one_or_none()
    if relation is None:
        return None
    oid = {"oid": relation.oid}
    indexes = connection.execute(_INDEXES, oid).all()
    return LiveTable(
        kind=_KINDS.get(relation.kind, "relation of another kind"),
        persistence=_PERSISTENCE[relation.persistence],
        columns={row.name: _column(row) for row in connection.execute(_COLUMNS, oid)},
        primary_key=next((tuple(row.columns) for row in indexes if row.pk), ()),
        indexes=tuple(
            LiveIndex(row.name, tuple(row.columns), row.unique, row.where_, _index_problem(row))
            for row in indexes
        ),
        checks=tuple(
            LiveCheck(row.expression, row.enforced) for row in connection.execute(_CHECKS, oid)
        ),
    )


def _column(row: Row[Any]) -> LiveColumn:
    sequence = None
    if row.sequence is not None:
        logged = row.persistence == "p"
        sequence = LiveSequence(row.sequence, row.cache, row.increment, row.cycles, logged)
    default = None if row.generated else row.default_
    identity = _IDENTITY.get(row.identity)
    return LiveColumn(row.name, row.type, row.nullable, default, row.generated, identity, sequence)


def _index_problem(row: Row[Any]) -> str | None:
    if not row.valid:
        return "is invalid, as a failed CREATE INDEX CONCURRENTLY leaves it"
    if not row.immediate:
        return "is DEFERRABLE, which ON CONFLICT refuses"
    return None if row.method == "btree" else f"is a {row.method} index, not a btree"


_SQLITE_COLUMNS = text("""
    SELECT name, type, "notnull", dflt_value, pk, hidden
    FROM pragma_table_xinfo(:table, :schema) ORDER BY cid
""")
_SQLITE_INDEXES = text("""
    SELECT name, "unique" AS is_unique FROM pragma_index_list(:table, :schema) ORDER BY name
""")
_SQLITE_INDEX_COLUMNS = text("""
    SELECT coalesce(name, '(expression)') || CASE WHEN "desc" THEN ' DESC' ELSE '' END
    FROM pragma_index_xinfo(:index, :schema) WHERE "key" ORDER BY seqno
""")
_NOT_SQL = re.compile(r"--[^\n]*|/\*.*?\*/|'(?:[^']|'')*'", re.DOTALL)
_CHECK = re.compile(r"\bCHECK\s*\(((?:[^()]|\([^()]*\))*)\)", re.IGNORECASE)
_WHERE = re.compile(r"\bWHERE\b(.*)$", re.IGNORECASE | re.DOTALL)
_AUTOINCREMENT = re.compile(r"\bAUTOINCREMENT\b", re.IGNORECASE)


def _read_sqlite(connection: Connection, name: str, schema: str) -> LiveTable | None:
    sources = _sqlite_sources(connection, name, schema)
    if name not in sources:
        return None
    place = {"table": name, "schema": schema}
    columns = connection.execute(_SQLITE_COLUMNS, place).all()
    return LiveTable(
        kind=sources[name].kind,
        persistence="LOGGED",
        columns={row.name: _sqlite_column(row) for row in columns if row.hidden != 1},
        primary_key=tuple(row.name for row in sorted(columns, key=lambda row: row.pk) if row.pk),
        indexes=tuple(
            LiveIndex(
                row.name,
                tuple(
                    connection.scalars(_SQLITE_INDEX_COLUMNS, {"index": row.name, "schema": schema})
                ),
                bool(row.is_unique),
                _where(sources[row.name].sql),
                None,
            )
            for row in connection.execute(_SQLITE_INDEXES, place).all()
        ),
        checks=tuple(LiveCheck(found, True) for found in _CHECK.findall(sources[name].sql)),
        autoincrement=_AUTOINCREMENT.search(sources[name].sql) is not None,
    )


class _Source(NamedTuple):
    kind: str
    sql: str
    """Without comments and string literals."""


def _sqlite_sources(connection: Connection, name: str, schema: str) -> dict[str, _Source]:
    """The statements that made the table and its indexes."""
    master = f"{connection.dialect.identifier_preparer.quote_identifier(schema)}.sqlite_master"
    # Put in is only the name of an attached database, quoted.
    statement = f"SELECT name, type, coalesce(sql, '') FROM {master} WHERE tbl_name = :table"  # noqa: S608
    rows = connection.execute(text(statement), {"table": name})
    return {name: _Source(kind, _NOT_SQL.sub("", sql)) for name, kind, sql in rows}


def _sqlite_column(row: Row[Any]) -> LiveColumn:
    nullable = not row.notnull and not row.pk
    generated = row.hidden in (2, 3)
    return LiveColumn(row.name, row.type, nullable, row.dflt_value, generated, None)


def _where(source: str) -> str | None:
    found = _WHERE.search(source)
    return None if found is None else found[1]
