from __future__ import annotations

from collections.abc import AsyncIterator
from uuid import uuid4

import pytest
from prometheus_client import CollectorRegistry
from redis.asyncio import Redis

from inbox import ClaimStore, MemoryStore, RedisStore


@pytest.fixture(params=["memory", "redis"])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[ClaimStore]:
    if request.param == "memory":
        yield MemoryStore()
        return
    async with Redis.from_url(request.getfixturevalue("redis_url")) as redis:
        yield RedisStore(redis, prefix=f"{uuid4().hex}:")


class Counted(CollectorRegistry):
    """A registry that can be asked what came of the requests."""

    def outcomes(self, name: str) -> dict[str, float]:
        samples = [sample for metric in self.collect() for sample in metric.samples]
        return {
            sample.labels["outcome"]: sample.value
            for sample in samples
            if sample.name == "inbox_outcomes_total"
            and sample.labels["door"] == "request"
            and sample.labels["name"] == name
        }


@pytest.fixture
def registry() -> Counted:
    return Counted()
