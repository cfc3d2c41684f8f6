"""One command on its way: lock, handle, save the answer, commit; or take everything back.

Written once, as a coroutine. Where handler and session are sync, nothing in it ever waits, and
`without_waiting` runs it to its end.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Coroutine, Iterator
from contextlib import AsyncExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any

from sqlalchemy import event
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from inbox.claims.key import SHORTEST
from inbox.commands.answer import Answer
from inbox.commands.call import Call
from inbox.commands.idempotency import SqlAlchemyIdempotency
from inbox.commands.ledger import Locked
from inbox.commands.request import hash_request
from inbox.errors import (
    AlreadyCompleted,
    CommitRefused,
    IdempotencyConflictError,
    InProgressError,
    NotLocked,
    OutcomeNotVisible,
)
from inbox.metrics import Metrics, Outcome

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Policy:
    """What a guard was told; see `command_guard`."""

    operation: str
    answer: Answer
    tenant: str | Callable[[Any], str]
    ttl: float
    wait: float | None
    commit: bool
    status_code: int
    schema: str | None
    prefix: str
    metrics: Metrics


class Execution:
    def __init__(self, policy: Policy, call: Call, effect: Callable[[], Any]) -> None:
        self._policy = policy
        self._key = call.key
        self._session: Any = call.session
        self._is_async = isinstance(call.session, AsyncSession)
        self._effect = effect
        tenant = policy.tenant if isinstance(policy.tenant, str) else policy.tenant(call.command)
        self._records: SqlAlchemyIdempotency[Any] = SqlAlchemyIdempotency(
            self._session, tenant, policy.ttl, schema=policy.schema, prefix=policy.prefix
        )
        self._request_hash = None if call.key is None else hash_request(call.command)

    async def run(self) -> Any:
        if self._policy.commit:
            return await self._in_own_transaction()
        return await self._in_savepoint()

    async def _in_own_transaction(self) -> Any:
        fresh = not self._session.in_transaction()
        try:
            saved = await self._lock(fresh)
        except BaseException:
            await self._end(fresh)
            raise
        if saved is not None:
            await self._end(fresh)
            return self._policy.answer.load(saved.response)
        try:
            result = await self._handle()
            await self._done(self._session.commit())
        except Exception as exc:
            self._count_failure(exc)
            await self._give_up()
            raise
        except BaseException:  # cancelled, or told to stop: no failure of the command
            await self._done(self._session.rollback())
            raise
        self._count("miss")
        return result

    async def _in_savepoint(self) -> Any:
        async with AsyncExitStack() as stack:
            savepoint = self._session.begin_nested()
            if self._is_async:
                await stack.enter_async_context(savepoint)
            else:
                stack.enter_context(savepoint)
            saved = await self._lock(fresh=False)
            if saved is not None:
                return self._policy.answer.load(saved.response)
            try:
                result = await self._handle()
            except Exception as exc:
                self._count_failure(exc)
                raise
        self._count("miss")
        return result

    async def _handle(self) -> Any:
        policy = self._policy
        with policy.metrics.timed("command", policy.operation), _no_commits(self._session):
            result = await self._done(self._effect())
        # What the answer tells, such as a new row's id, may be known only after this.
        await self._done(self._session.flush())
        if self._key is not None:
            answer = policy.answer.dump(result)
            await self._done(self._records.store_response(self._key, answer, policy.status_code))
        return result

    async def _lock(self, fresh: bool) -> AlreadyCompleted | None:
        """None: the effect is ours to run."""
        try:
            if self._key is not None and (await self._locked(self._key, fresh)).taken_over:
                self._count("takeover")
        except AlreadyCompleted as saved:
            self._count("hit")
            return saved
        except (IdempotencyConflictError, InProgressError, SQLAlchemyError) as exc:
            self._count_refusal(exc)
            raise
        return None

    async def _locked(self, key: str, fresh: bool) -> Locked:
        wait, waiting = self._policy.wait, False
        deadline = float("inf") if wait is None else time.monotonic() + wait
        while True:
            left = max(SHORTEST, deadline - time.monotonic()) if waiting else 0.0
            try:
                return await self._ask(key, None if left == float("inf") else left)
            except OutcomeNotVisible:
                if not fresh or time.monotonic() >= deadline:
                    raise
                await self._end(fresh)  # a new transaction will see it
            except InProgressError:
                if waiting or wait == 0:
                    raise
                self._count("wait")
                waiting = True

    async def _ask(self, key: str, wait: float | None) -> Locked:
        operation, request_hash = self._policy.operation, self._request_hash
        locked: Locked = await self._done(
            self._records.lock(key, operation, request_hash, wait_timeout=wait)
        )
        return locked

    async def _give_up(self) -> None:
        """Rolled back, and FAILED. What goes wrong here must not hide what went wrong before."""
        try:
            if self._key is None:
                await self._done(self._session.rollback())
                return
            await self._done(self._records.mark_failed(self._key))
            await self._done(self._session.commit())
        except Exception:
            failed = self._policy.operation
            log.warning("%s failed, and could not be marked so", failed, exc_info=True)
            with suppress(SQLAlchemyError):
                await self._done(self._session.rollback())

    async def _end(self, fresh: bool) -> None:
        """A transaction that was begun for looking only does not stay open."""
        if fresh:
            await self._done(self._session.rollback())

    async def _done(self, outcome: Any) -> Any:
        return await outcome if self._is_async else outcome

    def _count(self, outcome: Outcome) -> None:
        self._policy.metrics.count("command", self._policy.operation, outcome)

    def _count_failure(self, exc: Exception) -> None:
        self._count("lost" if isinstance(exc, NotLocked) else "failed")

    def _count_refusal(self, exc: Exception) -> None:
        match exc:
            case IdempotencyConflictError():
                self._count("conflict")
            case InProgressError():
                self._count("busy")
            case _:
                self._count("error")


@contextmanager
def _no_commits(session: Session | AsyncSession) -> Iterator[None]:
    """Savepoints that are begun in here may be released; what was begun before may not."""
    plain = session.sync_session if isinstance(session, AsyncSession) else session
    outermost = plain.get_nested_transaction()

    def refuse(session: Session) -> None:
        if session.get_nested_transaction() is outermost:
            raise CommitRefused

    event.listen(plain, "before_commit", refuse)
    try:
        yield
    finally:
        event.remove(plain, "before_commit", refuse)


def without_waiting(coroutine: Coroutine[Any, Any, Any]) -> Any:
    """The result of a coroutine in which nothing waits."""
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value
    raise RuntimeError("a sync command was made to wait")  # cannot happen
