"""Streams, and a client that reads them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from support.streams import Streams


@pytest.fixture
async def streams(redis_url: str) -> AsyncIterator[Streams]:
    redis = Redis.from_url(redis_url)
    streams = Streams(redis)
    await streams.open()
    yield streams
    await redis.aclose()
