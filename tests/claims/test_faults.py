"""Requests and replies that get lost, and servers that are away."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any
from uuid import uuid4

import pytest
import redis
import redis.asyncio
from sqlalchemy import create_engine, make_url
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import sessionmaker

import inbox
from inbox import (
    Applied,
    Claimed,
    ClaimStore,
    InvalidSource,
    RedisStore,
    Running,
    SqlAlchemyStore,
    State,
    StoreUnavailable,
    new_token,
)
from projector.embedded import Valkey
from support.proxy import Proxy, proxy
from support.stores import create_tables

LONG = 60


@pytest.fixture(params=["redis", "postgresql"])
async def shaky(request: pytest.FixtureRequest) -> AsyncIterator[tuple[ClaimStore, Proxy]]:
    """A store whose connection can be cut, and which has a connection already."""
    if request.param == "redis":
        async with (
            proxy(request.getfixturevalue("redis_url")) as wire,
            redis.asyncio.Redis.from_url(wire.url) as client,
        ):
            store = RedisStore(client, f"{uuid4().hex}:")
            await store.peek("k")
            yield store, wire
        return
    url = make_url(request.getfixturevalue("database"))
    create_tables(url.set(drivername="postgresql+psycopg"), "")
    async with proxy(url.render_as_string(hide_password=False)) as wire:
        engine = create_async_engine(wire.url)
        sql = SqlAlchemyStore(engine)
        await sql.peek("k")
        yield sql, wire
        await engine.dispose()


async def insist(call: Any) -> Any:
    """As a caller does that asks again after StoreUnavailable."""
    try:
        return await call()
    except StoreUnavailable as exc:
        assert exc.__cause__ is not None  # noqa: PT017  # it need not come to this
        return await call()


@pytest.mark.parametrize("loss", ["request", "reply"])
async def test_whatever_is_lost_everything_can_be_asked_again(
    shaky: tuple[ClaimStore, Proxy], loss: Any
):
    """Whether the request or its reply was lost, the second time gives what the first would have:
    one owner, one outcome, one fence."""
    store, wire = shaky
    token = new_token()

    async def lose(call: Any) -> Any:
        wire.lose(loss)
        answer = await insist(call)
        assert wire.lost
        return answer

    async def ask() -> Any:
        return await store.claim("k", fingerprint="f", token=token, lease=LONG)

    claimed = await lose(ask)
    assert isinstance(claimed, Claimed)
    assert not claimed.taken_over
    claim = claimed.claim
    record = await store.peek("k")
    assert record is not None
    assert (record.token, record.fence) == (token, claim.fence)
    assert await lose(lambda: store.renew(claim, LONG))
    assert await lose(lambda: store.release(claim)) is True

    second = await lose(ask)
    assert second.claim.fence > claim.fence
    settle = lambda: store.settle(second.claim, State.COMPLETED, b"x", LONG)  # noqa: E731
    assert await lose(settle) == Applied()
    record = await store.peek("k")
    assert record is not None
    assert (record.fence, record.result) == (second.claim.fence, b"x")


async def test_an_error_at_settle_leaves_the_claim_running(redis_url: str):
    """Until its lease ends; nobody else runs it, and its owner may settle again."""
    with Valkey() as valkey:
        async with redis.asyncio.Redis.from_url(valkey.url()) as client:
            store = RedisStore(client)
            claimed = await store.claim("k", fingerprint="f", token="t", lease=LONG)
            assert isinstance(claimed, Claimed)
            valkey.execute("config", "set", "maxmemory", "1")
            with pytest.raises(StoreUnavailable, match="Redis store") as refused:
                await store.settle(claimed.claim, State.COMPLETED, b"x", LONG)
            assert isinstance(refused.value.__cause__, redis.RedisError)
            valkey.execute("config", "set", "maxmemory", "0")
            other = await store.claim("k", fingerprint="f", token="u", lease=LONG)
            assert isinstance(other, Running)
            applied = await store.settle(claimed.claim, State.COMPLETED, b"x", LONG)
            assert applied == Applied()


NOBODY = "127.0.0.1:1"


@pytest.mark.parametrize("colour", ["sync", "async"])
@pytest.mark.parametrize("kind", ["redis", "postgresql"])
async def test_a_server_that_is_away_is_one_typed_error(kind: str, colour: str):
    """From both twins, with the driver's own error as its cause."""
    store: ClaimStore
    if kind == "redis":
        client = redis.Redis if colour == "sync" else redis.asyncio.Redis
        store = RedisStore(client.from_url(f"redis://{NOBODY}"))
    elif colour == "sync":
        store = SqlAlchemyStore(create_engine(f"postgresql+psycopg://u:s3cret@{NOBODY}/d"))
    else:
        store = SqlAlchemyStore(create_async_engine(f"postgresql+asyncpg://u:s3cret@{NOBODY}/d"))
    request = {"fingerprint": "f", "token": "t", "lease": LONG}
    with pytest.raises(StoreUnavailable, match="did not answer") as refused:
        await store.claim("k", **request)
    assert refused.value.__cause__ is not None
    assert "s3cret" not in str(refused.value)
    with pytest.raises(StoreUnavailable):
        store.sync.claim("k", **request)


def test_a_missing_table_says_where_it_comes_from(tmp_path: Any):
    """Instead of leaving the reader with the driver's words."""
    engine = create_engine(f"sqlite:///{tmp_path}/empty.db")
    with pytest.raises(StoreUnavailable, match="projector migrate"):
        SqlAlchemyStore(engine).sync.peek("k")
    engine.dispose()


async def test_session_factories_are_as_good_as_engines(tmp_path: Any):
    """The engine that they are bound to is used; without one, it is said."""
    url = f"sqlite:///{tmp_path}/claims.db"
    create_tables(url, "")
    engine = create_engine(url)
    later = create_async_engine(url.replace("sqlite", "sqlite+aiosqlite"))
    for factory in (sessionmaker(engine), async_sessionmaker(later)):
        assert await SqlAlchemyStore(factory).peek("k") is None
    engine.dispose()
    await later.dispose()
    for nothing in (sessionmaker(), async_sessionmaker(), object(), engine.url):
        with pytest.raises(InvalidSource, match="needs an Engine"):
            SqlAlchemyStore(nothing)  # type: ignore[arg-type]
    with pytest.raises(InvalidSource, match="RedisStore needs a"):
        RedisStore("redis://localhost")  # type: ignore[arg-type]


async def test_a_strict_server_is_no_trouble(database: str):
    """Where transactions are SERIALIZABLE by default, colliding claims still have one winner."""
    url = make_url(database)
    create_tables(url.set(drivername="postgresql+psycopg"), "")
    strict = {"server_settings": {"default_transaction_isolation": "serializable"}}
    engine = create_async_engine(url, connect_args=strict, pool_size=8)
    store = SqlAlchemyStore(engine)
    for number in range(10):
        asked = [
            store.claim(f"k{number}", fingerprint="f", token=new_token(), lease=LONG)
            for _ in range(8)
        ]
        outcomes = await asyncio.gather(*asked)
        assert sum(isinstance(outcome, Claimed) for outcome in outcomes) == 1
    await engine.dispose()


def test_importing_inbox_is_cheap():
    """Neither a client nor a test framework is loaded before it is needed."""
    program = (
        "import sys, inbox; "
        "print([m for m in ('redis', 'filelock', 'pytest', 'tenacity') if m in sys.modules]); "
        "inbox.RedisStore; inbox.FileStore; inbox.SqlAlchemyStore; print(inbox.tables)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.stdout.splitlines()[0] == "[]", done.stderr
    assert "function tables" in done.stdout
    assert all(hasattr(inbox, name) for name in inbox.__all__)
