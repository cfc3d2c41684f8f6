"""What is not stored still reaches the client, whole and in time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from starlette.background import BackgroundTask
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.requests import Request
from starlette.responses import FileResponse, PlainTextResponse, Response, StreamingResponse

from inbox import IdempotencyMiddleware
from support.web import served, until

from .conftest import starlette

LIMIT = 1000


@pytest.mark.parametrize("kind", ["text/event-stream", "application/x-ndjson"])
async def test_a_stream_passes_piece_by_piece(memory, kind):
    """The client has the first piece before the second exists; marked as not stored."""
    second = asyncio.Event()

    async def pieces() -> AsyncIterator[str]:
        yield "data: 1\n\n"
        await second.wait()
        yield "data: 2\n\n"

    async def handler(request: Request) -> Response:
        return StreamingResponse(pieces(), media_type=kind)

    async with served(starlette(handler, memory)) as api:
        call = await api.call()
        head = await call.read_until(b"data: 1\n\n")
        second.set()
        await call.read_until(b"data: 2\n\n")
        call.hang_up()
    assert b"idempotency-stored: false" in head


async def test_events_may_take_their_time_to_come(memory):
    """The head of an event stream is not held back until the first event."""
    first = asyncio.Event()

    async def events() -> AsyncIterator[str]:
        await first.wait()
        yield "data: 1\n\n"

    async def handler(request: Request) -> Response:
        return StreamingResponse(events(), media_type="text/event-stream")

    async with served(starlette(handler, memory)) as api:
        call = await api.call()
        assert b"200 OK" in await call.read_until(b"\r\n\r\n")
        first.set()
        await call.read_until(b"data: 1\n\n")
        call.hang_up()


async def test_a_stream_is_not_repeated(memory):
    """Its effect has happened: the next attempt is told so, and that the answer was not kept."""
    calls = []

    async def pieces() -> AsyncIterator[str]:
        calls.append(1)
        yield "1"
        yield "2"

    async def handler(request: Request) -> Response:
        return StreamingResponse(pieces())

    async with served(starlette(handler, memory)) as api:
        assert (await api.post()).text == "12"
        again = await api.post()
    assert (again.status_code, again.json()["code"]) == (409, "response-not-kept")
    assert "retry-after" not in again.headers
    assert calls == [1]


async def test_a_stream_that_breaks_off_may_run_again(memory):
    """An error of the application in the middle frees the key."""
    calls = []

    async def pieces() -> AsyncIterator[str]:
        calls.append(1)
        yield "1"
        if len(calls) == 1:
            raise RuntimeError("broken")

    async def handler(request: Request) -> Response:
        return StreamingResponse(pieces(), media_type="text/event-stream")

    async with served(starlette(handler, memory)) as api:
        call = await api.call()
        await call.read_until(b"idempotency-stored: false")
        await call.reader.read()
        call.hang_up()
        assert (await api.post()).text == "1"


def sized(parts: list[bytes], length: int) -> Any:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        headers = [(b"content-length", str(length).encode())]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        for part in parts:
            await send({"type": "http.response.body", "body": part, "more_body": True})
        await send({"type": "http.response.body"})

    return app


async def test_a_response_in_parts_of_known_length_is_stored(memory):
    """As files and some middlewares send it."""
    app = IdempotencyMiddleware(sized([b"a" * 400, b"b" * 600], 1000), memory, max_response=LIMIT)
    async with served(app) as api:
        first, second = await api.post(), await api.post()
    assert first.content == second.content == b"a" * 400 + b"b" * 600
    assert second.headers["idempotent-replayed"] == "true"


@pytest.mark.parametrize("parts", [[b"a" * 1001], [b"a" * 400, b"b" * 400, b"c" * 400, b"d"]])
async def test_a_response_that_grows_past_the_limit_arrives_whole(memory, parts):
    """From its first byte; it is not kept, and not repeated."""
    whole = b"".join(parts)
    app = IdempotencyMiddleware(sized(parts, len(whole)), memory, max_response=LIMIT)
    async with served(app) as api:
        first, second = await api.post(), await api.post()
    assert first.content == whole
    assert first.headers["idempotency-stored"] == "false"
    assert second.json()["code"] == "response-not-kept"


async def test_a_large_answer_in_one_piece_arrives_whole(memory):
    """The most common way past the limit."""

    async def handler(request: Request) -> Response:
        return PlainTextResponse("x" * (LIMIT + 1))

    async with served(starlette(handler, memory, max_response=LIMIT)) as api:
        assert (await api.post()).text == "x" * (LIMIT + 1)


async def test_a_file_is_stored(memory, tmp_path: Path):
    """Where the server could send it by itself, it is asked for as a body."""
    file = tmp_path / "receipt"
    file.write_bytes(b"x" * 900)

    async def handler(request: Request) -> Response:
        assert "http.response.pathsend" not in request.scope["extensions"]
        return FileResponse(file)

    inner = starlette(handler, memory, max_response=LIMIT)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        scope["extensions"] = {"http.response.pathsend": {}}
        await inner(scope, receive, send)

    async with served(app) as api:
        await api.post()
        second = await api.post()
    assert second.content == b"x" * 900
    assert second.headers["idempotent-replayed"] == "true"


async def test_with_middlewares_that_read_and_rewrite_inside_and_outside(memory):
    """Starlette's BaseHTTPMiddleware turns every response into parts."""

    async def tag(request: Request, call_next: Any) -> Response:
        response: Response = await call_next(request)
        response.headers["X-Tag"] = "1"
        return response

    calls = []

    async def handler(request: Request) -> Response:
        calls.append(await request.body())
        return PlainTextResponse("done")

    inner = starlette(handler, memory)
    inner.user_middleware.append(Middleware(BaseHTTPMiddleware, tag))
    inner.add_middleware(BaseHTTPMiddleware, tag)
    async with served(inner) as api:
        first, second = await api.post(content=b"x"), await api.post(content=b"x")
    assert (first.text, second.text, calls) == ("done", "done", [b"x"])
    assert second.headers["idempotent-replayed"] == "true"


@pytest.mark.parametrize("kind", ["lifespan", "websocket"])
async def test_what_is_not_http_passes(memory, kind):
    """Untouched, both ways."""
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append((scope, await receive()))
        await send({"type": "answer"})

    async def receive() -> Any:
        return {"type": "hello"}

    async def send(message: Any) -> None:
        seen.append(message)

    scope = {"type": kind, "path": "/", "headers": [(b"idempotency-key", b"a, b")]}
    await IdempotencyMiddleware(app, memory, required=True)(scope, receive, send)
    assert seen == [(scope, {"type": "hello"}), {"type": "answer"}]


async def test_a_background_task_does_not_delay_the_answer_or_its_record(memory):
    """The response is stored and given when it is whole; an error after it changes nothing."""
    gate, calls = asyncio.Event(), []

    async def later() -> None:
        await gate.wait()
        calls.append("later")
        raise RuntimeError("too late")

    async def handler(request: Request) -> Response:
        calls.append("now")
        return PlainTextResponse("done", background=BackgroundTask(later))

    async with served(starlette(handler, memory)) as api:
        assert (await api.post()).text == "done"
        assert (await api.post()).headers["idempotent-replayed"] == "true"
        gate.set()
        await until(lambda: len(calls) == 2)
        assert (await api.post()).headers["idempotent-replayed"] == "true"
    assert calls == ["now", "later"]
