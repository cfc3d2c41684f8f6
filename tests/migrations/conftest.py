"""One database for the whole folder, emptied after each test: a new one takes half a second."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from sqlalchemy import Engine, create_engine, make_url
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
