"""Events that wait in a session for its transaction. No I/O.

An event belongs to the savepoint it was emitted in (its *frame*): only a release that was seen
hands it to the parent; however else a savepoint ends, its events are dropped.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal

from sqlalchemy.engine import Connection, Engine
from sqlalchemy.orm import Session, SessionTransaction

from outbox.event import Event

if TYPE_CHECKING:
    from outbox.emits import Emits
    from outbox.outbox import Outbox

OnDuplicate = Literal["error", "skip"]
Bind = Engine | Connection
BindKey = tuple["Outbox", type | None]
"""What decides an event's database: its outbox, and the class of the object that is its key."""


@dataclass(slots=True, eq=False)
class Pending:
    """One event, on its way from emit() to the outbox."""

    outbox: Outbox
    event: Event[Any]
    on_duplicate: OnDuplicate = "error"
    version_of: object | None = None
    """The mapped object whose version becomes the seq."""
    home: Emits | None = None
    """The object that is not in the database yet, and has its events back if it stays out."""
    key: str = ""
    seq: int | None = None
    """As written; the event itself learns them when the commit is through."""
    skipped: bool = False
    """It repeated a seq and was left out, as asked."""

    @property
    def bind_key(self) -> BindKey:
        owner = self.event._key_owner
        return self.outbox, None if owner is None else type(owner)


@dataclass(slots=True, eq=False)
class Buffer:
    """All that one session keeps for us."""

    frames: dict[SessionTransaction, list[Pending]] = field(default_factory=dict)
    """What is not written yet, by savepoint, innermost last: together, the order of emission."""
    written: list[Pending] = field(default_factory=list)
    """Sent to the database; their fate is the commit's."""
    connections: list[Connection] = field(default_factory=list)
    """Those of the running transaction."""
    binds: dict[BindKey, Bind | None] = field(default_factory=dict)
    """Where events go, decided once a transaction; None for not yet."""
    committing: SessionTransaction | None = None
    """The frame whose before_commit was seen."""
    unversioned: list[Pending] = field(default_factory=list)
    """Events that wait for the flush that gives their object its version."""
    failed: bool = False
    """A write failed half-way: this transaction must not be committed any more."""

    def __bool__(self) -> bool:
        return any(self.frames.values())

    def __iter__(self) -> Iterator[Pending]:
        return chain.from_iterable(self.frames.values())

    def add(self, item: Pending, frame: SessionTransaction) -> None:
        self.frames.setdefault(frame, []).append(item)
        self.binds.setdefault(item.bind_key, None)
        if item.version_of is not None:
            self.unversioned.append(item)

    def release(self, frame: SessionTransaction) -> None:
        """A savepoint was released: its events are its parent's now."""
        items = self.frames.pop(frame, None)
        if items:
            self.frames.setdefault(_boundary(frame.parent), []).extend(items)

    def end(self, frame: SessionTransaction) -> list[Pending]:
        """A transaction or savepoint is over; returns what did not make it.

        What was written counts as lost only if a rollback was seen (`undo`): a listener that raises
        in after_commit keeps us from hearing that the commit went well.
        """
        lost = self.frames.pop(frame, [])
        if self.committing is frame:
            self.committing = None
        if frame.parent is None:
            lost = [*lost, *self]
            self.frames.clear()
            self.written.clear()
            self.connections.clear()
            self.binds.clear()
            self.unversioned.clear()
            self.failed = False
        return lost

    def undo(self) -> list[Pending]:
        """The transaction was rolled back: what was written is not there."""
        undone, self.written = self.written, []
        return undone

    def settle_on(self, bind: Bind) -> None:
        """What has no database yet goes to this one."""
        for key, decided in self.binds.items():
            if decided is None:
                self.binds[key] = bind

    def take(self, bind: Bind) -> list[Pending]:
        """What goes to this database and is not written yet, in the order it was emitted."""
        taken: list[Pending] = []
        for frame, items in self.frames.items():
            here = [item for item in items if self.binds[item.bind_key] is bind]
            if here:
                self.frames[frame] = [i for i in items if self.binds[i.bind_key] is not bind]
                taken += here
        self.written += taken
        return taken

    def withdraw(self, home: Emits) -> list[Pending]:
        """The object left the session before it was flushed: its events leave with it."""
        theirs = [item for item in self if item.home is home]
        for frame, items in self.frames.items():
            self.frames[frame] = [item for item in items if item.home is not home]
        return theirs

    def settle(self) -> list[Pending]:
        """The commit is through: what was written stays written."""
        written, self.written = self.written, []
        return written


def _boundary(transaction: SessionTransaction | None) -> SessionTransaction:
    """The savepoint or transaction that a flush's own subtransaction belongs to."""
    assert transaction is not None, "a savepoint has a parent"
    while not transaction.nested and transaction.parent is not None:
        transaction = transaction.parent
    return transaction


def buffer_of(session: Session) -> Buffer:
    """On the session itself: `session.info` can be shared or cleared, and a weak dictionary would
    keep the session alive through its own buffer."""
    buffer: Buffer | None = session.__dict__.get("_oncebox_buffer")
    if buffer is None:
        buffer = session.__dict__["_oncebox_buffer"] = Buffer()
    return buffer


def frame_of(session: Session) -> SessionTransaction:
    """The innermost savepoint, or the transaction. The session must have begun."""
    frame = session.get_nested_transaction() or session.get_transaction()
    assert frame is not None, "emit() begins the session first"
    return frame
