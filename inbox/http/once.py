"""Carries a request out once, and answers for it from then on."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Literal

from inbox.claims.claim import (
    Applied,
    Claim,
    Claimed,
    ClaimOutcome,
    Done,
    Mismatch,
    Record,
    Running,
    State,
    new_token,
)
from inbox.claims.heartbeat import holding
from inbox.claims.store import ClaimStore
from inbox.claims.waiting import claim_or_wait
from inbox.errors import CorruptRecord, StoreUnavailable
from inbox.http import problem
from inbox.http.asgi import App
from inbox.http.exchange import NOT_STORED, REPLAYED, Exchange
from inbox.http.problem import Problem
from inbox.http.response import saved_response
from inbox.metrics import Metrics, Outcome

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Once:
    """The settings are those of IdempotencyMiddleware, in seconds."""

    app: App
    store: ClaimStore
    _: KW_ONLY
    is_stored: Callable[[int], bool]
    ttl: float
    lease: float
    wait: float | None
    on_outage: Literal["refuse", "run"]
    documentation: str | None
    name: str
    metrics: Metrics

    async def answer(self, key: str, fingerprint: str, exchange: Exchange) -> None:
        try:
            outcome, since = await self._claim(key, fingerprint)
        except StoreUnavailable as exc:
            await self._without_store(key, exc, exchange)
            return
        except CorruptRecord as exc:
            await self._unreadable(exc, exchange)
            return
        match outcome:
            case Claimed(claim, taken_over):
                self._count("takeover" if taken_over else "miss")
                await self._run(claim, since, exchange)
            case Done(record):
                await self._replay(record, exchange)
            case Running(retry_after):
                await self._refuse(exchange, problem.in_progress(retry_after), "busy")
            case Mismatch():
                await self._refuse(exchange, problem.key_reused(), "conflict")

    async def _claim(self, key: str, fingerprint: str) -> tuple[ClaimOutcome, float | None]:
        """With the time at which it was asked for, where that is known."""
        token, since = new_token(), time.monotonic()
        outcome = await self.store.claim(
            key, fingerprint=fingerprint, token=token, lease=self.lease
        )
        if self.wait is None or not isinstance(outcome, Running):
            return outcome, since
        self._count("wait")
        outcome = await claim_or_wait(
            self.store,
            key,
            fingerprint=fingerprint,
            token=token,
            lease=self.lease,
            timeout=self.wait,
        )
        return outcome, None

    async def _run(self, claim: Claim, since: float | None, exchange: Exchange) -> None:
        """What the application does after its response (background tasks) is not guarded, and
        nobody waits for it."""
        try:
            async with holding(self.store, claim, self.lease, since):
                running = asyncio.ensure_future(
                    self.app(exchange.scope, exchange.receive, exchange.send)
                )
                running.add_done_callback(lambda _: exchange.over.set())
                with self.metrics.timed("http", self.name):
                    await exchange.over.wait()
        except asyncio.CancelledError:  # not by the client: the event loop is closing
            running.cancel()
            await asyncio.wait({running})
            await self._release(claim)
            raise
        stored = await self._conclude(claim, exchange)
        if exchange.whole and not exchange.passes:
            await exchange.respond(exchange.response(), *(() if stored else (NOT_STORED,)))
            exchange.let_pass()  # it may now hear that the client has left
        await running

    async def _conclude(self, claim: Claim, exchange: Exchange) -> bool:
        """Whether the response is stored. One that has passed can only be remembered as given."""
        # A stream that its client has cut off: the application did what it was asked for.
        given = exchange.whole or (exchange.passes and exchange.client_left)
        if given and self.is_stored(exchange.status):
            payload = None if exchange.passes else exchange.response().encode()
            return await self._settle(claim, payload)
        self._count("failed")
        await self._release(claim)
        return False

    async def _settle(self, claim: Claim, payload: bytes | None) -> bool:
        try:
            settled = await self.store.settle(claim, State.COMPLETED, payload, self.ttl)
        except (StoreUnavailable, CorruptRecord) as exc:
            self._count("error")
            log.error("the response to %s is given but could not be stored: %s", claim.key, exc)
            return False
        if isinstance(settled, Applied):
            return True
        self._count("lost")
        log.error("the response to %s is given but not stored: another has taken over", claim.key)
        return False

    async def _release(self, claim: Claim) -> None:
        try:
            await self.store.release(claim)
        except (StoreUnavailable, CorruptRecord) as exc:
            log.warning("could not release %s, which ends with its lease: %s", claim.key, exc)

    async def _replay(self, record: Record, exchange: Exchange) -> None:
        try:
            response = saved_response(record)
        except CorruptRecord as exc:
            await self._unreadable(exc, exchange)
            return
        if response is None:
            await self._refuse(exchange, problem.response_not_kept(), "hit")
        else:
            self._count("hit")
            await exchange.respond(response, REPLAYED)

    async def _without_store(self, key: str, exc: StoreUnavailable, exchange: Exchange) -> None:
        log.error("cannot guard %s (%s it): %s", key, self.on_outage, exc)
        if self.on_outage == "refuse":
            await self._refuse(exchange, problem.store_unavailable(), "error")
            return
        self._count("error")
        exchange.let_pass()
        await self.app(exchange.scope, exchange.receive, exchange.send)

    async def _unreadable(self, exc: CorruptRecord, exchange: Exchange) -> None:
        """Never run it, whatever `on_outage` says: its effect may have happened."""
        log.error("%s", exc)
        await self._refuse(exchange, problem.record_unreadable(), "error")

    async def _refuse(self, exchange: Exchange, why: Problem, outcome: Outcome) -> None:
        self._count(outcome)
        await exchange.respond(why.response(self.documentation))

    def _count(self, outcome: Outcome) -> None:
        self.metrics.count("http", self.name, outcome)
