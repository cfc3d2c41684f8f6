"""Clients from URLs, set up the way the projector needs them."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from redis.asyncio import Redis, Sentinel, SSLConnection
from redis.asyncio.connection import parse_url
from sqlalchemy import make_url
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from projector.cluster import AnyRedis, Cluster, never_again
from projector.errors import ProjectorError

REDIS_PORT = 6379
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


def redis_of(url: str) -> AnyRedis:
    """A client that never resends: `redis://`, `rediss://`, `unix://`, or through Sentinel
    `redis+sentinel://[user:password@]host[:port],host…/service[/db]`, or of a cluster
    `redis+cluster://[user:password@]host[:port],host…` (`rediss+cluster://` with TLS)."""
    scheme, _, kind = url.partition("://")[0].partition("+")
    match kind:
        case "sentinel" if scheme == "redis":
            return _behind_sentinel(url)
        case "cluster" if scheme in ("redis", "rediss"):
            return _cluster(url, scheme)
    return Redis.from_url(url, retry=never_again())


def _behind_sentinel(url: str) -> Redis:
    parts = urlsplit(url)
    service, _, database = parts.path.strip("/").partition("/")
    if not service:
        raise BadUrl(url, "name the service behind the hosts: redis+sentinel://host:26379/mymaster")
    login = {"username": parts.username, "password": parts.password}
    never: dict[str, Any] = {"retry": never_again()}
    sentinel: Any = Sentinel(_hosts(url, SENTINEL_PORT), **login, **never)  # type: ignore[no-untyped-call]
    client: Redis = sentinel.master_for(service, db=int(database or 0), **login, **never)
    return client


def _cluster(url: str, scheme: str) -> Cluster:
    hosts = _hosts(url, REDIS_PORT)
    parts = urlsplit(url)
    if parts.path.strip("/") not in ("", "0"):
        raise BadUrl(url, "a cluster has no other database than 0")
    login, at, _ = parts.netloc.rpartition("@")
    options: dict[str, Any] = dict(parse_url(f"{scheme}://{login}{at}host?{parts.query}"))
    options = {name: value for name, value in options.items() if name not in ("host", "port")}
    if options.pop("connection_class", None) is SSLConnection:
        options["ssl"] = True
    return Cluster(hosts, **options)


def _hosts(url: str, port: int) -> list[tuple[str, int]]:
    entries = urlsplit(url).netloc.rpartition("@")[2].split(",")
    try:
        found = [urlsplit(f"//{entry}") for entry in entries]
        hosts = [(host.hostname, host.port or port) for host in found]
    except ValueError as exc:
        raise BadUrl(url, f"{entries} are no hosts: {exc}") from exc
    if not all(name for name, _ in hosts):
        raise BadUrl(url, "name its hosts: host:port,host:port")
    return [(name, number) for name, number in hosts if name]
