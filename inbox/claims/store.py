"""What a store of claims promises. `inbox.claims.contract` tests that it does."""

from __future__ import annotations

from typing import Protocol

from inbox.claims.claim import Claim, ClaimOutcome, Record, SettleOutcome, State
from inbox.claims.key import Seconds


class ClaimStore(Protocol):
    """Records of claims, one to a key, from async code; `sync` is the same store for sync code.

    Every method is one atomic step, decided by the record and the store's own clock, never by a
    sweeper. Every method may be sent again after its answer was lost, with the same arguments, and
    then answers as the first did. A store that cannot be reached raises StoreUnavailable; a record
    that cannot be read, or is of a newer version, raises CorruptRecord, and nobody gets the claim.
    Bad keys, durations and payloads raise before anything is written. A key comes from `store_key`.
    """

    @property
    def sync(self) -> SyncClaimStore: ...

    async def claim(
        self, key: str, *, fingerprint: str, token: str, lease: Seconds
    ) -> ClaimOutcome:
        """Take the right to run the effect of `key`, for as long as `lease` unless renewed.

        Of any number of callers one gets Claimed. The others get Running, then Done; and Mismatch
        at once if their fingerprint is another one. After release, expiry or the end of a lease the
        next caller gets Claimed, with a fence above all earlier ones of the key. A token that holds
        the claim gets the same claim again, renewed.
        """
        ...

    async def renew(self, claim: Claim, lease: Seconds) -> bool:
        """Let the lease end `lease` from now. False, and nothing is written, if the claim is no
        longer held: it was taken over, released, forgotten or settled."""
        ...

    async def settle(
        self, claim: Claim, state: State, payload: bytes | None, ttl: Seconds
    ) -> SettleOutcome:
        """Save what came of it, COMPLETED or FAILED, for `ttl`. Lost, and nothing is written, if
        the claim is no longer held. A holder whose lease ran out still settles if nobody has taken
        over and the record has not been swept away. Settled twice, the first outcome stands."""
        ...

    async def release(self, claim: Claim) -> bool:
        """Give the claim back, so that the next caller may run the effect. False, and nothing is
        written, if it was no longer held."""
        ...

    async def peek(self, key: str) -> Record | None:
        """The record as it stands, for people and tests; None if it is absent or has expired."""
        ...

    async def forget(self, key: str) -> bool:
        """Let the effect of `key` run again, whatever its state: a holder loses its claim. Also the
        way out of a record that cannot be read. False if there was none."""
        ...

    async def purge(self, limit: int = 1000) -> int:
        """Remove up to `limit` expired records; how many. Only saves room: what has expired is not
        seen anyhow. Where the store's server expires records by itself, 0."""
        ...


class SyncClaimStore(Protocol):
    """A ClaimStore for sync code: the same methods with the same promises, blocking."""

    def claim(self, key: str, *, fingerprint: str, token: str, lease: Seconds) -> ClaimOutcome: ...

    def renew(self, claim: Claim, lease: Seconds) -> bool: ...

    def settle(
        self, claim: Claim, state: State, payload: bytes | None, ttl: Seconds
    ) -> SettleOutcome: ...

    def release(self, claim: Claim) -> bool: ...

    def peek(self, key: str) -> Record | None: ...

    def forget(self, key: str) -> bool: ...

    def purge(self, limit: int = 1000) -> int: ...
