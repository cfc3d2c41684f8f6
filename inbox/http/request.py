"""What makes a request the same as another: its key, and the fingerprint of the rest."""

from __future__ import annotations

from collections.abc import Iterable
from hashlib import sha256

from inbox.http.asgi import Receive, Scope, header
from inbox.http.problem import Problem, body_too_large


async def read_body(scope: Scope, receive: Receive, limit: int) -> bytes | Problem | None:
    """The whole body; None if the client left before it was sent."""
    if any(_number(value) > limit for value in header(scope["headers"], b"content-length")):
        return body_too_large(limit)
    body = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            return None
        body += message.get("body", b"")
        if len(body) > limit:
            return body_too_large(limit)
        if not message.get("more_body", False):
            return bytes(body)


def fingerprint(scope: Scope, body: bytes) -> str:
    """Of method, path, query and body."""
    # As it was sent: /a%2Fb is not /a/b. Servers need not tell it.
    path = scope.get("raw_path") or scope["path"].encode()
    return digest((scope["method"].encode(), path, scope.get("query_string", b""), body))


def digest(parts: Iterable[bytes]) -> str:
    """Each part goes in with its length, so that no two lists of parts look the same."""
    hashed = sha256()
    for part in parts:
        hashed.update(len(part).to_bytes(8, "big"))
        hashed.update(part)
    return hashed.hexdigest()


def _number(value: bytes) -> int:
    return int(value) if value.isdigit() else 0  # what is no number is the server's to refuse
