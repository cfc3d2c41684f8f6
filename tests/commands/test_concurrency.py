"""Many with one key at once, on a real server: one effect, whoever waits, fails or dies."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text
from sqlalchemy.ext.asyncio import create_async_engine

from inbox import (
    AlreadyCompleted,
    IdempotencyConflictError,
    InProgressError,
    OutcomeNotVisible,
    SqlAlchemyIdempotency,
)
from support.desk import Desk, Order, done
from support.waiting import until

LOCK = ("k", "CreateOrder", "hash")
DEADLINE = 15


async def attempt(desk: Desk, wait: float | None = 30, **options: Any) -> str:
    """The whole way of a command, as a service goes it; says what came of it."""
    async with desk.open(**options) as session:
        records = SqlAlchemyIdempotency(session)
        try:
            await done(records.lock(*LOCK, wait_timeout=wait))
        except AlreadyCompleted as completed:
            return f"replayed {completed.response}"
        except InProgressError:
            return "busy"
        session.add(Order(total=1))
        await done(session.flush())
        await done(records.store_response("k", "answer", 201))
        await done(session.commit())
        return "ran"


def beside(desk: Desk, **options: Any) -> asyncio.Task[str]:
    """An attempt in a task for async drivers, in a thread for the others."""
    coroutine = attempt(desk, **options)
    if not desk.is_async:
        coroutine = asyncio.to_thread(asyncio.run, coroutine)
    return asyncio.create_task(coroutine)


async def test_many_at_once_have_one_effect(desk: Desk) -> None:
    """One runs, and all others answer as it did."""
    outcomes = await asyncio.gather(*[beside(desk) for _ in range(12)])
    assert sorted(outcomes) == ["ran", *["replayed answer"] * 11]
    assert await desk.orders() == 1


async def test_many_at_once_without_patience_have_one_effect(desk: Desk) -> None:
    """One runs; the others are refused or answered, and none waits."""
    outcomes = await asyncio.gather(*[beside(desk, wait=0) for _ in range(12)])
    assert outcomes.count("ran") == 1
    assert set(outcomes) <= {"ran", "busy", "replayed answer"}
    assert await desk.orders() == 1


@asynccontextmanager
async def held(desk: Desk) -> AsyncIterator[tuple[Any, SqlAlchemyIdempotency[Any]]]:
    """A transaction that holds the key and has done half of its work."""
    async with desk.open() as session:
        records: SqlAlchemyIdempotency[Any] = SqlAlchemyIdempotency(session)
        await done(records.lock(*LOCK))
        session.add(Order(total=1))
        await done(session.flush())
        yield session, records


async def test_a_key_in_another_transaction_is_refused_without_patience(desk: Desk) -> None:
    """At once; and the session that was refused is usable."""
    async with held(desk), desk.open() as session:
        records = SqlAlchemyIdempotency(session)
        with pytest.raises(InProgressError) as busy:
            await done(records.lock(*LOCK, wait_timeout=0))
        assert busy.value.key == "k"
        assert busy.value.retry_after.total_seconds() > 0
        assert (await done(session.execute(text("SELECT 1")))).scalar_one() == 1


async def test_patience_ends(desk: Desk) -> None:
    """The holder does not: then the waiter is told, and its session is usable."""
    async with held(desk):
        assert await attempt(desk, wait=0.05) == "busy"
    assert await attempt(desk) == "ran"


async def waiting_for(desk: Desk, holder_does: Callable[[Any, Any], Awaitable[Any]]) -> str:
    """What a waiter gets when the holder does so; it was refused once before."""
    async with held(desk) as (session, records):
        assert await attempt(desk, wait=0) == "busy"
        waiter = beside(desk)
        await holder_does(session, records)
    return await asyncio.wait_for(waiter, DEADLINE)


async def test_a_waiter_gets_the_answer_when_the_holder_commits(desk: Desk) -> None:
    """And does nothing itself."""

    async def commit(session: Any, records: SqlAlchemyIdempotency[Any]) -> None:
        await done(records.store_response("k", "first", 201))
        await done(session.commit())

    assert await waiting_for(desk, commit) == "replayed first"
    assert await desk.orders() == 1


async def test_a_waiter_runs_it_when_the_holder_rolls_back(desk: Desk) -> None:
    """There was no effect, so there shall be one."""

    async def roll_back(session: Any, _: object) -> None:
        await done(session.rollback())

    assert await waiting_for(desk, roll_back) == "ran"
    assert await desk.orders() == 1


async def test_a_waiter_runs_it_when_the_holder_fails(desk: Desk) -> None:
    """Whichever of the two writes first, the success stands."""

    async def fail(session: Any, records: SqlAlchemyIdempotency[Any]) -> None:
        await done(records.mark_failed("k"))
        await done(session.commit())

    assert await waiting_for(desk, fail) == "ran"
    assert await desk.orders() == 1
    assert await desk.records() == [("COMPLETED",)]


async def test_on_sqlite_the_patience_is_the_one_asked_for(tmp_path: Path) -> None:
    """Not the driver's, which is none here; and the driver's is back after it."""
    url = f"sqlite+aiosqlite:///{tmp_path / 'test.db'}"
    desk = Desk(create_async_engine(url, connect_args={"timeout": 0}))
    await desk.create()
    async with held(desk) as (session, records):
        busy_timeout = await session.execute(text("PRAGMA busy_timeout"))
        assert busy_timeout.scalar_one() == 0
        waiter = beside(desk)
        _, pending = await asyncio.wait({waiter}, timeout=0.3)
        assert pending
        await records.store_response("k", "first", 201)
        await session.commit()
    assert await asyncio.wait_for(waiter, DEADLINE) == "replayed first"
    await desk.dispose()


async def test_failing_does_not_wait_for_the_next_one(postgres_desk: Desk) -> None:
    """While somebody else tries already, there is nothing to mark."""
    async with postgres_desk.open() as session:
        failing = SqlAlchemyIdempotency(session)
        await done(failing.lock(*LOCK))
        await done(session.rollback())
        async with held(postgres_desk) as (other, records):
            await done(failing.mark_failed("k"))
            await done(session.commit())
            await done(records.store_response("k", "theirs", 200))
            await done(other.commit())
    assert await postgres_desk.records() == [("COMPLETED",)]


async def test_a_retry_of_a_failed_command_is_one_too(desk: Desk) -> None:
    """Many that retry at once: one takes the failed record, and the rest answer as it did."""
    async with desk.open() as session:
        records = SqlAlchemyIdempotency(session)
        await done(records.lock(*LOCK))
        await done(records.mark_failed("k"))
        await done(session.commit())
    outcomes = await asyncio.gather(*[beside(desk) for _ in range(8)])
    assert sorted(outcomes) == ["ran", *["replayed answer"] * 7]
    assert await desk.orders() == 1


async def test_an_expired_record_is_taken_by_one(desk: Desk) -> None:
    """Many find it at once: one runs the command anew."""
    await desk.complete(response="old", ttl=0.001)
    async with desk.open() as session:
        await desk.expired(session)
    outcomes = await asyncio.gather(*[beside(desk) for _ in range(8)])
    assert sorted(outcomes) == ["ran", *["replayed answer"] * 7]


async def test_a_waiter_sees_the_outcome_of_a_committed_lock(postgres_desk: Desk) -> None:
    """Of a lock that was committed by itself. On SQLite that cannot be waited for: one writer."""
    desk = postgres_desk
    async with desk.open() as session:
        records = SqlAlchemyIdempotency(session)
        await done(records.lock(*LOCK))
        await done(session.commit())
        waiter = beside(desk)
        await asyncio.sleep(0)
        await done(records.store_response("k", "first", 201))
        await done(session.commit())
        assert await asyncio.wait_for(waiter, DEADLINE) == "replayed first"


async def test_a_conflict_is_known_while_a_committed_lock_lasts(desk: Desk) -> None:
    """A wrong payload fails at once, and not only when the first is done."""
    async with desk.open() as session:
        await done(SqlAlchemyIdempotency(session).lock(*LOCK))
        await done(session.commit())
        with pytest.raises(IdempotencyConflictError):
            await done(SqlAlchemyIdempotency(session).lock("k", "CreateOrder", "other"))


async def test_cleaning_up_does_not_wait_for_who_takes_over(postgres_desk: Desk) -> None:
    """A record that somebody is about to use is left to them."""
    desk = postgres_desk
    await desk.complete(ttl=0.001)
    await desk.complete("other", ttl=0.001)
    async with desk.open() as session, desk.open() as janitor:
        taker = SqlAlchemyIdempotency(session)
        await desk.expired(session)
        await desk.expired(session, "other")
        await done(taker.lock(*LOCK))
        cleaning = SqlAlchemyIdempotency(janitor)
        assert await done(cleaning.cleanup_expired()) == 1
        await done(janitor.commit())
        await done(taker.store_response("k", "new", 200))
        await done(session.commit())
    assert await desk.records("idempotency_key", "response") == [("k", "new")]


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
async def test_a_transaction_that_cannot_see_the_outcome_says_so(
    postgres_desk: Desk, level: str
) -> None:
    """Its snapshot is older than the answer: no second effect, but the advice to begin anew."""
    desk = postgres_desk
    async with desk.open() as session:
        await done(session.connection(execution_options={"isolation_level": level}))
        await done(session.execute(text("SELECT count(*) FROM orders")))
        await desk.complete(response="first")
        with pytest.raises(OutcomeNotVisible, match="roll back and ask again"):
            await done(SqlAlchemyIdempotency(session).lock(*LOCK))
        await done(session.rollback())
        with pytest.raises(AlreadyCompleted):
            await done(SqlAlchemyIdempotency(session).lock(*LOCK))


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
async def test_strict_isolation_has_one_effect_too(asyncpg_desk: Desk, level: str) -> None:
    """Some are told to begin anew; nobody runs it twice."""
    strict = Desk(asyncpg_desk.engine.execution_options(isolation_level=level))
    outcomes = await asyncio.gather(*[attempt(strict) for _ in range(12)])
    assert outcomes.count("ran") == 1
    assert await asyncpg_desk.orders() == 1


async def test_a_writer_who_does_not_know_the_advisory_lock_is_no_danger(
    asyncpg_desk: Desk,
) -> None:
    """The primary key decides; the lock of the server only makes waiting patient."""
    async with asyncpg_desk.open() as foreign:
        await foreign.execute(
            text(
                "INSERT INTO idempotency (idempotency_key, tenant_id, operation, state, response)"
                " VALUES ('k', 'default', 'CreateOrder', 'COMPLETED', '\"theirs\"')"
            )
        )
        waiter = asyncio.create_task(attempt(asyncpg_desk))

        async def blocked() -> bool:
            async with asyncpg_desk.open() as session:
                query = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"
                return bool(await session.scalar(text(query)))

        await until(blocked)
        await foreign.commit()
        assert await waiter == "replayed theirs"
    assert await asyncpg_desk.orders() == 0


CRASH = """
import sys, time
from sqlalchemy import create_engine
from sqlalchemy.orm import Session
from inbox import SqlAlchemyIdempotency
from support.desk import Order, postgres_engine

where, schema, commits = sys.argv[1:]
if schema:
    engine = postgres_engine("psycopg", where, schema)
else:
    engine = create_engine(f"sqlite:///{where}")
with Session(engine) as session:
    records = SqlAlchemyIdempotency(session)
    records.lock("k", "CreateOrder", "hash")
    if commits == "lock":
        session.commit()
    session.add(Order(total=1))
    session.flush()
    if commits == "all":
        records.store_response("k", "answer of the dead", 201)
        session.commit()
    print("ready", flush=True)
    time.sleep(60)
"""


def kill_after_it_is_ready(desk: Desk, commits: str) -> None:
    """A process that locks and works, then is killed."""
    url = desk.engine.url
    if desk.is_postgres:
        arguments = [url.render_as_string(hide_password=False), desk.schema, commits]
    else:
        arguments = [str(url.database), "", commits]
    process = subprocess.Popen(
        [sys.executable, "-c", CRASH, *arguments],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()


async def test_killed_between_lock_and_commit(desk: Desk) -> None:
    """Nothing is left, and the next one runs it."""
    kill_after_it_is_ready(desk, "nothing")
    assert await attempt(desk) == "ran"
    assert await desk.orders() == 1


async def test_killed_after_the_commit(desk: Desk) -> None:
    """The answer that nobody got is given to the next one."""
    kill_after_it_is_ready(desk, "all")
    assert await attempt(desk) == "replayed answer of the dead"
    assert await desk.orders() == 1


async def test_killed_after_committing_the_lock_alone(desk: Desk) -> None:
    """Nobody knows what it did: the key stays bound until it expires."""
    kill_after_it_is_ready(desk, "lock")
    assert await attempt(desk, wait=0) == "busy"
    assert await desk.orders() == 0
