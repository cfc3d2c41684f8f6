"""The Idempotency-Key header of a request."""

from __future__ import annotations

import re

from inbox.http.asgi import Scope, header
from inbox.http.problem import Problem, malformed_key

NAME = b"idempotency-key"
MAX_LENGTH = 255

# The draft's form is a structured field: a string in quotes, where only " and \ are escaped.
QUOTED = re.compile(rb'"((?:[ !#-\[\]-~]|\\["\\])*)"')
# Most clients send the key bare. A comma or semicolon would make it a list, or give it parameters:
# two header lines that a proxy has joined must not pass for one key.
BARE = re.compile(rb"[!#-+\--:<-\[\]-~]+")


def key_of(scope: Scope) -> str | Problem | None:
    """The key, the same for its bare and its quoted form; None if the request has none."""
    match header(scope["headers"], NAME):
        case []:
            return None
        case [value]:
            return _parse(value.strip(b" \t"))
    return malformed_key("it was sent more than once")


def _parse(value: bytes) -> str | Problem:
    if quoted := QUOTED.fullmatch(value):
        key = re.sub(rb"\\(.)", rb"\1", quoted[1])
    elif BARE.fullmatch(value):
        key = value
    else:
        return malformed_key("it is neither a string in quotes nor a bare key of visible ASCII")
    if not 1 <= len(key) <= MAX_LENGTH:
        return malformed_key(f"it needs 1 to {MAX_LENGTH} characters")
    return key.decode("ascii")
