"""`SqlAlchemyIdempotency` in one session after another: what each step gives and leaves."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import MetaData, func, select, text, update
from sqlalchemy.ext.asyncio import async_scoped_session, async_sessionmaker
from sqlalchemy.orm import scoped_session, sessionmaker

import inbox
from inbox import (
    AlreadyCompleted,
    IdempotencyConflictError,
    IdempotencyRecord,
    InProgressError,
    InvalidDuration,
    InvalidKey,
    InvalidOutcome,
    InvalidSource,
    NotLocked,
    SqlAlchemyIdempotency,
    StoredResponse,
)
from outbox.errors import NotEncodable
from support.desk import Desk, Order, done

LOCK = ("k", "CreateOrder", "hash")


async def expire(desk: Desk, seconds: float = -1) -> None:
    """Let every record end so many seconds from now."""
    async with desk.open() as session:
        if desk.is_postgres:
            then: Any = func.now() + timedelta(seconds=seconds)
        else:
            then = func.strftime("%Y-%m-%d %H:%M:%f000", "now", f"{seconds} seconds")
        await done(session.execute(update(IdempotencyRecord).values(expires_at=then)))
        await done(session.commit())


async def usable(session: Any) -> bool:
    """Whether the open transaction takes statements still."""
    return (await done(session.execute(text("SELECT 1")))).scalar_one() == 1


async def test_the_way_of_a_command(desk: Desk) -> None:
    """Nothing is saved; lock; effect; answer; commit; then the answer is given again."""
    async with desk.open() as session:
        records = SqlAlchemyIdempotency(session)
        assert await done(records.get_response("k")) is None
        await done(records.lock(*LOCK))
        session.add(Order(total=1))
        await done(records.store_response("k", {"id": 1, "tags": ["a", None]}, 201))
        await done(session.commit())
    async with desk.open() as session:
        cached = await done(SqlAlchemyIdempotency(session).get_response("k"))
        assert cached
        assert cached == StoredResponse({"id": 1, "tags": ["a", None]}, 201)
    assert await desk.records("tenant_id", "operation", "request_hash", "state", "status_code") == [
        ("default", "CreateOrder", "hash", "COMPLETED", 201)
    ]
    assert await desk.orders() == 1


async def test_the_record_lives_in_your_transaction(desk: Desk) -> None:
    """Rolled back, neither effect nor record are there, and the key is free."""
    async with desk.open() as session:
        records = SqlAlchemyIdempotency(session)
        await done(records.lock(*LOCK))
        session.add(Order(total=1))
        await done(records.store_response("k", {}, 200))
        await done(session.rollback())
        assert await desk.records() == []
        assert await desk.orders() == 0
        assert (await done(records.lock(*LOCK))).taken_over is False


async def test_nothing_is_flushed_or_committed_for_you(desk: Desk) -> None:
    """Objects that you have not flushed stay so, and the transaction stays open."""
    async with desk.open() as session:
        records = SqlAlchemyIdempotency(session)
        order = Order(total=1)
        session.add(order)
        await done(records.lock(*LOCK))
        await done(records.store_response("k", {}, 200))
        assert order in session.new
        assert session.in_transaction()


async def test_a_completed_key_is_not_locked_again(desk: Desk) -> None:
    """Who did not look first, or looked too early, gets the answer with the refusal."""
    await desk.complete(response={"id": 1})
    async with desk.open() as session:
        with pytest.raises(AlreadyCompleted) as refused:
            await done(SqlAlchemyIdempotency(session).lock(*LOCK))
        assert (refused.value.response, refused.value.status_code) == ({"id": 1}, 201)
        assert isinstance(refused.value, inbox.DuplicateExecutionError)
        assert await usable(session)


@pytest.mark.parametrize(
    "other",
    [("k", "CancelOrder", "hash"), ("k", "CreateOrder", "other")],
    ids=["operation", "hash"],
)
@pytest.mark.parametrize("state", ["PENDING", "COMPLETED", "FAILED"])
async def test_another_request_under_the_same_key_is_a_conflict(
    desk: Desk, other: tuple[str, str, str], state: str
) -> None:
    """Whatever became of the first; and the session is usable after it."""
    await desk.complete()
    async with desk.open() as session:
        await done(session.execute(update(IdempotencyRecord).values(state=state)))
        await done(session.commit())
        records = SqlAlchemyIdempotency(session)
        with pytest.raises(IdempotencyConflictError, match="'k' was used before for"):
            await done(records.lock(*other))
        with pytest.raises(IdempotencyConflictError):
            await done(records.get_response(*other))
        assert await usable(session)
        assert (await desk.records("state", "operation")) == [(state, "CreateOrder")]


async def test_a_hash_that_is_not_known_is_not_compared(desk: Desk) -> None:
    """None on either side."""
    await desk.complete()
    async with desk.open() as session:
        records = SqlAlchemyIdempotency(session)
        with pytest.raises(AlreadyCompleted):
            await done(records.lock("k", "CreateOrder", None))
        await done(session.execute(update(IdempotencyRecord).values(request_hash=None)))
        with pytest.raises(AlreadyCompleted):
            await done(records.lock(*LOCK))


async def test_tenants_do_not_meet(desk: Desk) -> None:
    """The same key of two tenants are two commands; no delimiter makes them one."""
    await desk.complete("k", {"of": "a"}, tenant_id="a")
    async with desk.open() as session:
        b = SqlAlchemyIdempotency(session, tenant_id="b")
        assert await done(b.get_response("k")) is None
        await done(b.lock("k", "CancelOrder", "other"))
        await done(b.store_response("k", {"of": "b"}, 200))
        await done(session.commit())
        a = SqlAlchemyIdempotency(session, "a")
        assert (await done(a.get_response("k"))) == StoredResponse({"of": "a"}, 201)
        await done(
            SqlAlchemyIdempotency(session, "t").lock("1:k", "CreateOrder", None, wait_timeout=0)
        )
        await done(
            SqlAlchemyIdempotency(session, "t1:").lock("k", "CreateOrder", None, wait_timeout=0)
        )


async def test_failed_rolls_back_first(desk: Desk) -> None:
    """Also in the order that would commit half-done work: mark, then commit."""
    async with desk.open() as session:
        records = SqlAlchemyIdempotency(session)
        await done(records.lock(*LOCK))
        session.add(Order(total=1))
        await done(session.flush())
        await done(records.mark_failed("k"))
        await done(session.commit())
    assert await desk.orders() == 0
    assert await desk.records("state", "operation", "request_hash") == [
        ("FAILED", "CreateOrder", "hash")
    ]


async def test_failed_after_a_broken_statement(postgres_desk: Desk) -> None:
    """A transaction that the database has aborted is no obstacle."""
    async with postgres_desk.open() as session:
        records = SqlAlchemyIdempotency(session)
        await done(records.lock(*LOCK))
        with pytest.raises(Exception, match="division by zero"):
            await done(session.execute(text("SELECT 1 / 0")))
        await done(records.mark_failed("k"))
        await done(session.commit())
    assert await postgres_desk.records() == [("FAILED",)]


async def test_a_failed_command_may_be_tried_again(desk: Desk) -> None:
    """Its record has no answer, and the lock takes it."""
    async with desk.open() as session:
        records = SqlAlchemyIdempotency(session)
        await done(records.lock(*LOCK))
        await done(records.mark_failed("k"))
        await done(session.commit())
        assert await done(records.get_response("k")) is None
        assert (await done(records.lock(*LOCK))).taken_over is False
        await done(records.store_response("k", "at last", 200))
        await done(session.commit())
        assert await done(records.get_response("k")) == StoredResponse("at last", 200)


async def test_failed_twice(desk: Desk) -> None:
    """The second failure is written over the first."""
    async with desk.open() as session:
        records = SqlAlchemyIdempotency(session)
        for _ in range(2):
            await done(records.lock(*LOCK))
            await done(records.mark_failed("k"))
            await done(session.commit())
    assert await desk.records() == [("FAILED",)]


async def test_marking_does_not_touch_a_success_of_somebody_else(desk: Desk) -> None:
    """Who failed and was overtaken leaves the other's answer."""
    async with desk.open() as session:
        records = SqlAlchemyIdempotency(session)
        await done(records.lock(*LOCK))
        await done(session.rollback())
        await desk.complete(response="theirs")
        await done(records.mark_failed("k"))
        await done(session.commit())
        assert await done(records.get_response("k")) == StoredResponse("theirs", 201)


async def test_an_outcome_needs_a_lock(desk: Desk) -> None:
    """Without one, after its rollback, or once completed: NotLocked, and nothing is written."""
    async with desk.open() as session:
        records = SqlAlchemyIdempotency(session)
        for outcome in (
            lambda: records.store_response("k", {}, 200),
            lambda: records.mark_failed("k"),
        ):
            with pytest.raises(NotLocked, match="Roll back"):
                await done(outcome())
        await done(records.lock(*LOCK))
        await done(session.rollback())
        with pytest.raises(NotLocked):
            await done(records.store_response("k", {}, 200))
        assert await usable(session)
        await done(session.rollback())
        await desk.complete(response="first")
        with pytest.raises(NotLocked):
            await done(records.store_response("k", "second", 200))
    assert await desk.records("response") == [("first",)]


async def test_a_key_is_not_locked_twice_by_one_object(desk: Desk) -> None:
    """Nobody waits for themselves: refused at once, whatever the patience."""
    async with desk.open() as session:
        records = SqlAlchemyIdempotency(session)
        await done(records.lock(*LOCK))
        with pytest.raises(InProgressError, match="by this very object"):
            await done(records.lock(*LOCK, wait_timeout=None))
        await done(records.store_response("k", {}, 200))


async def test_a_savepoint_takes_its_lock_along(desk: Desk) -> None:
    """Rolled back to before the lock, the key is free, for others too."""
    async with desk.open() as session:
        records = SqlAlchemyIdempotency(session)
        savepoint = await done(session.begin_nested())
        await done(records.lock(*LOCK))
        await done(savepoint.rollback())
        if desk.is_postgres:
            await desk.complete()  # SQLite has one writer
            with pytest.raises(AlreadyCompleted):
                await done(records.lock(*LOCK))
        else:
            await done(records.lock(*LOCK))


async def test_a_lock_that_was_committed_binds_until_it_expires(desk: Desk) -> None:
    """Its holder may have died: others are refused, then one of them takes over."""
    async with desk.open() as session:
        holder = SqlAlchemyIdempotency(session, ttl=3600)
        await done(holder.lock(*LOCK))
        await done(session.commit())
        async with desk.open() as another:
            records = SqlAlchemyIdempotency(another)
            with pytest.raises(InProgressError) as busy:
                await done(records.lock(*LOCK, wait_timeout=0.05))
            assert busy.value.retry_after > timedelta(0)
            assert await usable(another)
            await done(another.rollback())
            await expire(desk)
            assert (await done(records.lock(*LOCK))).taken_over
            await done(records.store_response("k", "successor", 200))
            await done(another.commit())
        with pytest.raises(NotLocked):
            await done(holder.store_response("k", "zombie", 200))
        await done(holder.mark_failed("k"))
        await done(session.commit())
    assert await desk.records("state", "response") == [("COMPLETED", "successor")]


async def test_a_zombie_does_not_settle_the_lock_of_its_successor(desk: Desk) -> None:
    """The successor is pending still: the time of the lock tells them apart."""
    async with desk.open() as session, desk.open() as another:
        holder, successor = SqlAlchemyIdempotency(session), SqlAlchemyIdempotency(another)
        await done(holder.lock(*LOCK))
        await done(session.commit())
        await expire(desk)
        await done(successor.lock(*LOCK))
        await done(another.commit())
        with pytest.raises(NotLocked):
            await done(holder.store_response("k", "zombie", 200))
        await done(holder.mark_failed("k"))
        await done(session.commit())
        await done(successor.store_response("k", "successor", 200))
        await done(another.commit())
    assert await desk.records("state", "response") == [("COMPLETED", "successor")]


async def test_a_committed_lock_can_be_settled_from_elsewhere(desk: Desk) -> None:
    """Another object, in another transaction, as long as the lock lasts."""
    async with desk.open() as session:
        await done(SqlAlchemyIdempotency(session).lock(*LOCK))
        await done(session.commit())
        await done(SqlAlchemyIdempotency(session).store_response("k", "late", 200))
        await done(session.rollback())
        await expire(desk)
        with pytest.raises(NotLocked):
            await done(SqlAlchemyIdempotency(session).store_response("k", "too late", 200))
        await done(session.rollback())
        await expire(desk, 60)
        await done(SqlAlchemyIdempotency(session).mark_failed("k"))
        await done(session.commit())
    assert await desk.records() == [("FAILED",)]


async def test_records_expire_after_a_day(desk: Desk) -> None:
    """24 hours from the answer, or as said."""
    for key, options, hours in (("a", {}, 24), ("b", {"ttl": timedelta(hours=2)}, 2)):
        await desk.complete(key, **options)
        [*_, (expires_at,)] = await desk.records("expires_at")
        expected = datetime.now(UTC) + timedelta(hours=hours)
        assert abs(expires_at.replace(tzinfo=UTC) - expected) < timedelta(minutes=5)


async def test_what_has_expired_is_as_good_as_absent(desk: Desk) -> None:
    """No answer, no conflict; decided by the record, not by a sweeper."""
    await desk.complete(response="old")
    await expire(desk)
    async with desk.open() as session:
        records = SqlAlchemyIdempotency(session)
        assert await done(records.get_response("k", "Other", "other")) is None
        locked = await done(records.lock("k", "Other", "other"))
        assert not locked.taken_over
        await done(records.store_response("k", "new", 200))
        await done(session.commit())
    assert await desk.records("operation", "request_hash", "response") == [
        ("Other", "other", "new")
    ]


async def test_short_times_work(desk: Desk) -> None:
    """A record of a millisecond is soon over, also for a transaction that began before it."""
    async with desk.open() as session:
        assert await usable(session)
        await desk.complete(ttl=0.001)
        await desk.expired(session)
        await done(SqlAlchemyIdempotency(session).lock(*LOCK))


async def test_cleaning_up(desk: Desk) -> None:
    """Expired records go, of this tenant or of all; the rest stays."""
    for tenant in ("a", "b"):
        for key in ("1", "2"):
            await desk.complete(key, tenant_id=tenant)
    await expire(desk)
    await desk.complete("live", tenant_id="a")
    async with desk.open() as session:
        records = SqlAlchemyIdempotency(session, "a")
        assert await done(records.cleanup_expired()) == 2
        await done(session.rollback())
        assert len(await desk.records()) == 5
        assert await done(records.cleanup_expired(limit=1)) == 1
        assert await done(records.cleanup_expired(all_tenants=True)) == 3
        await done(session.commit())
    assert await desk.records("idempotency_key") == [("live",)]


@pytest.mark.parametrize("key", ["", "x" * 65, "a\0b", "a\nb", "\ud800", 7, None])
async def test_bad_keys_are_refused_before_the_database_sees_them(desk: Desk, key: Any) -> None:
    """The open transaction stays usable, and nothing is written."""
    async with desk.open() as session:
        records = SqlAlchemyIdempotency(session)
        assert await usable(session)
        for ask in (
            lambda: records.get_response(key),
            lambda: records.lock(key, "CreateOrder", "hash"),
            lambda: records.store_response(key, {}, 200),
            lambda: records.mark_failed(key),
        ):
            with pytest.raises(InvalidKey, match="idempotency_key"):
                await done(ask())
        with pytest.raises(InvalidKey, match="tenant_id"):
            SqlAlchemyIdempotency(session, key)
        assert await usable(session)


async def test_keys_of_any_script_are_their_own(desk: Desk) -> None:
    """Case, accents and width make different keys; 64 characters are enough for any."""
    keys = ["K", "k", "é", "e\u0301", "鍵" * 64, "a'b\"c;--", "%s"]
    for key in keys:
        await desk.complete(key, key)
    async with desk.open() as session:
        records = SqlAlchemyIdempotency(session)
        for key in keys:
            assert await done(records.get_response(key)) == StoredResponse(key, 201)


async def test_other_bad_arguments(desk: Desk) -> None:
    """Each is named, and the session is usable after it."""
    async with desk.open() as session:
        records = SqlAlchemyIdempotency(session)
        with pytest.raises(InvalidKey, match="operation"):
            await done(records.lock("k", "x" * 129, "hash"))
        with pytest.raises(InvalidKey, match="request_hash"):
            await done(records.lock("k", "CreateOrder", "x" * 65))
        with pytest.raises(InvalidDuration, match="wait_timeout"):
            await done(records.lock(*LOCK, wait_timeout=-1))
        with pytest.raises(InvalidDuration, match="ttl"):
            SqlAlchemyIdempotency(session, ttl=0)
        with pytest.raises(InvalidKey, match="limit"):
            await done(records.cleanup_expired(limit=0))
        await done(records.lock(*LOCK))
        for response, error in ((object(), NotEncodable), (float("nan"), NotEncodable)):
            with pytest.raises(error):
                await done(records.store_response("k", response, 200))
        with pytest.raises(InvalidOutcome):
            await done(records.store_response("k", b"bytes", 200))
        await done(records.store_response("k", {}, 200))
        await done(session.commit())
    assert await desk.records() == [("COMPLETED",)]


@dataclass
class Placed:
    id: int
    total: float


@pytest.mark.parametrize(
    ("response", "plain"),
    [
        (None, None),
        ({}, {}),
        (Placed(1, 2.5), {"id": 1, "total": 2.5}),
        ({"n": 10**30, "s": "\0é", "l": [True, None, 0.1]},) * 2,
    ],
)
async def test_what_json_can_say_comes_back(desk: Desk, response: Any, plain: Any) -> None:
    """A stored None is an answer too."""
    await desk.complete(response=response)
    async with desk.open() as session:
        found = await done(SqlAlchemyIdempotency(session).get_response("k"))
        assert found == StoredResponse(plain, 201)


async def test_a_schema_and_a_prefix(asyncpg_desk: Desk) -> None:
    """The table is where inbox.tables() has put it."""
    metadata = MetaData()
    table = inbox.tables(metadata, prefix="my_").idempotency
    async with asyncpg_desk.engine.begin() as connection:  # type: ignore[union-attr]
        await connection.run_sync(metadata.create_all)
    await asyncpg_desk.complete(prefix="my_")
    async with asyncpg_desk.open() as session:
        assert (await session.scalar(select(table.c.state))) == "COMPLETED"
    assert await asyncpg_desk.records() == []


async def test_scoped_sessions(desk: Desk) -> None:
    """The session of the moment is used."""
    scoped: Any
    if desk.is_async:
        factory = async_sessionmaker(desk.engine)  # type: ignore[call-overload]
        scoped = async_scoped_session(factory, scopefunc=asyncio.current_task)
    else:
        scoped = scoped_session(sessionmaker(desk.engine))  # type: ignore[call-overload]
    await done(SqlAlchemyIdempotency(scoped).lock(*LOCK))
    await done(SqlAlchemyIdempotency(scoped).store_response("k", {}, 200))
    await done(scoped.commit())
    await done(scoped.remove())
    assert await desk.records() == [("COMPLETED",)]


def test_what_is_no_session_is_refused() -> None:
    """And so is a database that we do not speak to."""
    with pytest.raises(InvalidSource, match="needs a Session or an AsyncSession"):
        SqlAlchemyIdempotency("session")  # type: ignore[call-overload]
