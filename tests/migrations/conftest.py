"""One database for the whole folder, emptied after each test: a new one takes half a second."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from sqlalchemy import Engine, create_engine, make_url, text
from sqlalchemy.pool import NullPool

SCHEMAS = "SELECT nspname FROM pg_namespace WHERE nspname !~ '^(pg_|information_schema$)'"


def psycopg_engine(url: str, **options: object) -> Engine:
    sync = make_url(url).set(drivername="postgresql+psycopg")
    return create_engine(sync, poolclass=NullPool, **options)


@pytest.fixture(scope="session")
def migrations_database(postgres_url: str) -> Iterator[str]:
    name = f"migrations_{uuid4().hex[:12]}"
    server = psycopg_engine(postgres_url, isolation_level="AUTOCOMMIT")
    with server.connect() as connection:
        connection.exec_driver_sql(f"CREATE DATABASE {name}")
        yield make_url(postgres_url).set(database=name).render_as_string(hide_password=False)
        connection.exec_driver_sql(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def database(migrations_database: str) -> Iterator[str]:
    """The URL of an empty PostgreSQL database, for asyncpg."""
    yield migrations_database
    with psycopg_engine(migrations_database).begin() as connection:
        for schema in connection.exec_driver_sql(SCHEMAS).scalars().all():
            connection.exec_driver_sql(f'DROP SCHEMA "{schema}" CASCADE')
        connection.exec_driver_sql("CREATE SCHEMA public")


@pytest.fixture
def postgres_engine(database: str) -> Engine:
    """An empty PostgreSQL database."""
    return psycopg_engine(database)


@pytest.fixture
def sqlite_engine(tmp_path: Path) -> Engine:
    """An empty SQLite database."""
    return create_engine(f"sqlite:///{tmp_path / 'outbox.db'}", poolclass=NullPool)


@pytest.fixture(params=["postgresql", "sqlite"])
def engine(request: pytest.FixtureRequest) -> Engine:
    """An empty database of each kind in turn."""
    name = "postgres_engine" if request.param == "postgresql" else "sqlite_engine"
    return request.getfixturevalue(name)


@pytest.fixture
def snapshot() -> Callable[..., list[tuple[object, ...]]]:
    """Everything the catalogs say of the outbox's tables, for comparing two databases."""
    return snapshot_of


def snapshot_of(engine: Engine, schema: str | None = None) -> list[tuple[object, ...]]:
    with engine.connect() as connection:
        if engine.dialect.name == "sqlite":
            rows = connection.exec_driver_sql(SQLITE_CATALOG).all()
            return sorted((row[0], row[1], tidied(row[2])) for row in rows)
        found: list[tuple[object, ...]] = []
        for query in POSTGRESQL_CATALOGS:
            rows = connection.execute(text(query), {"schema": schema or "public"}).all()
            found += sorted(tuple(row) for row in rows)
        return found


def tidied(sql: str) -> str:
    """SQLite keeps statements as they were written: even out what makes no difference."""
    sql = " ".join(sql.split()).replace("(CURRENT_TIMESTAMP)", "CURRENT_TIMESTAMP")
    key = "PRIMARY KEY AUTOINCREMENT"
    return sql.replace(f"{key} NOT NULL", f"NOT NULL {key}")


SQLITE_CATALOG = """
    SELECT type, name, sql FROM sqlite_master
    WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%' AND tbl_name NOT LIKE '%outbox_version'
        AND tbl_name NOT IN ('alembic_version', 'orders')
"""
_OURS = """
    JOIN pg_namespace n ON n.oid = c.relnamespace AND n.nspname = :schema
    WHERE c.relname !~ '(outbox_version|outbox_version_pkc|^alembic_version.*|^orders.*)$'
"""
POSTGRESQL_CATALOGS = [
    f"""SELECT 'relation', c.relname, c.relkind::text, c.relpersistence::text,
               c.reloptions::text, obj_description(c.oid)
        FROM pg_class c {_OURS}""",
    f"""SELECT 'column', c.relname, a.attnum, a.attname, format_type(a.atttypid, a.atttypmod),
               a.attnotnull, pg_get_expr(d.adbin, d.adrelid), a.attidentity::text,
               a.attgenerated::text, a.attcollation, a.attstorage::text
        FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid AND a.attnum > 0
        LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum {_OURS}""",
    f"""SELECT 'sequence', c.relname, s.seqtypid::regtype::text, s.seqstart, s.seqincrement,
               s.seqmin, s.seqmax, s.seqcache, s.seqcycle
        FROM pg_sequence s JOIN pg_class c ON c.oid = s.seqrelid {_OURS}""",
    f"""SELECT 'constraint', c.relname, k.conname, k.convalidated, k.condeferrable,
               pg_get_constraintdef(k.oid)
        FROM pg_constraint k JOIN pg_class c ON c.oid = k.conrelid {_OURS}""",
    f"""SELECT 'index', c.relname, i.indisvalid, pg_get_indexdef(i.indexrelid)
        FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid {_OURS}""",
]
