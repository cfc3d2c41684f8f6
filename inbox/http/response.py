"""A response that can be given again."""

from __future__ import annotations

import msgspec

from inbox.claims.claim import Record
from inbox.errors import CorruptRecord
from inbox.http.asgi import Headers, Send, header

HOP_BY_HOP = {
    b"connection",
    b"keep-alive",
    b"proxy-connection",
    b"te",
    b"trailer",
    b"transfer-encoding",
    b"upgrade",
}
"""They speak of one connection (RFC 9110, 7.6.1)."""

PERSONAL = {
    b"authentication-info",
    b"authorization",
    b"proxy-authenticate",
    b"proxy-authentication-info",
    b"proxy-authorization",
    b"set-cookie",
    b"set-cookie2",
    b"www-authenticate",
}
"""They start or carry a session, which must not outlive its time in a store."""


class Response(msgspec.Struct, frozen=True):
    """As it is stored, in MessagePack."""

    status: int
    headers: Headers
    body: bytes

    def encode(self) -> bytes:
        """Without the headers that must not be given again."""
        kept = msgspec.structs.replace(self, headers=_kept(self.headers))
        return msgspec.msgpack.encode(kept)

    async def send(self, send: Send, *marks: tuple[bytes, bytes]) -> None:
        headers = [*self.headers, *marks]
        await send({"type": "http.response.start", "status": self.status, "headers": headers})
        await send({"type": "http.response.body", "body": self.body})


def saved_response(record: Record) -> Response | None:
    """None if the request was carried out and its response could not be kept."""
    if record.payload is None:
        return None
    try:
        return msgspec.msgpack.decode(record.payload, type=Response)
    except msgspec.DecodeError as exc:
        raise CorruptRecord(record.key, f"its payload is no HTTP response: {exc}") from exc


def is_stored_by_default(status: int) -> bool:
    """What the client is told to try again, is tried again: 408, 425, 429 and from 500 on."""
    return status < 500 and status not in (408, 425, 429)


def _kept(headers: Headers) -> Headers:
    named = b",".join(header(headers, b"connection")).lower().split(b",")
    dropped = HOP_BY_HOP | PERSONAL | {name.strip() for name in named}
    return [(name, value) for name, value in headers if name.lower() not in dropped]
