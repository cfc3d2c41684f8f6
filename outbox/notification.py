"""NOTIFY, as a hint to the projector that something was committed. Opt-in.

At COMMIT it takes a lock on the whole database, held through the flush of the WAL: transactions
that notify commit one after another. And it keeps a transaction from being prepared.
"""

from __future__ import annotations

from sqlalchemy.engine import Connection, TwoPhaseTransaction
from sqlalchemy.ext.compiler import compiles
from sqlalchemy.sql import ClauseElement
from sqlalchemy.sql.base import Executable

LONGEST = 63
"""Bytes of a channel's name in PostgreSQL."""


def channel_of(name: str) -> str:
    """Of the outbox's name alone: writer and projector may spell the schema differently, and a hint
    too many, from an outbox of the same name or with so long a name, costs one look."""
    return f"oncebox.{name}"[:LONGEST]


class Notification(Executable, ClauseElement):
    """Without a payload, so that PostgreSQL folds those of one transaction into one."""

    inherit_cache = False  # the channel is part of the text

    def __init__(self, channel: str) -> None:
        self.sql = f'NOTIFY "{channel}"'


@compiles(Notification, "postgresql")
def _notify(element: Notification, *_: object, **__: object) -> str:
    return element.sql


@compiles(Notification)
def _nothing(*_: object, **__: object) -> str:
    return "SELECT NULL WHERE 1 = 0"  # where nobody can be notified


def can_notify(connection: Connection) -> bool:
    """PostgreSQL refuses to prepare a transaction that has notified: the poll will find it."""
    prepares = isinstance(connection.get_transaction(), TwoPhaseTransaction)
    return connection.dialect.name == "postgresql" and not prepares
