"""What every store is made of: operations, and a way to perform them.

An operation is checked input, as a request that the store's own `perform` understands, and a way to
read the reply. Where `perform` blocks, it makes a SyncStore; where it is awaited, an AsyncStore.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Generic, Protocol, TypeVar

from msgspec import Struct

from inbox.claims.claim import Claim, ClaimOutcome, Record, SettleOutcome, State
from inbox.claims.key import Seconds

T = TypeVar("T")

Perform = Callable[[Any], Any]
PerformAsync = Callable[[Any], Awaitable[Any]]


class Operation(Struct, Generic[T], frozen=True):
    request: Any
    read: Callable[[Any], T]


class Operations(Protocol):
    """The methods of a store, as operations. Raise if an argument is not acceptable."""

    def claim(
        self, key: str, fingerprint: str, token: str, lease: Seconds
    ) -> Operation[ClaimOutcome]: ...

    def renew(self, claim: Claim, lease: Seconds) -> Operation[bool]: ...

    def settle(
        self, claim: Claim, state: State, payload: bytes | None, ttl: Seconds
    ) -> Operation[SettleOutcome]: ...

    def release(self, claim: Claim) -> Operation[bool]: ...

    def peek(self, key: str) -> Operation[Record | None]: ...

    def forget(self, key: str) -> Operation[bool]: ...

    def purge(self, limit: int) -> Operation[int]: ...


class SyncStore:
    """A SyncClaimStore."""

    def __init__(
        self, operations: Operations, perform: Perform, close: Callable[[], None] | None = None
    ) -> None:
        self._operations = operations
        self._perform = perform
        self._close = close

    def close(self) -> None:
        """Close the connections that this twin has opened for itself, if any; it may be used on."""
        if self._close is not None:
            self._close()

    def claim(self, key: str, *, fingerprint: str, token: str, lease: Seconds) -> ClaimOutcome:
        return self._do(self._operations.claim(key, fingerprint, token, lease))

    def renew(self, claim: Claim, lease: Seconds) -> bool:
        return self._do(self._operations.renew(claim, lease))

    def settle(
        self, claim: Claim, state: State, payload: bytes | None, ttl: Seconds
    ) -> SettleOutcome:
        return self._do(self._operations.settle(claim, state, payload, ttl))

    def release(self, claim: Claim) -> bool:
        return self._do(self._operations.release(claim))

    def peek(self, key: str) -> Record | None:
        return self._do(self._operations.peek(key))

    def forget(self, key: str) -> bool:
        return self._do(self._operations.forget(key))

    def purge(self, limit: int = 1000) -> int:
        return self._do(self._operations.purge(limit))

    def _do(self, operation: Operation[T]) -> T:
        return operation.read(self._perform(operation.request))


class AsyncStore:
    """A ClaimStore, whose twin for sync code is made when it is first asked for."""

    def __init__(
        self,
        operations: Operations,
        perform: PerformAsync,
        make_sync: Callable[[], SyncStore],
    ) -> None:
        self._operations = operations
        self._perform = perform
        self._make_sync = make_sync
        self._sync: SyncStore | None = None

    @property
    def sync(self) -> SyncStore:
        if self._sync is None:
            self._sync = self._make_sync()
        return self._sync

    async def claim(
        self, key: str, *, fingerprint: str, token: str, lease: Seconds
    ) -> ClaimOutcome:
        return await self._do(self._operations.claim(key, fingerprint, token, lease))

    async def renew(self, claim: Claim, lease: Seconds) -> bool:
        return await self._do(self._operations.renew(claim, lease))

    async def settle(
        self, claim: Claim, state: State, payload: bytes | None, ttl: Seconds
    ) -> SettleOutcome:
        return await self._do(self._operations.settle(claim, state, payload, ttl))

    async def release(self, claim: Claim) -> bool:
        return await self._do(self._operations.release(claim))

    async def peek(self, key: str) -> Record | None:
        return await self._do(self._operations.peek(key))

    async def forget(self, key: str) -> bool:
        return await self._do(self._operations.forget(key))

    async def purge(self, limit: int = 1000) -> int:
        return await self._do(self._operations.purge(limit))

    async def _do(self, operation: Operation[T]) -> T:
        return operation.read(await self._perform(operation.request))
