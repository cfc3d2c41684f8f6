"""What a stored position means on the database that answers now. Pure."""

from __future__ import annotations

import secrets

from projector.errors import ProjectorError
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
