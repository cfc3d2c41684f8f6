"""What a stored position means on the database that answers now. Pure."""

from __future__ import annotations

import secrets
from dataclasses import dataclass

from projector.errors import ProjectorError
from projector.lane import LaneState
from projector.position import Origin, Position


class OtherDatabase(ProjectorError):
    """The position speaks of another database; its ids and xids mean nothing here."""

    def __init__(self, lane: int, expected: Origin, found: Origin) -> None:
        super().__init__(
            f"lane {lane} was published from database system {expected.system}, but {found.system} "
            "answers: it was restored or copied. Run `projector rebase` to publish again from here"
        )
        self.lane = lane
        self.expected = expected
        self.found = found


def start(origin: Origin) -> Position:
    """Before everything that is retained, in a new epoch."""
    return Position(origin, epoch=secrets.token_hex(4))


@dataclass(frozen=True, slots=True)
class FromTheStart:
    """Resumes a forgotten lane or topic before everything that is retained: nothing is lost, and
    consumers dedup what they have seen."""

    origin: Origin

    async def lane(self, _: int) -> Position:
        return start(self.origin)

    async def topic(self, _: int, __: str) -> Position:
        return start(self.origin)

    async def fit(self, lane: int, state: LaneState) -> LaneState:
        stored = state.main.origin
        if stored == self.origin:
            return state
        if stored.system != self.origin.system:
            raise OtherDatabase(lane, stored, self.origin)
        # A promotion: commits that the old primary had and this one has not may have given their
        # ids and xids to others.
        return LaneState(start(self.origin))
