"""Column types and defaults that SQLAlchemy does not have."""

from __future__ import annotations

from typing import Any

from sqlalchemy.dialects.postgresql.base import ischema_names
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql.functions import FunctionElement
from sqlalchemy.types import UserDefinedType


class XID8(UserDefinedType[Any]):
    """PostgreSQL's 64-bit transaction id, which never wraps."""

    cache_ok = True

    def get_col_spec(self, **_: object) -> str:
        return "xid8"


class RowId(UserDefinedType[int]):
    """SQLite's AUTOINCREMENT key. Without that word, SQLite reuses the ids of pruned rows."""

    cache_ok = True

    def get_col_spec(self, **_: object) -> str:
        return "INTEGER PRIMARY KEY AUTOINCREMENT"


class current_xid(FunctionElement[Any]):  # noqa: N801  # an SQL function
    """The id of the running transaction, assigned now if it has none. 0 where there is none."""

    inherit_cache = True


@compiles(current_xid, "postgresql")
def _postgresql_xid(*_: object, **__: object) -> str:
    return "pg_current_xact_id()"


@compiles(current_xid)
def _other_xid(*_: object, **__: object) -> str:
    return "0"


def register() -> None:
    """Let reflection, and so Alembic, recognise xid8 columns instead of warning of them."""
    ischema_names.setdefault("xid8", XID8)
