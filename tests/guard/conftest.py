"""Each store that a guard may keep its calls in, and functions of either colour."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from uuid import uuid4

import pytest
from prometheus_client import CollectorRegistry

from inbox import ClaimStore, FileStore, MemoryStore
from inbox.metrics import Metrics
from support.calls import Guarder
from support.stores import redis_store


@pytest.fixture(params=["sync", "async"])
def colour(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def guarded(colour: str) -> Guarder:
    """A guard on a memory of the test's own."""
    return Guarder(colour, MemoryStore())


@pytest.fixture(params=["memory", "file", "redis"])
async def store(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[ClaimStore]:
    match request.param:
        case "memory":
            yield MemoryStore()
        case "file":
            yield FileStore(tmp_path)
        case _:
            url = request.getfixturevalue("redis_url")
            shared = redis_store(url, f"guard-{uuid4().hex}:", "sync")
            yield shared
            shared.client.close()


@pytest.fixture
def registry() -> CollectorRegistry:
    return CollectorRegistry()


@pytest.fixture
def metrics(registry: CollectorRegistry) -> Metrics:
    return Metrics(registry)
