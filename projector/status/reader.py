"""What a database has to tell for a status, whichever it is."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Protocol

from projector.errors import ProjectorError
from projector.position import Origin
from projector.status.backlog import Part
from projector.status.report import Backlog, Holder

SCANNED = 2_000
"""How many rows of a lane are looked at; a longer backlog is an estimate."""


class OtherOutbox(ProjectorError):
    """The tables belong to an outbox of another name."""

    def __init__(self, expected: str, found: str) -> None:
        super().__init__(f"the tables belong to outbox {found!r}, not {expected!r}")
        self.expected = expected
        self.found = found


class Reader(Protocol):
    """Reads only, in transactions that are over before the call returns."""

    async def lanes(self, name: str) -> int:
        """As many as the database says, or as rows lie in; 0 if nothing tells yet."""

    async def origin(self) -> Origin:
        """What positions of this database are marked with."""

    async def backlogs(
        self, parts: Sequence[Part], limit: int = SCANNED
    ) -> list[tuple[Backlog, timedelta | None]]:
        """For each part its backlog, and the age of the newest event published."""

    async def horizon(self) -> tuple[Holder, ...]:
        """What holds old row versions back, oldest first."""


def lane_count(expected: str, name: str | None, lanes: int | None, highest: int | None) -> int:
    if name not in (None, expected):
        raise OtherOutbox(expected, str(name))
    return max(lanes or 0, -1 if highest is None else highest + 1)
