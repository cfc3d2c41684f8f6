"""What can go wrong around a claim. Every error carries its data as attributes."""

from __future__ import annotations

from datetime import timedelta
from typing import Any


class InboxError(Exception):
    """The base of every error of this package."""

    def __reduce__(self) -> tuple[Any, ...]:
        # By what it holds, not by calling it again: a pool of processes must get it back whole.
        return _restored, (type(self), self.args, self.__dict__)


def _restored(kind: type[InboxError], args: tuple[Any, ...], data: dict[str, Any]) -> InboxError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(data)
    return error


class ArgumentNotEncodable(InboxError, TypeError):
    """A call cannot be told from others by this argument; the function did not run."""

    def __init__(self, path: str, problem: str) -> None:
        super().__init__(
            f"{path}: {problem}. Say what makes two calls the same: "
            "@idempotent(key=lambda ...: f'...')"
        )
        self.path = path
        self.problem = problem


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


class InvalidSetting(InboxError, ValueError):
    """A door was given a setting that it does not know."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem


class InvalidOutcome(InboxError, TypeError):
    """A claim can be settled as completed or failed, with bytes or None; nothing was written."""


class InvalidGuard(InboxError, TypeError):
    """What was given to `@idempotent` cannot be guarded, or not like this."""


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


class DuplicateExecutionError(InboxError):
    """This call has been made before; the function did not run."""

    def __init__(self, key: str, status: str) -> None:
        super().__init__(f"the call {key!r} has been made before and is {status}")
        self.key = key
        self.status = status


class InProgressError(DuplicateExecutionError):
    """This call is being made elsewhere, and has no result yet; the function did not run again."""

    def __init__(self, key: str, retry_after: timedelta) -> None:
        super().__init__(key, "in_progress")
        self.retry_after = retry_after
        """No later than this the other one ends, or its lease unless it is renewed."""

    def __str__(self) -> str:
        seconds = self.retry_after.total_seconds()
        return f"the call {self.key!r} is still running elsewhere: ask again within {seconds:.3g} s"


class OutcomeNotVisible(InProgressError):
    """Somebody else has run it, in a transaction that yours began too early to see."""

    def __init__(self, key: str) -> None:
        super().__init__(key, timedelta(0))

    def __str__(self) -> str:
        return (
            f"the outcome of {self.key!r} was committed after your transaction began, whose "
            "isolation hides it: roll back and ask again"
        )


class AlreadyLocked(InProgressError):
    """The same object has locked this key before; nobody can wait for themselves."""

    def __str__(self) -> str:
        return f"{self.key!r} was locked by this very object before: settle it first"


class AlreadyCompleted(DuplicateExecutionError):
    """It has been run: answer with `response` and `status_code`, which were saved with it."""

    def __init__(self, key: str, response: Any, status_code: int | None) -> None:
        super().__init__(key, "completed")
        self.response = response
        self.status_code = status_code

    def __str__(self) -> str:
        return f"{self.key!r} was completed before: answer with the saved response"


class IdempotencyConflictError(InboxError):
    """The key was used before for another operation or another request."""

    def __init__(self, key: str, problem: str = "another request") -> None:
        super().__init__(
            f"{key!r} was used before for {problem}: send a new key with a new request"
        )
        self.key = key
        self.problem = problem


class ResultUnavailable(InboxError):
    """The call was made and went well, but what it returned cannot be given again."""

    def __init__(self, key: str, problem: str) -> None:
        super().__init__(
            f"the call {key!r} was completed, and is not made again, but {problem}. Return what "
            "JSON can carry and the return annotation can read back"
        )
        self.key = key
        self.problem = problem


class NotLocked(InboxError):
    """There is no pending record to write the outcome to; nothing was written."""

    def __init__(self, key: str) -> None:
        super().__init__(
            f"{key!r} is not locked here: it was never locked, its lock was rolled back, or it "
            "expired and somebody else has taken it over. Roll back, so that nothing is done twice"
        )
        self.key = key


class CommitRefused(InboxError):
    """A handler tried to commit the transaction of the guard around it; nothing was committed."""

    def __init__(self) -> None:
        super().__init__(
            "the guard commits, so that the effect and its record are one: take the commit out of "
            "the handler (savepoints are fine)"
        )


class ReplayedFailure(InboxError):
    """The call was made and failed, and failures are kept (on_failure="lock").

    type       the qualified name of the exception's class, without "builtins."
    message    its text
    arguments  its args, as JSON gives them back
    """

    def __init__(self, key: str, type: str, message: str, arguments: tuple[object, ...]) -> None:
        super().__init__(
            f"the call {key!r} failed when it was made, and is not made again: {type}: {message}"
        )
        self.key = key
        self.type = type
        self.message = message
        self.arguments = arguments


class ResultNotStored(UserWarning):
    """A call went well, but its result cannot be stored: a replay will raise ResultUnavailable."""


class BadHandler(InboxError, TypeError):
    """A function cannot be a handler as it stands."""

    def __init__(self, function: object, problem: str) -> None:
        super().__init__(f"handler {getattr(function, '__qualname__', function)!s}: {problem}")
        self.function = function
        self.problem = problem


class PermanentError(InboxError):
    """Raise it in a handler when trying again is of no use: the event is a dead letter at once."""


class WindowTooShort(InboxError, ValueError):
    """Events may be published again after the inbox has forgotten that they were handled."""

    def __init__(self, window: float, retention: float) -> None:
        super().__init__(
            f"the inbox remembers events for {window:g} s, but the outbox keeps rows for "
            f"{retention:g} s and may publish them again: give the inbox a longer window"
        )
        self.window = window
        self.retention = retention


class NoProjector(InboxError):
    """Nobody has said yet how many lanes the outbox has."""

    def __init__(self, name: str) -> None:
        super().__init__(
            f"no projector of outbox {name!r} has been seen in this Redis: start one, or say "
            "Consumer(lanes=…)"
        )
        self.name = name


class ConcurrentActionError(InboxError):
    """The user is doing something else to the entity; nothing was done."""

    def __init__(self, entity: str, user: str, retry_after: timedelta) -> None:
        super().__init__(
            f"user {user!r} has another action on {entity!r} under way: wait for its answer, or "
            f"{retry_after.total_seconds():.3g} s at most"
        )
        self.entity = entity
        self.user = user
        self.retry_after = retry_after


class QueueFull(InboxError):
    """As many requests wait for this key as may; yours was not taken."""

    def __init__(self, key: object, limit: int) -> None:
        super().__init__(f"{limit} requests already wait for {key!r}: try again later")
        self.key = key
        self.limit = limit


class ExecutorClosed(InboxError):
    """The executor is shut down; the request was not carried out, or was cut off if `begun`."""

    def __init__(self, key: object, begun: bool = False) -> None:
        what = "cut off in the middle" if begun else "not carried out"
        super().__init__(f"the executor is closed: the request for {key!r} was {what}")
        self.key = key
        self.begun = begun


class WaitsForItself(InboxError):
    """A request waits for its own queue, which waits for the request."""

    def __init__(self, key: object) -> None:
        super().__init__(
            f"a request for {key!r} wants to wait for another one behind it in the same queue: do "
            "the work directly, or submit it without waiting"
        )
        self.key = key
