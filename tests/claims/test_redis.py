"""Claims in Redis, through sync and async clients."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from functools import partial
from uuid import uuid4

import pytest
import redis

from inbox import RedisStore
from inbox.claims.contract import SharedStoreContract
from support.stores import redis_store


@pytest.fixture
def prefix() -> str:
    return f"claims-{uuid4().hex}:"


class OnRedis(SharedStoreContract):
    colour: str
    sweeps_itself = True

    @pytest.fixture
    async def store(self, redis_url: str, prefix: str) -> AsyncIterator[RedisStore]:
        store = redis_store(redis_url, prefix, self.colour)
        yield store
        store.sync.close()
        if self.colour == "async":
            await store.client.aclose()
        else:
            store.client.close()

    @pytest.fixture
    def reopen(self, redis_url: str, prefix: str) -> Callable[[], RedisStore]:
        return partial(redis_store, redis_url, prefix, "sync")

    @pytest.fixture
    def spoil(self, redis_url: str, prefix: str) -> Callable[[str, str], None]:
        def spoil(key: str, how: str) -> None:
            with redis.Redis.from_url(redis_url) as client:
                text = client.get(f"{prefix}{key}")
                spoilt = b"2" + text[1:] if how == "newer" else text.replace(b"\0", b"", 1)
                client.set(f"{prefix}{key}", spoilt, keepttl=True)

        return spoil


class TestSyncClient(OnRedis):
    colour = "sync"


class TestAsyncClient(OnRedis):
    colour = "async"
