from __future__ import annotations

from collections.abc import AsyncIterator
from uuid import uuid4

import pytest
from sqlalchemy import create_engine, make_url, text
from sqlalchemy.pool import NullPool

from support.backends import sqlite_backend
from support.desk import Desk, postgres_engine

POSTGRES = ["asyncpg", "psycopg", "psycopg_async"]
SQLITE = ["aiosqlite", "sqlite"]


async def _desk(request: pytest.FixtureRequest, driver: str) -> AsyncIterator[Desk]:
    if driver in SQLITE:
        desk = Desk(sqlite_backend(driver, request.getfixturevalue("tmp_path")).engine)
        await desk.create()
        yield desk
        await desk.dispose()
        return
    url = request.getfixturevalue("shared_postgres_url")
    schema = f"test_{uuid4().hex[:12]}"
    admin = create_engine(
        make_url(url).set(drivername="postgresql+psycopg"),
        isolation_level="AUTOCOMMIT",
        poolclass=NullPool,
    )
    with admin.connect() as connection:
        connection.execute(text(f"CREATE SCHEMA {schema}"))
        # A test that failed may have left a transaction behind.
        connection.execute(text("SET lock_timeout = '10s'"))
        desk = Desk(postgres_engine(driver, url, schema), schema)
        await desk.create()
        yield desk
        await desk.dispose()
        connection.execute(text(f"DROP SCHEMA {schema} CASCADE"))


@pytest.fixture(params=[*POSTGRES, *SQLITE])
async def desk(request: pytest.FixtureRequest) -> AsyncIterator[Desk]:
    """Each database and driver in turn, with the tables in it."""
    async for desk in _desk(request, request.param):
        yield desk


@pytest.fixture(params=POSTGRES)
async def postgres_desk(request: pytest.FixtureRequest) -> AsyncIterator[Desk]:
    """PostgreSQL under each driver."""
    async for desk in _desk(request, request.param):
        yield desk


@pytest.fixture
async def asyncpg_desk(request: pytest.FixtureRequest) -> AsyncIterator[Desk]:
    """PostgreSQL, for what has nothing to do with the driver."""
    async for desk in _desk(request, "asyncpg"):
        yield desk
