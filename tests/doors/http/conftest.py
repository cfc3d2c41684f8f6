"""Applications of each framework around one handler, on each kind of store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any
from uuid import uuid4

import pytest
from fastapi import FastAPI, Request
from redis.asyncio import Redis
from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

from inbox import ClaimStore, IdempotencyMiddleware, MemoryStore, RedisStore

Handler = Callable[[Request], Awaitable[Response]]
Build = Callable[..., Any]

METHODS = ["GET", "POST", "PUT", "PATCH"]


def starlette(handler: Handler, store: ClaimStore, **settings: Any) -> Starlette:
    app = Starlette(routes=[Route("/{path:path}", handler, methods=METHODS)])
    app.add_middleware(IdempotencyMiddleware, store=store, **settings)
    return app


def fastapi(handler: Handler, store: ClaimStore, **settings: Any) -> FastAPI:
    app = FastAPI()
    app.api_route("/{path:path}", methods=METHODS, response_model=None)(handler)
    app.add_middleware(IdempotencyMiddleware, store=store, **settings)
    return app


@pytest.fixture(params=[starlette, fastapi])
def build(request: pytest.FixtureRequest) -> Build:
    made: Build = request.param
    return made


@pytest.fixture(params=["memory", "redis"])
async def store(request: pytest.FixtureRequest) -> AsyncIterator[ClaimStore]:
    if request.param == "memory":
        yield MemoryStore()
        return
    async with Redis.from_url(request.getfixturevalue("redis_url")) as redis:
        yield RedisStore(redis, prefix=f"{uuid4().hex}:")


@pytest.fixture
def memory() -> MemoryStore:
    return MemoryStore()
