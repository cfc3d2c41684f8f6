"""Clients from URLs, set up the way the projector needs them."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from redis.asyncio import Redis, Sentinel
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from sqlalchemy import make_url
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from projector.errors import ProjectorError

SENTINEL_PORT = 26379


class BadUrl(ProjectorError):
    """A URL that cannot be used here."""

    def __init__(self, url: str, problem: str) -> None:
        super().__init__(f"{urlsplit(url).scheme or 'an empty'} URL: {problem}")


def engine_of(url: str) -> AsyncEngine:
    """An engine for the projector: asyncpg or aiosqlite, whatever driver the URL names."""
    parsed = make_url(url)
    drivers = {"postgresql": "asyncpg", "postgres": "asyncpg", "sqlite": "aiosqlite"}
    backend = parsed.drivername.partition("+")[0]
    if backend not in drivers:
        raise BadUrl(url, "the projector relays from PostgreSQL or SQLite")
    dialect = "sqlite" if backend == "sqlite" else "postgresql"
    # asyncpg would wait a minute for a server that says nothing, and so would /healthz.
    arguments = {"timeout": 10}
    return create_async_engine(
        parsed.set(drivername=f"{dialect}+{drivers[backend]}"),
        connect_args=arguments,
        pool_pre_ping=True,
    )


def redis_of(url: str) -> Redis:
    """A client that never resends: `redis://`, `rediss://`, `unix://`, or through Sentinel
    `redis+sentinel://[user:password@]host[:port],host…/service[/db]`."""
    never: dict[str, Any] = {"retry": Retry(NoBackoff(), 0)}
    if not url.startswith("redis+sentinel://"):
        return Redis.from_url(url, **never)
    parts = urlsplit(url)
    service, _, database = parts.path.strip("/").partition("/")
    if not service:
        raise BadUrl(url, "name the service behind the hosts: redis+sentinel://host:26379/mymaster")
    hosts = [_host(entry) for entry in parts.netloc.rpartition("@")[2].split(",")]
    login = {"username": parts.username, "password": parts.password}
    sentinel: Any = Sentinel(hosts, **login, **never)  # type: ignore[no-untyped-call]
    client: Redis = sentinel.master_for(service, db=int(database or 0), **login, **never)
    return client


def _host(entry: str) -> tuple[str, int]:
    host, _, port = entry.rpartition(":") if ":" in entry else (entry, "", "")
    return host, int(port or SENTINEL_PORT)
