"""Which word an outage gets."""

from __future__ import annotations

import sqlite3
from collections.abc import Awaitable

import pytest
from asyncpg.exceptions import AdminShutdownError, UndefinedTableError
from redis.exceptions import (
    BusyLoadingError,
    ClusterDownError,
    NoPermissionError,
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
    TryAgainError,
)
from sqlalchemy.ext.asyncio import AsyncEngine

from projector.connect import engine_of
from projector.embedded.ports import Port
from projector.position import Origin
from projector.source.postgres import NotPrimary, TimelineChanged
from projector.trouble import reason
from support.lanes import client


async def caught(awaitable: Awaitable[object]) -> str:
    try:
        await awaitable
    except Exception as exc:
        return reason(exc)
    raise AssertionError("it should fail")


async def test_servers_that_are_away_are_told_apart():
    """Though one driver wraps what the network raises and the other does not."""
    port = Port()
    redis = client(f"redis://127.0.0.1:{port.number}")
    engine = engine_of(f"postgresql://nobody@127.0.0.1:{port.number}/x")
    assert await caught(redis.get("x")) == "redis_away"
    assert await caught(connect(engine)) == "postgres_away"
    await redis.aclose()
    port.release()


async def connect(engine: AsyncEngine) -> None:
    async with engine.connect():
        pass


@pytest.mark.parametrize(
    ("problem", "expected"),
    [
        (OutOfMemoryError("OOM"), "redis_full"),
        (ReadOnlyError("READONLY"), "redis_readonly"),
        (BusyLoadingError("LOADING"), "redis_loading"),
        (NoPermissionError("NOPERM"), "redis_denied"),
        (ClusterDownError("CLUSTERDOWN"), "redis_away"),
        (TryAgainError("TRYAGAIN"), "redis_moving"),
        (ResponseError("ERR"), "redis_error"),
        (AdminShutdownError("terminating connection"), "postgres_away"),
        (UndefinedTableError("no such table"), "postgres_error"),
        (NotPrimary("recovery is in progress"), "postgres_standby"),
        (TimelineChanged(Origin("1", "1"), "2"), "postgres_promoted"),
        (sqlite3.OperationalError("database is locked"), "sqlite_error"),
        (TimeoutError(), "postgres_away"),
        (ValueError("x"), "other"),
    ],
)
def test_what_a_server_answers_is_told_apart(problem, expected):
    """Few words, since they are labels of metrics."""
    assert reason(problem) == expected
