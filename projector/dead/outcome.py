"""What became of a letter that something was to be done with."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta

from projector.errors import ProjectorError


@dataclass(frozen=True, slots=True)
class Gone:
    """There is no such letter any more: handled, or discarded by somebody else."""


@dataclass(frozen=True, slots=True)
class Busy:
    """A consumer is at it right now. Nothing was done."""

    retry_after: timedelta
    """When its claim ends, if it is not renewed."""


@dataclass(frozen=True, slots=True)
class Changed:
    """Somebody else has edited it meanwhile. Nothing was done."""


@dataclass(frozen=True, slots=True)
class Marked:
    """It is to be worked off, with all that waits for the same key."""

    before: bool
    """It was marked already."""


@dataclass(frozen=True, slots=True)
class Discarded:
    left: int | None
    """How many events of its key go on now; None if its key did not wait for it."""


@dataclass(frozen=True, slots=True)
class Edited:
    pass


class NoSuchLetter(ProjectorError):
    """A group has no letter of that id."""

    def __init__(self, event_id: str, group: str) -> None:
        super().__init__(
            f"group {group!r} has no dead letter {event_id!r}: it was handled or discarded, or is "
            "another group's; `projector dead list` shows what there is"
        )
        self.event_id = event_id
        self.group = group


class NotEdited(ProjectorError):
    """A letter was left as it is."""

    def __init__(self, event_id: str, problem: str) -> None:
        super().__init__(f"letter {event_id!r} was not edited: {problem}")
        self.event_id = event_id
        self.problem = problem
