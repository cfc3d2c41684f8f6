"""The server for probes, asked by raw sockets as well-behaved and as rude as they come."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from projector.dead.census import Census
from projector.http import CLIENTS, BadAddress, CannotListen, address_of, serve
from projector.telemetry import Telemetry
from support.waiting import until

HOST = "127.0.0.1"


@pytest.fixture
def telemetry() -> Telemetry:
    made = Telemetry()
    made.holds({0})
    return made


@pytest.fixture
async def port(telemetry: Telemetry) -> AsyncIterator[int]:
    async with serve(telemetry) as bound:
        yield bound


async def ask(port: int, request: bytes) -> tuple[int, dict[str, str], bytes]:
    """Status, headers and body. Reads until the server closes."""
    reader, writer = await asyncio.open_connection(HOST, port)
    async with asyncio.timeout(10):
        writer.write(request)
        answer = await reader.read()
        writer.close()
        await writer.wait_closed()
    head, _, body = answer.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    headers = dict(line.split(": ", 1) for line in lines)
    return int(first.split(" ")[1]), headers, body


async def get(port: int, path: str, method: str = "GET") -> tuple[int, dict[str, str], bytes]:
    return await ask(port, f"{method} {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())


async def test_metrics_are_prometheus_text(port, telemetry):
    """With the content type that scrapers expect, and the connection closed behind them."""
    telemetry.published(0, "orders", 3, 0.1)
    status, headers, body = await get(port, "/metrics?name[]=x")
    assert status == 200
    assert headers["Content-Type"].startswith("text/plain; version=0.0.4")
    assert headers["Connection"] == "close"
    assert int(headers["Content-Length"]) == len(body)
    assert b'projector_events_published_total{lane="0",topic="orders"} 3.0\n' in body


async def test_a_healthy_projector_is_alive_and_ready(port):
    """200 both, in JSON."""
    assert json.loads((await get(port, "/healthz"))[2]) == {"alive": True}
    status, _, body = await get(port, "/readyz")
    told = {"ready": True, "problems": [], "dead_letters": []}
    assert (status, json.loads(body)) == (200, told)


async def test_readiness_names_what_does_not_move_and_why(port, telemetry):
    """503, with lane, topic and reason; liveness stays green."""
    telemetry.detached(0, "orders", "full", "1000000")
    status, _, body = await get(port, "/readyz")
    (problem,) = json.loads(body)["problems"]
    assert status == 503
    assert problem.pop("seconds") >= 0
    expected = {"lane": 0, "topic": "orders", "reason": "full", "detail": "1000000"}
    assert problem == expected
    assert (await get(port, "/healthz"))[0] == 200


async def test_dead_letters_are_told_and_make_nobody_unready(port, telemetry):
    """They are a consumer's matter: a projector that is taken away heals none of them."""
    telemetry.letters(0, [Census("billing", 1, 2, 1), Census("mail")])
    telemetry.letters(1, [Census("billing", 1, 0, 1)])
    status, _, body = await get(port, "/readyz")
    assert status == 200
    assert json.loads(body)["dead_letters"] == [
        {"group": "billing", "dead": 2, "waiting": 2, "parked": 2}
    ]


async def test_a_loop_that_does_not_turn_is_dead():
    """503 at /healthz."""
    async with serve(Telemetry(patience=-1)) as port:
        status, _, body = await get(port, "/healthz")
        assert (status, json.loads(body)) == (503, {"alive": False})


async def test_head_answers_without_a_body(port):
    """The same headers as GET."""
    status, headers, body = await get(port, "/readyz", "HEAD")
    assert (status, body) == (200, b"")
    assert int(headers["Content-Length"]) > 0


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", 404),
        (b"POST /metrics HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", 405),
        (b"\r\n\r\n", 400),
        (b"GET /metrics\r\n\r\n", 400),
        (b"GET /metrics HTTP/2\r\n\r\n", 400),
        (b"\x16\x03\x01\x02\x00\xff\r\n\r\n", 400),
        (b"GET /metrics HTTP/1.1\r\nX: " + b"x" * 9000 + b"\r\n\r\n", 431),
    ],
)
async def test_what_is_no_request_for_a_page_is_refused(port, request_, expected):
    """With the status that says so, and the answer arrives whatever was sent."""
    assert (await ask(port, request_))[0] == expected


async def test_who_sends_too_much_still_gets_its_answer(port):
    """Closing on what is left unread would reset the connection, and the answer with it."""
    with await asyncio.to_thread(socket.create_connection, (HOST, port), 5) as client:
        await asyncio.to_thread(client.sendall, b"x" * 800_000)
        assert (await get(port, "/healthz"))[0] == 200  # by now the other was answered
        answer = await asyncio.to_thread(client.recv, 100)
    assert answer.startswith(b"HTTP/1.1 431 ")


async def test_a_slow_client_is_cut_off_and_others_are_served(telemetry):
    """One that never finishes its request holds nothing up."""
    async with serve(telemetry, seconds=0.2) as port:
        reader, writer = await asyncio.open_connection(HOST, port)
        writer.write(b"GET /metrics HTT")
        assert (await get(port, "/healthz"))[0] == 200
        async with asyncio.timeout(5):
            with suppress(ConnectionError):
                assert await reader.read() == b""
        writer.close()


async def test_a_client_that_leaves_early_does_no_harm(port):
    """Nothing sent, half sent, and gone before the answer."""
    for request in (b"", b"GET", b"GET /metrics HTTP/1.1\r\n\r\n"):
        _, writer = await asyncio.open_connection(HOST, port)
        writer.write(request)
        await writer.drain()
        writer.transport.abort()
    assert (await get(port, "/healthz"))[0] == 200


async def test_too_many_clients_are_turned_away(port):
    """And let in again once there is room."""
    crowd = [await asyncio.open_connection(HOST, port) for _ in range(CLIENTS)]
    with pytest.raises((OSError, IndexError)):
        await get(port, "/healthz")
    for _, writer in crowd:
        writer.close()

    async def served() -> bool:
        try:
            return (await get(port, "/healthz"))[0] == 200
        except (OSError, IndexError):
            return False

    await until(served)


async def test_the_end_does_not_wait_for_clients(telemetry):
    """A connection that is open when the projector stops is cut."""
    async with asyncio.timeout(2):
        async with serve(telemetry) as port:
            _, writer = await asyncio.open_connection(HOST, port)
            writer.write(b"GET")
            await get(port, "/healthz")
        writer.close()


async def test_a_taken_port_is_an_error_that_names_it(telemetry, port):
    """Not an OSError from the depths."""
    with pytest.raises(CannotListen, match=f"{HOST}:{port}"):
        async with serve(telemetry, HOST, port):
            pass


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("9100", (HOST, 9100)),
        (":9100", (HOST, 9100)),
        ("0.0.0.0:9100", ("0.0.0.0", 9100)),
        ("[::1]:0", ("::1", 0)),
        ("example.org:80", ("example.org", 80)),
    ],
)
def test_an_address_is_local_unless_a_host_is_given(text, expected):
    """HOST:PORT, or a port alone."""
    assert address_of(text) == expected


@pytest.mark.parametrize("text", ["", "host", "host:", "host:http", "::1:9100", "h:65536", "h:-1"])
def test_what_is_no_address_is_refused(text):
    """With an error that quotes it."""
    with pytest.raises(BadAddress):
        address_of(text)
