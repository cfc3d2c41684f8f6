"""Write events in the same SQLAlchemy transaction as your business changes.

events = Outbox(Base.metadata, name="shop")

with Session(engine) as session, session.begin():
    session.add(order)
    events.emit(session, "order.placed", topic="orders", key=order, data={"total": 42})
"""

from outbox.emits import Emits
from outbox.errors import (
    DuplicateSeq,
    EventTooLarge,
    InvalidField,
    KeyUnknown,
    NeverWritten,
    NoBind,
    NotASession,
    NotDecodable,
    NotEncodable,
    NoTransaction,
    NotWritten,
    OutboxError,
    OutboxMismatch,
    SessionNotUsable,
    TablesMissing,
    VersionSeqError,
)
from outbox.event import Event
from outbox.outbox import Outbox
from outbox.versions import AUTO

__distribution__ = "oncebox"
"""Other distributions ship a module of this name too; this tells ours from theirs."""

__all__ = [
    "AUTO",
    "DuplicateSeq",
    "Emits",
    "Event",
    "EventTooLarge",
    "InvalidField",
    "KeyUnknown",
    "NeverWritten",
    "NoBind",
    "NoTransaction",
    "NotASession",
    "NotDecodable",
    "NotEncodable",
    "NotWritten",
    "Outbox",
    "OutboxError",
    "OutboxMismatch",
    "SessionNotUsable",
    "TablesMissing",
    "VersionSeqError",
]
