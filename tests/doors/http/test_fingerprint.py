"""What makes two requests the same."""

from __future__ import annotations

from itertools import combinations
from typing import Any

from inbox.http.request import fingerprint


def of(method: str = "POST", path: bytes = b"/", query: bytes = b"", body: bytes = b"") -> str:
    scope: dict[str, Any] = {"method": method, "path": "/", "raw_path": path}
    return fingerprint({**scope, "query_string": query}, body)


def test_parts_do_not_run_into_each_other():
    """The same bytes, cut elsewhere, are another request."""
    requests = [
        of(path=b"/ab", query=b"c"),
        of(path=b"/a", query=b"bc"),
        of(path=b"/abc"),
        of(path=b"/a", query=b"b", body=b"c"),
        of(path=b"/", body=b"abc"),
        of(path=b"/", query=b"abc"),
        of(method="POST/a", path=b"bc"),
    ]
    assert all(one != other for one, other in combinations(requests, 2))
    assert of(body=b"x") == of(body=b"x")


def test_a_server_need_not_tell_the_raw_path():
    """It is optional in ASGI; then the decoded one counts."""
    scope = {"method": "POST", "path": "/é"}
    assert fingerprint(dict(scope), b"") != fingerprint({**scope, "path": "/e"}, b"")
