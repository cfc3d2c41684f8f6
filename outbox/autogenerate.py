"""Alembic plugin: what `alembic revision --autogenerate` writes for our tables is right as it is.

Alembic loads this module by its entry point in every process that imports alembic, so it imports
nothing at the top that SQLAlchemy alone would not, and alembic itself only when it is called.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from types import ModuleType
from typing import TYPE_CHECKING, Any

from sqlalchemy import BigInteger, Column, Integer, MetaData, PrimaryKeyConstraint, Table
from sqlalchemy.schema import conv
from sqlalchemy.types import TypeEngine

from outbox.tables import MARK, Tables
from outbox.types import XID8, RowId, register

if TYPE_CHECKING:
    from alembic.autogenerate.api import AutogenContext
    from alembic.operations.ops import CreateTableOp, ExecuteSQLOp, UpgradeOps
    from alembic.runtime.plugins import Plugin
    from alembic.util import PriorityDispatchResult


class _PluginModule(ModuleType):
    """Until 1.20.0 Alembic iterates over the module that an entry point names, and else fails."""

    def __iter__(self) -> Iterator[ModuleType]:
        yield self


sys.modules[__name__].__class__ = _PluginModule

Place = tuple[str | None, str]
"""A table's schema (None: the connection's own) and name."""

INBOX = ("inbox_claims", "idempotency", "inbox_handled")
"""The tables of `projector migrate` that the package `inbox` declares."""


def setup(plugin: Plugin) -> None:
    from alembic.util import DispatchPriority

    first, last = DispatchPriority.FIRST, DispatchPriority.LAST
    add = plugin.add_autogenerate_comparator
    add(_prepare, "schema", "oncebox", priority=first)
    add(_rewrite, "autogenerate", "oncebox", priority=last)
    # Alembic would ask SQLite for an IDENTITY, which it does not have.
    add(_leave_ids_alone, "column", "server_default", qualifier="sqlite", priority=first)


def _prepare(
    context: AutogenContext, _: UpgradeOps, schemas: set[str | None]
) -> PriorityDispatchResult:
    """Before tables are compared: which of those in the database are to be looked at."""
    from alembic.util import PriorityDispatchResult

    register()
    _render_our_types(context)
    ours = _our_places(context)
    # Without include_schemas, Alembic would not find our tables in their schema, and would create
    # them again with each revision. We look there too, but at our own tables only.
    added = {schema for schema, _ in ours} - schemas
    if added:
        added &= set(context.inspector.get_schema_names())
    schemas |= added
    managed = _managed_places(context, schemas)

    def include(name: str | None, kind: str, parents: Any) -> bool:
        if kind != "table" or name is None:
            return True
        place = (parents["schema_name"], name)
        return place in ours or (place[0] not in added and place not in managed)

    context._name_filters.append(include)
    return PriorityDispatchResult.CONTINUE


def _our_places(context: AutogenContext) -> set[Place]:
    own = context.dialect.default_schema_name
    return {
        (None if table.schema == own else table.schema, table.name)
        for table in context.sorted_tables
        if table.info.get(MARK)
    }


def _managed_places(context: AutogenContext, schemas: set[str | None]) -> set[Place]:
    """The tables of `projector migrate`: a foreign Alembic must not drop what it does not know."""
    places: set[Place] = set()
    for schema in schemas:
        names = set(context.inspector.get_table_names(schema=schema))
        for version in [name for name in names if name.endswith("outbox_version")]:
            prefix = version.removesuffix("outbox_version")
            tables = Tables(MetaData(), lanes=1, schema=None, prefix=prefix)
            if {tables.log.name, tables.meta.name} <= names:
                ours = {table.name for table in tables.all()} | {f"{prefix}{it}" for it in INBOX}
                places |= {(schema, version), *((schema, name) for name in ours)}
    return places


def _render_our_types(context: AutogenContext) -> None:
    given = context.opts.get("render_item")

    def render(kind: str, item: object, context: AutogenContext) -> Any:
        rendered = given(kind, item, context) if given else False
        if rendered is not False or kind != "type" or not isinstance(item, XID8 | RowId):
            return rendered
        context.imports.add("import outbox.types")
        return f"outbox.types.{type(item).__name__}()"

    context.opts["render_item"] = render


def _leave_ids_alone(*arguments: Any) -> PriorityDispatchResult:
    from alembic.util import PriorityDispatchResult

    column: Column[Any] = arguments[-1]
    if column.table.info.get(MARK) and column.identity is not None:
        return PriorityDispatchResult.STOP
    return PriorityDispatchResult.CONTINUE


def _rewrite(context: AutogenContext, upgrade: UpgradeOps) -> PriorityDispatchResult:
    """After tables were compared: what is created is said in the words of the one database."""
    from alembic.operations.ops import CreateTableOp
    from alembic.util import PriorityDispatchResult

    schemas: set[str] = set()
    for index, operation in enumerate(upgrade.ops):
        if isinstance(operation, CreateTableOp) and operation.info.get(MARK):
            upgrade.ops[index] = _plain(operation, context.dialect.name)
            schemas |= {operation.schema} if operation.schema else set()
    if context.dialect.name == "postgresql":
        missing = schemas - set(context.inspector.get_schema_names())
        upgrade.ops[:0] = [_create_schema(context, schema) for schema in sorted(missing)]
    return PriorityDispatchResult.CONTINUE


def _plain(operation: CreateTableOp, dialect: str) -> CreateTableOp:
    """The table as this one database needs it, without variants for others."""
    from alembic.operations.ops import CreateTableOp

    table = operation.to_table()  # a copy
    table.info.clear()
    for name, kind in _TYPES.get(dialect, {}).items():
        if name in table.c:
            table.c[name].type = kind
    if dialect == "sqlite" and "id" in table.c:
        _autoincrement(table)
    return CreateTableOp.from_table(table)


_TYPES: dict[str, dict[str, TypeEngine[Any]]] = {
    "postgresql": {"xid": XID8(), "id": BigInteger()},
    "sqlite": {"xid": BigInteger(), "id": Integer()},
}


def _autoincrement(table: Table) -> None:
    name = table.primary_key.name
    for column in list(table.primary_key):
        column.primary_key = False
    table.append_constraint(PrimaryKeyConstraint("id", name=conv(str(name))))
    table.c.id.server_default = table.c.id.identity = None
    table.kwargs["sqlite_autoincrement"] = True


def _create_schema(context: AutogenContext, schema: str) -> ExecuteSQLOp:
    from alembic.operations.ops import ExecuteSQLOp, MigrateOperation, ModifyTableOps

    class CreateSchemaOp(ExecuteSQLOp):
        def reverse(self) -> MigrateOperation:
            return ModifyTableOps("", [])  # nothing: others may use the schema by then

        def to_diff_tuple(self) -> tuple[Any, ...]:
            return ("add_schema", schema)

    quoted = context.dialect.identifier_preparer.quote_schema(schema)
    return CreateSchemaOp(f"CREATE SCHEMA IF NOT EXISTS {quoted}")
