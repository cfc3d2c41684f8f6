"""Structured logs for the command: one line a record, as key=value pairs or as JSON.

No line shows a payload or a password: bytes are told by their length, errors by their first line
(what follows may quote rows), and what stands before a URL's host is masked.
"""

from __future__ import annotations

import json
import logging
import math
import re
import sys
import traceback
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any, Literal, TextIO

from projector.trouble import LONGEST, masked, told

Format = Literal["text", "json"]

_STANDARD = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}
_BARE = re.compile(r'[^\s"=\\]+')
_NOT_IN_KEYS = re.compile(r"[^\w.-]")


def setup(
    format: Format = "text",
    level: str | int = "INFO",
    *,
    stream: TextIO | None = None,
    logger: logging.Logger | None = None,
) -> None:
    """Log to `stream` (stderr) from `logger` (the root) on. Calling it again replaces the first."""
    target = logger or logging.getLogger()
    for handler in list(target.handlers):
        if isinstance(handler.formatter, Text | Json):
            target.removeHandler(handler)
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(Json() if format == "json" else Text())
    target.addHandler(handler)
    target.setLevel(level)


class Text(logging.Formatter):
    """`time=… level=… logger=… message="…" lane=3`, and for an error its kind and place."""

    def format(self, record: logging.LogRecord) -> str:
        fields = _fields(record)
        if (problem := _problem(record)) is not None:
            fields["error"] = told(problem)
            fields["at"] = _place(problem)
        return " ".join(f"{_NOT_IN_KEYS.sub('_', key)}={_quoted(v)}" for key, v in fields.items())


class Json(logging.Formatter):
    """The same fields as one object a line; for an error also its traceback."""

    def format(self, record: logging.LogRecord) -> str:
        fields = _fields(record)
        if (problem := _problem(record)) is not None:
            fields["error"] = told(problem)
            fields["traceback"] = masked("".join(_traceback(problem)))
        return json.dumps(fields, ensure_ascii=False)


def _fields(record: logging.LogRecord) -> dict[str, Any]:
    time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds")
    fields = {
        "time": time.replace("+00:00", "Z"),
        "level": record.levelname.lower(),
        "logger": record.name,
        "message": _plain(_message(record)),
    }
    for key, value in vars(record).items():
        if key not in _STANDARD:
            fields[f"{key}_" if key in fields else key] = _plain(value)
    return fields


def _message(record: logging.LogRecord) -> str:
    """Errors among the arguments are told like any other, so that no statement comes with them."""
    args = record.args
    if isinstance(args, tuple):
        args = tuple(_Told(arg) if isinstance(arg, BaseException) else arg for arg in args)
    return str(record.msg) % args if args else str(record.msg)


class _Told:
    """Looks the same under %s and %r."""

    def __init__(self, problem: BaseException) -> None:
        self._text = told(problem)

    def __repr__(self) -> str:
        return self._text


def _plain(value: Any) -> Any:
    match value:
        case None | bool() | int():
            return value
        case float() if math.isfinite(value):
            return value
        case bytes() | bytearray() | memoryview():
            return f"<{len(value)} bytes>"
        case BaseException():
            return told(value)
    text = masked(str(value))
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def _quoted(value: Any) -> str:
    text = "-" if value is None else str(value).lower() if isinstance(value, bool) else str(value)
    if text.isprintable():
        return text if _BARE.fullmatch(text) else json.dumps(text, ensure_ascii=False)
    return json.dumps(text)  # also escapes what some viewers take for the end of a line


def _problem(record: logging.LogRecord) -> BaseException | None:
    return record.exc_info[1] if record.exc_info else None


def _place(problem: BaseException) -> str:
    frames = traceback.extract_tb(problem.__traceback__)
    return f"{frames[-1].filename}:{frames[-1].lineno}" if frames else "-"


def _traceback(problem: BaseException) -> Iterator[str]:
    """Like Python's, causes first, but with each error in one line: its text may quote rows."""
    earlier = problem.__cause__ or (None if problem.__suppress_context__ else problem.__context__)
    if earlier is not None:
        yield from _traceback(earlier)
        yield "which led to\n"
    yield from traceback.format_tb(problem.__traceback__)
    yield f"{told(problem)}\n"
