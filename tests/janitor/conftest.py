"""One lane's streams, and those who look after them; no database."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from projector.connect import redis_of
from support.groups import Groups


@pytest.fixture
async def groups(redis_url: str) -> AsyncIterator[Groups]:
    groups = Groups(redis_of(redis_url))
    yield groups
    await groups.redis.aclose()
