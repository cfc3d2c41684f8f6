"""An outbox's lanes, driven by hand, and the status of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from projector.connect import engine_of
from projector.status import gather
from projector.status.report import Status
from support.lanes import Pipeline, pipeline

Look = Callable[[], Awaitable[Status]]


@pytest.fixture
async def pipe(database: str, redis_url: str) -> AsyncIterator[Pipeline]:
    async with pipeline(database, redis_url) as made:
        yield made


@pytest.fixture
async def look(pipe: Pipeline, database: str) -> AsyncIterator[Look]:
    """The status as the command gathers it."""
    engine = engine_of(database)
    yield lambda: gather(engine, pipe.redis, pipe.outbox)
    await engine.dispose()
