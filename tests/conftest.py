"""Servers for the tests: embedded ones, started once a run.

`TEST_DATABASE_URL` replaces the embedded PostgreSQL, only for tests that stay inside a schema of
their own (the fixture `schema`). Whatever creates databases, kills or limits uses the embedded one.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from uuid import uuid4

import pytest
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.pool import NullPool

from projector.embedded import Postgres, Valkey
from support.backends import Backend, postgres_backend, sqlite_backend

# A shell starts background jobs with SIGINT ignored, and every process of the tests would inherit
# that; what they test of Ctrl-C must not depend on how the tests were started.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def embedded_postgres() -> Iterator[Postgres]:
    with Postgres({"max_prepared_transactions": 20}) as postgres:
        yield postgres


@pytest.fixture(scope="session")
def postgres_url(embedded_postgres: Postgres) -> str:
    return embedded_postgres.url()


@pytest.fixture(scope="session")
def redis_url() -> Iterator[str]:
    """A server for tests that stay under their own name; it may be a user's."""
    given = os.environ.get("TEST_REDIS_URL")
    if given:
        yield given
        return
    with Valkey() as valkey:
        yield valkey.url()


@pytest.fixture
def database(postgres_url: str) -> Iterator[str]:
    """The URL of an empty database of the test's own."""
    name = f"test_{uuid4().hex[:12]}"
    with Admin(postgres_url) as execute:
        execute(f"CREATE DATABASE {name}")
        yield make_url(postgres_url).set(database=name).render_as_string(hide_password=False)
        execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture(scope="session")
def shared_postgres_url(request: pytest.FixtureRequest) -> str:
    """A server for tests that stay inside their own schema; it may be a user's."""
    given = os.environ.get("TEST_DATABASE_URL")
    return given or request.getfixturevalue("postgres_url")


@pytest.fixture(params=["asyncpg", "psycopg", "aiosqlite", "sqlite"])
def backend(request: pytest.FixtureRequest) -> Iterator[Backend]:
    """Each database and driver in turn, with nothing in it."""
    if "sqlite" in request.param:
        yield sqlite_backend(request.param, request.getfixturevalue("tmp_path"))
    else:
        yield from _postgres(request, request.param)


@pytest.fixture(params=["asyncpg", "psycopg"])
def postgres(request: pytest.FixtureRequest) -> Iterator[Backend]:
    """PostgreSQL under each driver."""
    yield from _postgres(request, request.param)


@pytest.fixture
def psycopg(request: pytest.FixtureRequest) -> Iterator[Backend]:
    """PostgreSQL under the sync driver, for tests with threads or two-phase commits."""
    yield from _postgres(request, "psycopg")


def _postgres(request: pytest.FixtureRequest, driver: str) -> Iterator[Backend]:
    url = request.getfixturevalue("shared_postgres_url")
    schema = f"test_{uuid4().hex[:12]}"
    with Admin(url) as execute:
        execute(f"CREATE SCHEMA {schema}")
        backend = postgres_backend(driver, url, schema)
        yield backend
        backend.dispose()
        execute(f"DROP SCHEMA {schema} CASCADE")


class Admin:
    """One autocommit connection, as a context that gives an execute function."""

    def __init__(self, url: str) -> None:
        sync = make_url(url).set(drivername="postgresql+psycopg")
        self.engine = create_engine(sync, isolation_level="AUTOCOMMIT", poolclass=NullPool)

    def __enter__(self) -> Callable[[str], object]:
        self.connection = self.engine.connect()
        return lambda statement: self.connection.execute(text(statement))

    def __exit__(self, *_: object) -> None:
        self.connection.close()
        self.engine.dispose()
