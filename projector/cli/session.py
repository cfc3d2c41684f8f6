"""A projector for the length of a command."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from projector.daemon import Projector


@asynccontextmanager
async def projector_of(
    database_url: str, redis_url: str, name: str, lanes: int, schema: str | None, prefix: str
) -> AsyncIterator[Projector]:
    """Connected to both servers; their outages are the command's errors."""
    from projector import trouble
    from projector.connect import engine_of, redis_of
    from projector.daemon import OUTAGE, Projector
    from projector.errors import ProjectorError
    from projector.settings import Settings

    engine, redis = engine_of(database_url), redis_of(redis_url)
    settings = Settings(name=name, lanes=lanes, schema=schema, prefix=prefix)
    try:
        yield Projector(engine, redis, settings)
    except OUTAGE as problem:
        raise ProjectorError(trouble.told(problem)) from problem
    finally:
        await redis.aclose()
        await engine.dispose()
