"""A lane with all that is kept beside it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from sqlalchemy.ext.asyncio import create_async_engine

from support.house import House
from support.lanes import pipeline


@pytest.fixture
async def house(database: str, redis_url: str) -> AsyncIterator[House]:
    async with pipeline(database, redis_url) as pipe:
        engine = create_async_engine(database)
        house = House(pipe, engine)
        async with engine.begin() as connection:
            await connection.run_sync(pipe.outbox.meet)
        house.connection = await pipe.connect()
        yield house
        await house.connection.close()
        await engine.dispose()
