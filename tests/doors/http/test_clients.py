"""A client that leaves neither undoes the work nor has it done twice."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse

from inbox import IdempotencyMiddleware, current_claim
from support.web import served, until

from .conftest import starlette


class Slow:
    """A handler that goes on when it is told to."""

    def __init__(self) -> None:
        self.started = 0
        self.done = 0
        self.gone: list[bool] = []
        self.go = asyncio.Event()

    async def __call__(self, request: Request) -> Response:
        await request.body()
        self.started += 1
        await self.go.wait()
        self.gone.append(await request.is_disconnected())
        self.done += 1
        return PlainTextResponse("done")

    def app(self, store: Any, **settings: Any) -> Any:
        async def handler(request: Request) -> Response:
            return await self(request)

        return starlette(handler, store, **settings)


async def test_a_client_that_hangs_up_finds_its_answer_later(store):
    """The handler is not told, finishes, and its answer is stored."""
    slow = Slow()
    async with served(slow.app(store)) as api:
        call = await api.call()
        await until(lambda: slow.started)
        call.hang_up()
        assert (await api.post()).status_code == 409
        slow.go.set()
        await until(lambda: slow.done)
        async with asyncio.timeout(15):
            while (answer := await api.post()).status_code == 409:
                pass
    assert answer.text == "done"
    assert answer.headers["idempotent-replayed"] == "true"
    assert (slow.started, slow.gone) == (1, [False])


def request(left: asyncio.Event | None = None) -> tuple[dict[str, Any], Any]:
    """As a server would hand it over; the client stays until it has `left`."""
    scope = {
        "type": "http",
        "method": "POST",
        "path": "/",
        "raw_path": b"/",
        "query_string": b"",
        "headers": [(b"idempotency-key", b"k")],
    }
    messages = [{"type": "http.request", "body": b""}]
    left = left or asyncio.Event()

    async def receive() -> Any:
        if messages:
            return messages.pop()
        await left.wait()
        return {"type": "http.disconnect"}

    return scope, receive


async def call(app: Any) -> list[Any]:
    """What the client gets, which leaves when it has it."""
    sent: list[Any] = []
    left = asyncio.Event()

    async def send(message: Any) -> None:
        sent.append(message)
        if message["type"] == "http.response.body" and not message.get("more_body"):
            left.set()

    scope, receive = request(left)
    await app(scope, receive, send)
    return sent


async def test_a_server_that_cancels_does_not_cancel_the_work(store):
    """Some servers cancel the request of a client that has left."""
    slow = Slow()
    app = slow.app(store)
    running = asyncio.create_task(call(app))
    await until(lambda: slow.started)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    slow.go.set()
    await until(lambda: slow.done)
    async with asyncio.timeout(15):
        while (sent := await call(app))[0]["status"] == 409:
            pass
    assert (b"idempotent-replayed", b"true") in sent[0]["headers"]
    assert slow.started == 1


async def test_an_error_after_the_server_has_cancelled_is_logged(memory, caplog):
    """There is nobody else to tell; the key is free again."""
    go = asyncio.Event()
    calls = []

    async def handler(request: Request) -> Response:
        calls.append(1)
        if len(calls) == 1:
            await go.wait()
            raise RuntimeError("broken")
        return PlainTextResponse("done")

    app = starlette(handler, memory)
    running = asyncio.create_task(call(app))
    await until(lambda: calls)
    running.cancel()
    await asyncio.wait({running})
    go.set()
    await until(lambda: "RuntimeError: broken" in caplog.text)
    assert (await call(app))[0]["status"] == 200


async def test_a_shutdown_waits_for_work_whose_client_has_left(memory):
    """The application's own shutdown, which closes what the work needs, comes after it."""
    slow = Slow()
    inner = slow.app(memory)
    running = asyncio.create_task(call(inner))
    await until(lambda: slow.started)
    running.cancel()
    await asyncio.wait({running})
    messages = [{"type": "lifespan.shutdown"}, {"type": "lifespan.startup"}]
    sent: list[str] = []

    async def receive() -> Any:
        return messages.pop()

    async def send(message: Any) -> None:
        sent.append(f"{message['type']} {slow.done}")

    stopping = asyncio.create_task(inner({"type": "lifespan", "state": {}}, receive, send))
    await until(lambda: not messages)
    assert sent == ["lifespan.startup.complete 0"]
    slow.go.set()
    await stopping
    assert sent[-1] == "lifespan.shutdown.complete 1"


async def test_a_client_that_leaves_while_it_sends_has_asked_for_nothing(memory):
    """The application is not called."""

    async def app(*_: Any) -> None:
        raise AssertionError

    async def receive() -> Any:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        raise AssertionError

    await IdempotencyMiddleware(app, memory)(request()[0], receive, send)


async def test_a_stream_ends_when_its_client_leaves(memory):
    """Nobody waits for the rest. Its effect has happened, and is not repeated."""
    ended = asyncio.Event()
    calls = []

    async def events() -> AsyncIterator[str]:
        calls.append(1)
        try:
            yield "data: 1\n\n"
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def handler(request: Request) -> Response:
        return StreamingResponse(events(), media_type="text/event-stream")

    async with served(starlette(handler, memory)) as api:
        client = await api.call()
        await client.read_until(b"data: 1\n\n")
        client.hang_up()
        async with asyncio.timeout(15):
            await ended.wait()
            while (again := await api.post()).json()["code"] == "in-progress":
                pass
    assert again.json()["code"] == "response-not-kept"
    assert calls == [1]


async def test_a_server_that_raises_for_a_client_that_left(memory):
    """As ASGI 2.4 has it: what was held back is stored all the same."""
    slow = Slow()
    slow.go.set()
    app = slow.app(memory)
    scope, receive = request()

    async def send(message: Any) -> None:
        raise OSError("closed")

    await app(scope, receive, send)
    assert (await call(app))[0]["status"] == 200
    assert slow.started == 1


async def test_long_work_keeps_its_claim(store):
    """Many leases long, the handler stays the only one, and can tell that it is."""
    go = asyncio.Event()
    claims: list[Any] = []

    async def handler(request: Request) -> Response:
        claims.append(current_claim())
        await go.wait()
        return PlainTextResponse(str(claims[0].lost))

    async with served(starlette(handler, store, lease=0.15)) as api:
        first = asyncio.create_task(api.post())
        await until(lambda: claims)
        loop = asyncio.get_running_loop()
        deadline = loop.time() + 0.6
        while loop.time() < deadline:
            assert (await api.post()).status_code == 409
        go.set()
        assert (await first).text == "False"
    assert len(claims) == 1


async def test_a_loop_that_closes_frees_the_key(memory):
    """The work was interrupted; another server may do it."""
    slow = Slow()
    app = slow.app(memory)
    running = asyncio.create_task(call(app))
    await until(lambda: slow.started)
    tasks = [it for it in asyncio.all_tasks() if it is not asyncio.current_task()]
    for task in tasks:
        task.cancel()
    await asyncio.wait(tasks)
    assert running.cancelled()
    slow.go.set()
    assert (await call(app))[0]["status"] == 200
    assert (slow.started, slow.done) == (2, 1)


async def test_a_stream_ends_when_the_server_has_cancelled_it(memory):
    """Also one that never asks whether its client is still there."""
    sent: list[Any] = []
    ended = asyncio.Event()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        head = [(b"content-type", b"text/event-stream")]
        await send({"type": "http.response.start", "status": 200, "headers": head})
        try:
            while True:
                await send({"type": "http.response.body", "body": b"x", "more_body": True})
                await asyncio.sleep(0)
        finally:
            ended.set()

    async def send(message: Any) -> None:
        sent.append(message)

    scope, receive = request()
    running = asyncio.create_task(IdempotencyMiddleware(app, memory)(scope, receive, send))
    await until(lambda: len(sent) > 2)
    running.cancel()
    async with asyncio.timeout(15):
        await ended.wait()


async def test_an_application_may_wait_for_its_client_to_leave(memory):
    """After its response, it hears of it."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await receive()
        await send({"type": "http.response.start", "status": 204})
        await send({"type": "http.response.body"})
        assert (await receive())["type"] == "http.disconnect"

    async with asyncio.timeout(15):
        assert (await call(IdempotencyMiddleware(app, memory)))[0]["status"] == 204
