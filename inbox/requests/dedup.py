"""Requests that carry an id of their own: the same one again gets the same reply."""

from __future__ import annotations

import logging
import time
import warnings
from collections.abc import Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from hashlib import sha256
from typing import Any, TypeVar, overload

import msgspec

from inbox.claims.claim import (
    Claim,
    Claimed,
    ClaimOutcome,
    Done,
    Lost,
    Mismatch,
    Running,
    SettleOutcome,
    State,
    new_token,
)
from inbox.claims.heartbeat import holding
from inbox.claims.held import Held
from inbox.claims.key import Seconds, seconds, store_key
from inbox.claims.store import ClaimStore
from inbox.claims.surely import claim_surely, surely
from inbox.claims.waiting import claim_or_wait
from inbox.errors import (
    ClaimLost,
    CorruptRecord,
    IdempotencyConflictError,
    InProgressError,
    InvalidOutcome,
    ResultNotStored,
    StoreUnavailable,
)
from inbox.metrics import METRICS, Metrics, Outcome
from inbox.requests.exclusive import exclusive
from inbox.requests.ids import Id, text_of
from inbox.requests.reply import Reply, dump, load
from outbox import codec
from outbox.errors import NotDecodable, NotEncodable

log = logging.getLogger(__name__)

T = TypeVar("T")

_NOTHING: Any = object()
_sorted = msgspec.json.Encoder(order="sorted").encode


class RequestDedup:
    """Carries a request out once, and replies alike to its repetitions.

    ttl           how long a reply is kept
    lease         after which a crashed worker's request may run again; renewed while it runs
    wait_timeout  how long a repetition waits for the first one's result
    name          of this kind of requests, in the store and in metrics
    """

    def __init__(
        self,
        store: ClaimStore,
        *,
        ttl: Seconds = 300.0,
        lease: Seconds = 60.0,
        wait_timeout: Seconds = 10.0,
        name: str = "requests",
        metrics: Metrics = METRICS,
    ) -> None:
        self._store = store
        self._ttl, self._lease = seconds("ttl", ttl), seconds("lease", lease)
        self._wait_timeout = seconds("wait_timeout", wait_timeout)
        self._name, self._metrics = name, metrics

    @overload
    async def process(
        self,
        entity: Id,
        user: Id,
        request_id: Id,
        handler: Callable[[], Awaitable[T]],
        *,
        result_type: type[T],
        payload: object = ...,
    ) -> Reply[T]: ...

    @overload
    async def process(
        self,
        entity: Id,
        user: Id,
        request_id: Id,
        handler: Callable[[], Awaitable[object]],
        *,
        payload: object = ...,
    ) -> Reply[Any]: ...

    async def process(
        self,
        entity: Id,
        user: Id,
        request_id: Id,
        handler: Callable[[], Awaitable[Any]],
        *,
        result_type: Any = Any,
        payload: object = None,
    ) -> Reply[Any]:
        """What `handler` returns, now or when the request was first carried out.

        The result is what its JSON reads back as, in every reply alike: `result_type`, or dicts,
        lists and the like. One that has no JSON is returned as it is, with a warning, and a
        repetition raises ResultUnavailable.

        With `payload`, the same id with another payload raises IdempotencyConflictError. A handler
        that raises, or is cancelled, leaves the request to be tried again. A repetition that has
        waited for the first one in vain raises InProgressError. ClaimLost: this worker stood still
        for longer than its lease, and another one's reply stands.
        """
        place = self._place(self.key(entity, user, request_id))
        outcome, since = await self._claim(place, _fingerprint(payload))
        if isinstance(outcome, Claimed):
            return await self._run(outcome, since, handler, result_type)
        return Reply(self._saved(place, outcome, result_type), cached=True)

    async def check_and_set(self, key: str, result: T, *, result_type: Any = Any) -> Any:
        """What is kept under `key`; or None, and `result` is kept from now on.

        Of any number of callers, one gets None. This does not keep the work that led to the result
        from being done twice; `process` does. A key for a request comes from `key()`.
        """
        if result is None:
            raise InvalidOutcome("None cannot be kept: it means that nothing was there before")
        payload, _ = dump(result, result_type)
        place = self._place(key)
        outcome, _ = await self._claim(place, "")
        if not isinstance(outcome, Claimed):
            return self._saved(place, outcome, result_type)
        self._count("miss")
        if isinstance(await self._settle(outcome.claim, payload), Lost):
            raise ClaimLost(place)
        return None

    def exclusive(
        self, entity: Id, user: Id, ttl: Seconds = 5.0
    ) -> AbstractAsyncContextManager[Held]:
        """`async with requests.exclusive(entity, user):` one action of the user at a time.

        Raises ConcurrentActionError while another is under way. It ends with the block, or `ttl`
        after its beginning, whichever is first: then another may begin, which this one's end does
        not touch. What the block gives tells that it is `lost`, and its `fence`.
        """
        name = f"{self._name}.exclusive"
        return exclusive(self._store, entity, user, ttl, name, self._metrics)

    def key(self, entity: Id, user: Id, request_id: Id) -> str:
        """One for each triple, whatever signs its parts are made of."""
        entity, user = text_of("entity", entity), text_of("user", user)
        return store_key(text_of("request_id", request_id), scope=entity, tenant=user)

    def _place(self, key: str) -> str:
        return store_key(key, scope=self._name)

    async def _claim(self, key: str, fingerprint: str) -> tuple[ClaimOutcome, float | None]:
        """With the time at which it was asked for, where that is known."""
        since = time.monotonic()
        claim = partial(
            claim_surely,
            self._store,
            key=key,
            fingerprint=fingerprint,
            token=new_token(),
            lease=self._lease,
        )
        try:
            outcome = await claim(self._store.claim)
            if not isinstance(outcome, Running):
                return outcome, since
            self._count("wait")
            waiting = partial(claim_or_wait, self._store, timeout=self._wait_timeout)
            return await claim(waiting), None
        except (StoreUnavailable, CorruptRecord):
            self._count("error")
            raise

    async def _run(
        self,
        claimed: Claimed,
        since: float | None,
        handler: Callable[[], Awaitable[Any]],
        wanted: Any,
    ) -> Reply[Any]:
        self._count("takeover" if claimed.taken_over else "miss")
        claim, result = claimed.claim, _NOTHING
        try:
            async with holding(self._store, claim, self._lease, since):
                with self._metrics.timed("request", self._name):
                    result = await handler()
        except GeneratorExit:
            raise  # closed from outside, and can await nothing any more: the lease will end
        except BaseException as exc:
            if result is _NOTHING:
                await self._fail(claim, exc)
            else:  # cancelled while the heartbeat was being stopped
                await self._succeed(claim, result, wanted)
            raise
        return Reply(await self._succeed(claim, result, wanted), cached=False)

    async def _fail(self, claim: Claim, exc: BaseException) -> None:
        self._count("failed")
        try:
            await surely(lambda: self._store.release(claim))
        except (StoreUnavailable, CorruptRecord) as problem:
            exc.add_note(
                f"and claim {claim.key!r} could not be given back ({problem}): the request is "
                f"refused until its lease of {self._lease:g} s is over"
            )

    async def _succeed(self, claim: Claim, result: Any, wanted: Any) -> Any:
        payload: bytes | None = None
        try:
            payload, result = dump(result, wanted)
        except (NotEncodable, NotDecodable) as exc:
            warnings.warn(
                f"{self._name}: a handler returned what cannot be stored: {exc}. Repetitions of "
                "its request will raise ResultUnavailable",
                ResultNotStored,
                stacklevel=4,
            )
        try:
            settled = await self._settle(claim, payload)
        except (StoreUnavailable, CorruptRecord) as exc:
            # The caller gets the result: an error would make him try again what has happened.
            self._count("error")
            log.warning("the result of %s could not be saved: %s", claim.key, exc)
            return result
        if isinstance(settled, Lost):
            self._count("lost")
            raise ClaimLost(claim.key)
        return result

    async def _settle(self, claim: Claim, payload: bytes | None) -> SettleOutcome:
        return await surely(lambda: self._store.settle(claim, State.COMPLETED, payload, self._ttl))

    def _saved(self, key: str, outcome: Running | Done | Mismatch, wanted: Any) -> Any:
        match outcome:
            case Done(record):
                self._count("hit")
                return load(record, wanted)
            case Running(retry_after):
                self._count("busy")
                raise InProgressError(key, retry_after)
            case Mismatch():
                self._count("conflict")
                raise IdempotencyConflictError(key)

    def _count(self, outcome: Outcome) -> None:
        self._metrics.count("request", self._name, outcome)


def _fingerprint(payload: object) -> str:
    if payload is None:
        return ""
    raw, kind = codec.encode(payload)
    if kind == codec.JSON:
        raw = _sorted(msgspec.json.decode(raw))  # the order of keys in an object means nothing
    return sha256(raw).hexdigest()
