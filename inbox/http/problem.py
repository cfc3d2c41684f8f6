"""What the middleware answers instead of the application, as problem+json (RFC 9457)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import timedelta

import msgspec

from inbox.http.asgi import Headers
from inbox.http.response import Response

LONGEST_RETRY = timedelta(seconds=5)
"""What is left of a lease is only the latest time at which a dead holder's claim is free. A holder
that lives is done much sooner, so clients are not kept away for as long."""


@dataclass(frozen=True, slots=True)
class Problem:
    """`code` tells one problem from another with the same status."""

    status: int
    code: str
    title: str
    detail: str
    retry_after: timedelta | None = None

    def response(self, documentation: str | None) -> Response:
        """`documentation` is the address of a page about the problems; its anchors are their
        codes."""
        body = msgspec.json.encode(
            {
                "type": f"{documentation}#{self.code}" if documentation else "about:blank",
                "title": self.title,
                "status": self.status,
                "detail": self.detail,
                "code": self.code,
            }
        )
        headers: Headers = [
            (b"content-type", b"application/problem+json"),
            (b"content-length", str(len(body)).encode()),
        ]
        if self.retry_after is not None:
            seconds = max(1, math.ceil(self.retry_after.total_seconds()))
            headers.append((b"retry-after", str(seconds).encode()))
        return Response(self.status, headers, body)


def missing_key() -> Problem:
    return Problem(
        400,
        "missing-key",
        "Idempotency-Key is missing",
        "This operation needs the header Idempotency-Key: a key of your own, new for each "
        "operation and the same for each attempt at it.",
    )


def malformed_key(problem: str) -> Problem:
    return Problem(
        400,
        "malformed-key",
        "Idempotency-Key is malformed",
        f'The header Idempotency-Key cannot be used: {problem}. Send one key, such as "8e03978e".',
    )


def in_progress(retry_after: timedelta) -> Problem:
    return Problem(
        409,
        "in-progress",
        "A request with this Idempotency-Key is still running",
        "Send the same request again later to get its response.",
        min(retry_after, LONGEST_RETRY),
    )


def response_not_kept() -> Problem:
    return Problem(
        409,
        "response-not-kept",
        "The response to this Idempotency-Key was not kept",
        "The request has been carried out and is not repeated, but its response was a stream or "
        "too large to be stored. Look up what it did; to do it once more, use a new key.",
    )


def body_too_large(limit: int) -> Problem:
    return Problem(
        413,
        "body-too-large",
        "The request body is too large",
        f"With an Idempotency-Key, a request body may have {limit} bytes at most.",
    )


def key_reused() -> Problem:
    return Problem(
        422,
        "key-reused",
        "Idempotency-Key is already used",
        "This key was used for another request: another method, path, query or body. Use a new key "
        "for a new operation.",
    )


def store_unavailable() -> Problem:
    return Problem(
        503,
        "store-unavailable",
        "Idempotency cannot be ensured at the moment",
        "The request was not carried out. Send it again later, with the same key.",
        LONGEST_RETRY,
    )


def record_unreadable() -> Problem:
    return Problem(
        503,
        "record-unreadable",
        "The record of this Idempotency-Key cannot be read",
        "Whether the request has been carried out is not known; it was not carried out now. The "
        "operators of this service have to look.",
    )
