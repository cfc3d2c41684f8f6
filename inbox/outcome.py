"""What came of processing an event."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Generic, TypeAlias, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Handled(Generic[T]):
    """The handler ran, and it is remembered. Acknowledge."""

    result: T


@dataclass(frozen=True, slots=True)
class Duplicate:
    """It was handled before. Acknowledge."""


@dataclass(frozen=True, slots=True)
class Busy:
    """Somebody else is at it: not yet. Do not acknowledge; try again, at the latest after this."""

    retry_after: timedelta


Processed: TypeAlias = Handled[T] | Duplicate | Busy
