"""What can go wrong around a claim. Every error carries its data as attributes."""

from __future__ import annotations


class InboxError(Exception):
    """The base of every error of this package."""


class InvalidKey(InboxError, ValueError):
    """A key, scope, tenant, token, fingerprint or limit is not acceptable; nothing was written."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


class InvalidDuration(InboxError, ValueError):
    """A lease, ttl or time-out is not acceptable; nothing was written."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


class InvalidOutcome(InboxError, TypeError):
    """A claim can be settled as completed or failed, with bytes or None; nothing was written."""


class InvalidSource(InboxError, TypeError):
    """A store was given something that it cannot keep its records in."""


class ClaimLost(InboxError):
    """Another worker took this claim over; its result stands and yours was not saved."""

    def __init__(self, key: str) -> None:
        super().__init__(
            f"claim {key!r} was lost: its lease ran out, or somebody forgot it, before its outcome "
            "was saved. Another worker may run the same effect; give slow work a longer lease"
        )
        self.key = key


class CorruptRecord(InboxError):
    """The record of a key cannot be read, so nobody may run its effect until someone has looked."""

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(
            f"the record of {key!r} cannot be read: {problem}. Find out whether its effect has "
            "happened; forget(key) lets it run again"
        )
        self.key = key
        self.problem = problem


class NewerRecord(CorruptRecord):
    """The record was written by a newer version of this package."""

    def __init__(self, key: str, version: object) -> None:
        super().__init__(key, f"it has version {version}, so a newer oncebox wrote it: upgrade")
        self.version = version


class StoreUnavailable(InboxError):
    """The store did not answer. Whether it acted is unknown; asking again is harmless."""

    def __init__(self, store: str, problem: str) -> None:
        super().__init__(f"the {store} store did not answer: {problem}")
        self.store = store
        self.problem = problem
