"""The claim machine: what a claim is, and how its record goes from one state to the next.

absent ─claim→ RUNNING ─settle→ COMPLETED | FAILED ─expiry→ absent
                  ├─ release → absent
                  └─ lease over: the next claim takes over, with a higher fence

Pure: no I/O, no clock. Each transition takes the record as it stands (None where there is none) and
the store's time, and gives the outcome and the record as it shall stand. The record that comes back
is the very object that went in if nothing is to be written. Times are seconds since 1970 by the
store's clock.
"""

from __future__ import annotations

import secrets
from datetime import timedelta
from enum import StrEnum
from typing import TypeAlias

from msgspec import Struct
from msgspec.structs import replace

VERSION = 1
"""Of the records. A store refuses to touch records of a higher one."""


class State(StrEnum):
    """The values are stored."""

    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    RELEASED = "released"
    """What a release leaves behind: as good as absent, but it remembers the fence."""


STATUS = {State.RUNNING: "in_progress"}
"""The words of `Record.status` that are not the state's own."""


class Claim(Struct, frozen=True, gc=False):
    """The right to run the effect of `key`.

    token  whose it is; unique to one attempt
    fence  grows with every new holder of the key: hand it to what the effect changes, and let that
           refuse a lower one than it has seen
    """

    key: str
    token: str
    fence: int
    fingerprint: str = ""


class Record(Struct, frozen=True, gc=False):  # scalars only, and many of them
    """What a store remembers of a key, until `expires_at`: while running, the end of the lease.

    A `payload` of None was stored as such; a key of which nothing is stored has no record.
    A Struct: made several times a call, and a frozen dataclass takes ten times as long to make.
    """

    key: str
    state: State
    token: str
    fence: int
    fingerprint: str
    payload: bytes | None
    started_at: float
    heartbeat: float
    completed_at: float | None
    expires_at: float
    version: int = VERSION

    @property
    def status(self) -> str:
        """ "in_progress", "completed" or "failed"."""
        return STATUS.get(self.state, str(self.state))

    @property
    def result(self) -> bytes | None:
        return self.payload if self.state is State.COMPLETED else None

    @property
    def error(self) -> bytes | None:
        return self.payload if self.state is State.FAILED else None


class Claimed(Struct, frozen=True):
    """It is yours: run the effect, then settle or release."""

    claim: Claim
    taken_over: bool = False
    """An earlier holder's lease ran out: the effect may have happened, or be half done."""


class Running(Struct, frozen=True):
    """Somebody else runs it; no later than `retry_after` the lease ends unless it is renewed."""

    retry_after: timedelta


class Done(Struct, frozen=True):
    """It has been run: `record.state` is COMPLETED or FAILED, `record.payload` what was saved."""

    record: Record


class Mismatch(Struct, frozen=True):
    """The key is in use for something else: `fingerprint` is what was claimed under it."""

    fingerprint: str


class Applied(Struct, frozen=True):
    """The outcome is saved."""


class Lost(Struct, frozen=True):
    """The claim was no longer yours; nothing was written."""


ClaimOutcome: TypeAlias = Claimed | Running | Done | Mismatch
SettleOutcome: TypeAlias = Applied | Lost


def new_token() -> str:
    """Unlike every other, from whatever process or thread."""
    return secrets.token_hex(16)


def is_absent(record: Record | None, now: float) -> bool:
    """Nothing binds the key: the record decides, whether or not somebody has swept it away."""
    return record is None or record.expires_at <= now


def may_be_purged(record: Record, now: float) -> bool:
    """It binds nobody, and the clock alone gives the next claim of its key a higher fence."""
    return is_absent(record, now) and record.fence < microseconds(now)


def microseconds(now: float) -> int:
    return int(now * 1_000_000)


def claim(
    record: Record | None, *, key: str, fingerprint: str, token: str, lease: float, now: float
) -> tuple[ClaimOutcome, Record | None]:
    if record is not None and _is_mine(record, token, fingerprint):
        # The same request again, after its answer was lost: the same claim, not a second owner.
        kept = replace(record, heartbeat=now, expires_at=now + lease)
        return Claimed(_claim_of(kept)), kept
    if record is None or is_absent(record, now):
        # Not below the clock: where nothing remembers the last fence, time has moved on since.
        fence = max(record.fence + 1 if record else 1, microseconds(now))
        taken_over = record is not None and record.state is State.RUNNING
        fresh = Record(
            key=key,
            state=State.RUNNING,
            token=token,
            fence=fence,
            fingerprint=fingerprint,
            payload=None,
            started_at=now,
            heartbeat=now,
            completed_at=None,
            expires_at=now + lease,
        )
        return Claimed(_claim_of(fresh), taken_over), fresh
    # Before the state, so that a wrong payload fails at once and not only when the first is done.
    if record.fingerprint != fingerprint:
        return Mismatch(record.fingerprint), record
    if record.state is State.RUNNING:
        return Running(timedelta(seconds=record.expires_at - now)), record
    return Done(record), record


def renew(
    record: Record | None, claim: Claim, *, lease: float, now: float
) -> tuple[bool, Record | None]:
    """A lease that ran out is renewed too, as long as nobody has taken the claim over."""
    if record is None or not _owns(claim, record) or record.state is not State.RUNNING:
        return False, record
    return True, replace(record, heartbeat=now, expires_at=now + lease)


def settle(
    record: Record | None,
    claim: Claim,
    *,
    state: State,
    payload: bytes | None,
    ttl: float,
    now: float,
) -> tuple[SettleOutcome, Record | None]:
    """Also after the lease, if nobody has taken the claim over. The first outcome stands."""
    if record is None or not _owns(claim, record) or record.state is State.RELEASED:
        return Lost(), record
    if record.state is not State.RUNNING:
        return (Lost() if is_absent(record, now) else Applied()), record
    return Applied(), replace(
        record, state=state, payload=payload, completed_at=now, expires_at=now + ttl
    )


def release(record: Record | None, claim: Claim, *, now: float) -> tuple[bool, Record | None]:
    if record is None or not _owns(claim, record):
        return False, record
    if record.state is State.RUNNING:
        return True, _tombstone(record, now)
    return record.state is State.RELEASED, record


def forget(record: Record | None, *, now: float) -> tuple[bool, Record | None]:
    if record is None or is_absent(record, now):
        return False, record
    # Nobody's: its holder must not think that it was the one who gave it back.
    return True, replace(_tombstone(record, now), token="")


def peek(record: Record | None, *, now: float) -> tuple[Record | None, Record | None]:
    return (None if is_absent(record, now) else record), record


def _tombstone(record: Record, now: float) -> Record:
    """What is left of a record that binds nobody any more: its fence."""
    return replace(record, state=State.RELEASED, payload=None, expires_at=now)


def _claim_of(record: Record) -> Claim:
    return Claim(record.key, record.token, record.fence, record.fingerprint)


def _is_mine(record: Record, token: str, fingerprint: str) -> bool:
    return (record.state, record.token, record.fingerprint) == (State.RUNNING, token, fingerprint)


def _owns(claim: Claim, record: Record) -> bool:
    # The fence too: a token may be claimed anew after its release, and then an old request arrive.
    return (claim.token, claim.fence) == (record.token, record.fence)
