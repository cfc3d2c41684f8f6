"""Servers that nobody else uses: where every xid, flush and key is the test's own doing."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from uuid import uuid4

import pytest

from projector.embedded import Postgres, Valkey
from support.lanes import Pipeline, pipeline

QUIET = {"autovacuum": "off", "max_prepared_transactions": 20}
"""Nobody takes an xid but the test."""
NEVER_FLUSHED = {**QUIET, "wal_writer_delay": "10s"}
"""Nobody flushes the log but commits that wait for it, and the source."""


@pytest.fixture(scope="session")
def quiet_postgres() -> Iterator[Postgres]:
    with Postgres(QUIET) as postgres:
        yield postgres


@pytest.fixture
def quiet_database(quiet_postgres: Postgres) -> str:
    return quiet_postgres.create_database(f"test_{uuid4().hex[:12]}")


@pytest.fixture
async def pipe(quiet_database: str, redis_url: str) -> AsyncIterator[Pipeline]:
    """One lane in an empty database."""
    async with pipeline(quiet_database, redis_url) as made:
        yield made


@pytest.fixture
def own_postgres(request: pytest.FixtureRequest) -> Iterator[Postgres]:
    """To be killed. Parametrize indirectly for settings of the test's own."""
    with Postgres({**NEVER_FLUSHED, **getattr(request, "param", {})}) as postgres:
        yield postgres


@pytest.fixture
def own_valkey(request: pytest.FixtureRequest) -> Iterator[Valkey]:
    """To be killed, emptied or filled. Parametrize indirectly for settings of the test's own."""
    with Valkey(getattr(request, "param", {})) as valkey:
        yield valkey


@pytest.fixture
async def own_pipe(quiet_database: str, own_valkey: Valkey) -> AsyncIterator[Pipeline]:
    """One lane in an empty database, to a Valkey of its own."""
    async with pipeline(quiet_database, own_valkey.url()) as made:
        yield made
