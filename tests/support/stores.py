"""Stores of claims on real servers, as functions that other processes can be given."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import redis
import redis.asyncio
from sqlalchemy import MetaData, create_engine, make_url
from sqlalchemy.ext.asyncio import create_async_engine

from inbox import FileStore, RedisStore, SqlAlchemyStore, tables


def file_store(folder: Path) -> FileStore:
    return FileStore(folder)


def redis_store(url: str, prefix: str, colour: str) -> RedisStore:
    kind = redis.Redis if colour == "sync" else redis.asyncio.Redis
    # Decoding would break payloads, if it were left to the client.
    return RedisStore(kind.from_url(url, decode_responses=True), prefix)


def sql_store(url: str, prefix: str, **options: Any) -> SqlAlchemyStore:
    target = make_url(url)
    make = create_async_engine if target.get_dialect().is_async else create_engine
    return SqlAlchemyStore(make(target, **options), prefix=prefix)


def create_tables(url: str, prefix: str) -> None:
    metadata = MetaData()
    tables(metadata, prefix=prefix)
    engine = create_engine(url)
    metadata.create_all(engine)
    engine.dispose()
