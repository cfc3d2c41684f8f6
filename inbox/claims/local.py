"""Operations of the stores that keep records themselves, under a lock, and run the machine."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

from msgspec import Struct

from inbox.claims import claim as machine
from inbox.claims.claim import Claim, ClaimOutcome, Record, SettleOutcome, State
from inbox.claims.key import Seconds, check_claim, check_key, check_limit, outcome, seconds
from inbox.claims.operation import Operation


class Change(Struct, frozen=True):
    """Run `step(record, now=…)` on the record of `key`, and keep the record that it gives."""

    key: str
    step: Callable[..., tuple[Any, Record | None]]


class Forget(Struct, frozen=True):
    """As `machine.forget`; a record that cannot be read is removed."""

    key: str


class Purge(Struct, frozen=True):
    limit: int


Request: TypeAlias = Change | Forget | Purge


class LocalOperations:
    def claim(
        self, key: str, fingerprint: str, token: str, lease: Seconds
    ) -> Operation[ClaimOutcome]:
        check_claim(key, fingerprint, token)
        length = seconds("lease", lease)
        return _change(
            key,
            partial(machine.claim, key=key, fingerprint=fingerprint, token=token, lease=length),
        )

    def renew(self, claim: Claim, lease: Seconds) -> Operation[bool]:
        length = seconds("lease", lease)
        return _change(claim.key, partial(machine.renew, claim=claim, lease=length))

    def settle(
        self, claim: Claim, state: State, payload: bytes | None, ttl: Seconds
    ) -> Operation[SettleOutcome]:
        state, payload = outcome(state, payload)
        length = seconds("ttl", ttl)
        return _change(
            claim.key,
            partial(machine.settle, claim=claim, state=state, payload=payload, ttl=length),
        )

    def release(self, claim: Claim) -> Operation[bool]:
        return _change(claim.key, partial(machine.release, claim=claim))

    def peek(self, key: str) -> Operation[Record | None]:
        check_key(key)
        return _change(key, machine.peek)

    def forget(self, key: str) -> Operation[bool]:
        check_key(key)
        return Operation(Forget(key), bool)

    def purge(self, limit: int) -> Operation[int]:
        return Operation(Purge(check_limit(limit)), int)


def _change(key: str, step: Callable[..., tuple[Any, Record | None]]) -> Operation[Any]:
    return Operation(Change(key, step), _itself)


def _itself(reply: Any) -> Any:
    return reply
