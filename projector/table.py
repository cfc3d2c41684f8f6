"""Tables and numbers as people read them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta

NOTHING = "-"


def table(titles: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    """Nothing at all without rows."""
    lines = [titles, *(tuple(map(printable, row)) for row in rows)]
    if len(lines) == 1:
        return
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    yield ""
    for line in lines:
        yield "  ".join(f"{cell:{w}}" for cell, w in zip(line, widths, strict=True)).rstrip()


def printable(cell: str) -> str:
    """A query or a name must not move the cursor."""
    return "".join(letter if letter.isprintable() else "�" for letter in cell)


def time(value: timedelta | None) -> str:
    if value is None:
        return NOTHING
    seconds = max(value.total_seconds(), 0)
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, hours = int(seconds // 60), int(seconds // 3600)
    if hours == 0:
        return f"{minutes} m {int(seconds % 60)} s"
    return f"{hours} h {minutes % 60} m" if hours < 48 else f"{hours // 24} d {hours % 24} h"


def size(count: float) -> str:
    for unit in ("B", "KiB", "MiB", "GiB"):
        if count < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"
