"""Events that wait in a session for its transaction. No I/O.

An event belongs to the savepoint it was emitted in (its *frame*): only a release that was seen
hands it to the parent; however else a savepoint ends, its events are dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from sqlalchemy.engine import Connection
from sqlalchemy.orm import Session, SessionTransaction

from outbox.event import Event

if TYPE_CHECKING:
    from outbox.emits import Emits
    from outbox.outbox import Outbox

OnDuplicate = Literal["error", "skip"]

_INFO = "oncebox.pending"


@dataclass(slots=True, eq=False)
class Pending:
    """One event, on its way from emit() to the outbox."""

    outbox: Outbox
    event: Event[Any]
    frame: SessionTransaction
    on_duplicate: OnDuplicate = "error"
    version_of: object | None = None
    """The mapped object whose version becomes the seq."""
    home: Emits | None = None
    """The object that kept the event while it had no session, and gets it back on rollback."""
    key: str = ""
    seq: int | None = None
    """As written; the event itself learns them when the commit is through."""


@dataclass(slots=True, eq=False)
class Buffer:
    """All that one session keeps for us."""

    items: list[Pending] = field(default_factory=list)
    written: list[Pending] = field(default_factory=list)
    """Sent to the database; their fate is the commit's."""
    connections: list[Connection] = field(default_factory=list)
    committing: bool = False

    def release(self, frame: SessionTransaction) -> None:
        """A savepoint was released: its events are its parent's now."""
        parent = frame.parent
        while parent is not None and not parent.nested and parent.parent is not None:
            parent = parent.parent
        assert parent is not None, "a savepoint has a parent"
        for item in self.items:
            if item.frame is frame:
                item.frame = parent

    def end(self, frame: SessionTransaction) -> list[Pending]:
        """A transaction or savepoint is over: what still belongs to it did not make it."""
        if frame.parent is None:
            lost, self.items, self.written = self.written + self.items, [], []
            return lost
        lost = [item for item in self.items if item.frame is frame]
        if lost:
            self.items = [item for item in self.items if item.frame is not frame]
        return lost

    def take(self, belongs: Callable[[Pending], bool]) -> list[Pending]:
        """What belongs and is not written yet, in the order it was emitted."""
        taken: list[Pending] = []
        left: list[Pending] = []
        for item in self.items:
            (taken if belongs(item) else left).append(item)
        self.items = left
        self.written += taken
        return taken

    def settle(self) -> list[Pending]:
        """The commit is through: what was written stays written."""
        written, self.written = self.written, []
        return written


def buffer_of(session: Session) -> Buffer:
    buffer: Buffer | None = session.info.get(_INFO)
    if buffer is None:
        buffer = session.info[_INFO] = Buffer()
    return buffer


def frame_of(session: Session) -> SessionTransaction:
    """The innermost savepoint, or the transaction. The session must have begun."""
    frame = session.get_nested_transaction() or session.get_transaction()
    assert frame is not None, "emit() begins the session first"
    return frame
