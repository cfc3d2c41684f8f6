"""A small HTTP server for probes and Prometheus: /metrics, /healthz and /readyz.

GET and HEAD only, one request a connection, bounded in size, time and number: whoever connects,
the relay goes on.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from http import HTTPStatus

from projector.dead.census import Census
from projector.errors import ProjectorError
from projector.health import Problem
from projector.telemetry import Telemetry

log = logging.getLogger("projector.http")

LOCALHOST = "127.0.0.1"
REQUEST_BYTES = 8 * 1024
LEFTOVER_BYTES = 1024 * 1024
"""What is read and dropped of a client that sends more than a request."""
SECONDS = 5.0
"""How long a client may take, from connecting to having read its answer."""
CLIENTS = 32
"""How many may be connected at once; more are turned away."""
METRICS = "text/plain; version=0.0.4; charset=utf-8"
JSON = "application/json"


class BadAddress(ProjectorError):
    """Where to listen cannot be understood."""

    def __init__(self, address: str) -> None:
        super().__init__(f"{address!r} is no HOST:PORT to listen at")
        self.address = address


class CannotListen(ProjectorError):
    """The address is taken, or not ours."""

    def __init__(self, host: str, port: int, problem: OSError) -> None:
        super().__init__(f"cannot listen at {host}:{port}: {problem.strerror or problem}")
        self.host = host
        self.port = port


def address_of(text: str) -> tuple[str, int]:
    """From `HOST:PORT`; from a bare `PORT` or `:PORT`, that port on localhost."""
    host, _, port = text.rpartition(":")
    if not (port.isascii() and port.isdigit() and int(port) < 65536):
        raise BadAddress(text)
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise BadAddress(text)  # an IPv6 address without brackets: where does it end?
    return host or LOCALHOST, int(port)


@asynccontextmanager
async def serve(
    telemetry: Telemetry, host: str = LOCALHOST, port: int = 0, *, seconds: float = SECONDS
) -> AsyncIterator[int]:
    """Answer probes until the context ends. Gives the port, which is a free one for port 0."""
    clients: set[asyncio.Task[None] | None] = set()

    async def converse(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(clients) >= CLIENTS:
            writer.transport.abort()
            return
        task = asyncio.current_task()
        clients.add(task)
        try:
            with suppress(OSError, TimeoutError):
                async with asyncio.timeout(seconds):
                    await _converse(reader, writer, telemetry)
        finally:
            writer.transport.abort()  # all is said; nothing is waited for
            clients.discard(task)

    try:
        server = await asyncio.start_server(converse, host, port, limit=REQUEST_BYTES)
    except OSError as exc:
        raise CannotListen(host, port, exc) from exc
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        talking = [task for task in clients if task is not None]
        for task in talking:
            task.cancel()
        await asyncio.gather(*talking, return_exceptions=True)
        await server.wait_closed()


async def _converse(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, telemetry: Telemetry
) -> None:
    try:
        request = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return  # it left, or never asked
    except asyncio.LimitOverrunError:
        writer.write(_response(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE))
    else:
        writer.write(_answer(request, telemetry))
    await writer.drain()
    writer.write_eof()
    # Closing while there is something left to read would reset the connection, and the answer
    # with it. So the client closes first.
    left = LEFTOVER_BYTES
    while left > 0 and (dropped := await reader.read(REQUEST_BYTES)):
        left -= len(dropped)


def _answer(request: bytes, telemetry: Telemetry) -> bytes:
    words = request.partition(b"\r\n")[0].decode("latin-1").split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        return _response(HTTPStatus.BAD_REQUEST)
    method, target, _ = words
    if method not in ("GET", "HEAD"):
        return _response(HTTPStatus.METHOD_NOT_ALLOWED, headers={"Allow": "GET, HEAD"})
    try:
        response = _page(target.partition("?")[0], telemetry)
    except Exception:
        log.exception("a page could not be made", extra={"page": target})
        response = _response(HTTPStatus.INTERNAL_SERVER_ERROR)
    head, end, _ = response.partition(b"\r\n\r\n")
    return head + end if method == "HEAD" else response


def _page(path: str, telemetry: Telemetry) -> bytes:
    match path:
        case "/metrics":
            return _response(HTTPStatus.OK, telemetry.render(), METRICS)
        case "/healthz":
            alive = telemetry.health().alive
            return _told(alive, {"alive": alive})
        case "/readyz":
            now = telemetry.now()
            health = telemetry.health(now)
            problems = [_problem(problem, now) for problem in health.problems]
            letters = [_letters(found) for found in health.letters if found.dead or found.waiting]
            told = {"ready": health.ready, "problems": problems, "dead_letters": letters}
            return _told(health.ready, told)
    return _response(HTTPStatus.NOT_FOUND)


def _problem(problem: Problem, now: float) -> dict[str, object]:
    return {
        "lane": problem.lane,
        "topic": problem.topic,
        "reason": problem.reason,
        "detail": problem.detail,
        "seconds": round(now - problem.since, 3),
    }


def _letters(found: Census) -> dict[str, object]:
    return {
        "group": found.group,
        "dead": found.dead,
        "waiting": found.waiting,
        "parked": found.parked,
    }


def _told(well: bool, content: object) -> bytes:
    status = HTTPStatus.OK if well else HTTPStatus.SERVICE_UNAVAILABLE
    return _response(status, json.dumps(content).encode() + b"\n", JSON)


def _response(
    status: HTTPStatus,
    body: bytes | None = None,
    content_type: str = "text/plain; charset=utf-8",
    headers: dict[str, str] | None = None,
) -> bytes:
    if body is None:
        body = f"{status.phrase}\n".encode()
    fields = {
        "Content-Type": content_type,
        "Content-Length": str(len(body)),
        "Cache-Control": "no-store",
        "Connection": "close",
        **(headers or {}),
    }
    lines = [f"HTTP/1.1 {status.value} {status.phrase}", *(f"{k}: {v}" for k, v in fields.items())]
    return "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n" + body
