"""What all calls of a guarded function share: its settings, its keys, and what outcomes mean."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, get_args

from inbox.claims.claim import (
    Claimed,
    Done,
    Lost,
    Mismatch,
    Running,
    SettleOutcome,
)
from inbox.claims.key import Seconds, seconds
from inbox.claims.memory import process_store
from inbox.claims.store import ClaimStore
from inbox.errors import (
    ClaimLost,
    CorruptRecord,
    DuplicateExecutionError,
    InProgressError,
    InvalidGuard,
    ResultNotStored,
)
from inbox.guard.arguments import KeyFunction, Keys
from inbox.guard.outcome import Results, encode_failure
from inbox.metrics import METRICS, Metrics, Outcome

log = logging.getLogger(__name__)

_TO_THE_CALLER = 6
"""Frames: succeeded, _succeed, _run, call, __call__, and the line that called."""

OnDuplicate = Literal["return", "raise", "wait"]
OnFailure = Literal["unlock", "lock"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The arguments of `idempotent`, which describes them."""

    ttl: Seconds = 300.0
    key: KeyFunction | None = None
    on_duplicate: OnDuplicate = "return"
    on_failure: OnFailure = "unlock"
    store: ClaimStore | None = None
    lease: Seconds = 60.0
    wait_timeout: Seconds | None = 30.0
    name: str | None = None
    metrics: Metrics = METRICS

    def __post_init__(self) -> None:
        _check_choice("on_duplicate", self.on_duplicate, get_args(OnDuplicate))
        _check_choice("on_failure", self.on_failure, get_args(OnFailure))
        seconds("ttl", self.ttl)
        seconds("lease", self.lease)
        if self.wait_timeout:
            seconds("wait_timeout", self.wait_timeout)
        if self.name is not None and (not isinstance(self.name, str) or not self.name):
            raise InvalidGuard(f"name needs text, not {self.name!r}")
        if self.key is not None and not callable(self.key):
            raise InvalidGuard(f"key needs a function of the call's arguments, not {self.key!r}")


def _check_choice(field: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise InvalidGuard(f"{field} is one of {', '.join(map(repr, choices))}, not {value!r}")


class Guard:
    """Decides; whoever makes the call carries it out, in sync or in async code."""

    def __init__(self, function: Callable[..., Any], name: str, options: Options) -> None:
        self.function = function
        self.name = name
        self.store: ClaimStore = process_store() if options.store is None else options.store
        self.ttl = seconds("ttl", options.ttl)
        self.lease = seconds("lease", options.lease)
        self.wait_timeout = options.wait_timeout
        self.waits = options.on_duplicate == "wait"
        self.metrics = options.metrics
        self.key_of = Keys(function, name, options.key).of
        self.results = Results(function)
        self._replays = options.on_duplicate != "raise"
        self._unlocks = options.on_failure == "unlock"

    def count(self, outcome: Outcome) -> None:
        self.metrics.count("function", self.name, outcome)

    def answer(self, key: str, outcome: Running | Done | Mismatch) -> Any:
        """What a call returns or raises without running the function."""
        match outcome:
            case Running(retry_after):
                self.count("busy")
                raise InProgressError(key, retry_after)
            case Done(record):
                self.count("hit")
                if self._replays:
                    return self.results.replay(record)
                raise DuplicateExecutionError(key, record.status)
            case Mismatch():
                self.count("conflict")
                raise CorruptRecord(key, "something else than this function uses its key")

    def verdict(self, exc: BaseException) -> bytes | None:
        """What to save of a failure; None if the claim shall be released instead.

        Kept failures include interruptions: whoever locks after a failure does not want to repeat
        what may be half done.
        """
        self.count("failed")
        return None if self._unlocks else encode_failure(exc)

    def failed(self, key: str, exc: BaseException, kept: bool | SettleOutcome) -> None:
        """The failure was saved, or the claim released; if it was still ours to do that."""
        if kept is False or isinstance(kept, Lost):
            self.count("lost")
            exc.add_note(str(ClaimLost(key)))

    def failed_unsaved(self, key: str, exc: BaseException, problem: Exception) -> None:
        """The store was away when the function had failed: its own exception is what counts."""
        self.count("error")
        exc.add_note(
            f"and claim {key!r} could not be given back ({problem}): calls like this one are "
            f"refused until its lease of {self.lease:g} s is over"
        )

    def succeeded(self, key: str, settled: SettleOutcome, problem: str | None) -> None:
        if isinstance(settled, Lost):
            self.count("lost")
            raise ClaimLost(key)
        if problem is not None:
            warnings.warn(
                f"{self.name} returned what cannot be stored: {problem}. Repeated calls will raise "
                "ResultUnavailable",
                ResultNotStored,
                stacklevel=_TO_THE_CALLER,
            )

    def succeeded_unsaved(self, key: str, problem: Exception) -> None:
        """The store was away when the function had succeeded: the caller gets the result, since an
        error would make him try again what has happened."""
        self.count("error")
        log.warning(
            "%s has run, but this could not be saved (%s): calls like claim %s are refused for up "
            "to %g s, and then run it again",
            self.name,
            problem,
            key,
            self.lease,
        )

    def began(self, claimed: Claimed) -> None:
        self.count("takeover" if claimed.taken_over else "miss")
