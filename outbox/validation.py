"""Compares a live database with what an outbox needs, and names every difference."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sqlalchemy.engine import Connection

if TYPE_CHECKING:
    from outbox.outbox import Outbox


def differences(connection: Connection, outbox: Outbox) -> list[str]:
    return []
