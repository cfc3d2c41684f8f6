"""From the rows of a survey to the first page of each lane. Pure."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from projector.position import Position
from projector.source.batch import Ahead, Batch, Row


def first_pages(
    found: Iterable[tuple[Any, ...]], opened: Mapping[int, Position], limit: int
) -> dict[int, Ahead | None]:
    """Of each lane that has something; None for one that has to read it by itself.

    `found` is in id order, as `sql.SURVEY` gives it. A row of a transaction that ran at the base of
    some lane is late for the lanes of such a base alone, and only up to their heads: what lies
    above was found as fresh too.
    """
    rows: dict[int, list[Row]] = defaultdict(list)
    read: Counter[tuple[bool, int]] = Counter()
    cut: set[tuple[bool, int]] = set()
    for late, of, lane, xid, more, *fields in found:
        read[late, of] += 1
        if more or read[late, of] == limit:
            cut.add((late, of))
        row, position = Row._make(fields), opened[lane]
        if not late or (row.id <= position.head and position.base.may_run(xid)):
            rows[lane].append(row)
    unread = [xid for late, xid in cut if late]
    pages: dict[int, Ahead | None] = {}
    for lane, position in opened.items():
        too_large = any(row.data is None for row in rows[lane])
        if too_large or any(position.base.may_run(xid) for xid in unread):
            pages[lane] = None
        elif rows[lane]:
            more = (False, lane) in cut or len(rows[lane]) > limit
            pages[lane] = Ahead(position, _page(position, rows[lane][:limit], more))
    return pages


def _page(position: Position, rows: list[Row], more: bool) -> Batch:
    after = position.advanced(rows[-1].id)
    return Batch(rows, after if more else after.closed())
