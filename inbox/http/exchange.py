"""A request on its way to the application, and the response on its way back."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from inbox.http.asgi import Message, Receive, Scope, Send, header
from inbox.http.response import Response

REPLAYED = (b"idempotent-replayed", b"true")
NOT_STORED = (b"idempotency-stored", b"false")

UNSEEN = ("http.response.pathsend", "http.response.zerocopysend", "http.response.trailers")
"""Extensions by which a response goes to the client in other ways than as a body that we see."""


class Exchange:
    """Stands between the application and the client.

    The response is held back until it is whole, since its header is to tell whether it was stored.
    What is a stream, or grows past `limit`, is let pass instead, from its beginning, and marked as
    not stored.

    A client that leaves is no reason to stop: the application is told of it only once its response
    passes, when nobody but the client is waiting for the rest.
    """

    def __init__(self, scope: Scope, body: bytes, receive: Receive, send: Send, limit: int) -> None:
        scope["extensions"] = {
            name: it for name, it in (scope.get("extensions") or {}).items() if name not in UNSEEN
        }
        self.scope = scope
        self.over = asyncio.Event()
        """The response is whole. Also set from outside, when none will come any more."""
        self.whole = False
        self.client_left = False
        self.status = 0
        self._body: bytes | None = body
        self._receive, self._send, self._limit = receive, send, limit
        self._start: Message | None = None
        self._held = bytearray()
        self._passes = asyncio.Event()

    @property
    def passes(self) -> bool:
        return self._passes.is_set()

    def let_pass(self) -> None:
        """Hold nothing back."""
        self._passes.set()

    async def receive(self) -> Message:
        """For the application."""
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        while not self.client_left:
            self.client_left = (await self._receive())["type"] == "http.disconnect"
        await self._passes.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        """For the application."""
        if message["type"] == "http.response.start":
            self._start, self.status = message, message["status"]
            if self.passes or _is_endless(message):
                await self._pass_start()
        elif message["type"] == "http.response.body" and self._start is not None:
            await self._take(message, more=message.get("more_body", False))
        else:
            await self.to_client(message)

    async def _take(self, message: Message, more: bool) -> None:
        if self.passes:
            await self.to_client(message)
        else:
            self._held += message.get("body", b"")
            if len(self._held) > self._limit or (more and self._has_no_end()):
                await self._pass_start()
                held = {"type": "http.response.body", "body": bytes(self._held), "more_body": more}
                self._held.clear()
                await self.to_client(held)
        if not more:
            self.whole = True
            self.over.set()

    def _has_no_end(self) -> bool:
        """A body in parts that does not say how long it will be may take its time to come."""
        assert self._start is not None
        return not header(self._start.get("headers", ()), b"content-length")

    async def _pass_start(self) -> None:
        assert self._start is not None
        self.let_pass()
        headers = [*self._start.get("headers", ()), NOT_STORED]
        await self.to_client({**self._start, "headers": headers})

    async def to_client(self, message: Message) -> None:
        """Raises OSError if the client has left; some servers do not tell."""
        if self.client_left:
            raise OSError("the client has left")
        try:
            await self._send(message)
        except OSError:
            self.client_left = True
            raise

    async def respond(self, response: Response, *marks: tuple[bytes, bytes]) -> None:
        """Instead of the application, or with what was held back. To nobody if the client left."""
        with suppress(OSError):
            await response.send(self.to_client, *marks)

    def response(self) -> Response:
        """What was held back."""
        assert self._start is not None
        headers = [(bytes(name), bytes(value)) for name, value in self._start.get("headers", ())]
        return Response(self.status, headers, bytes(self._held))


def _is_endless(start: Message) -> bool:
    kinds = header(start.get("headers", ()), b"content-type")
    return any(kind.lower().startswith(b"text/event-stream") for kind in kinds)
