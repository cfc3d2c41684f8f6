"""SqlInbox: the row, the handler's changes and the events it emits commit together."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Column, Integer, MetaData, Table, Text, create_engine, func, insert, select
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import Session, sessionmaker

import inbox
from inbox.consumer.consumer import Consumer
from inbox.consumer.retry import Retry
from inbox.errors import BadHandler, CommitRefused
from inbox.outcome import Duplicate, Handled
from inbox.sql_inbox import SqlInbox
from outbox import Event, Outbox, layout
from outbox.keys import lane_of

METADATA = MetaData()
EFFECTS = Table("effects", METADATA, Column("id", Integer, primary_key=True), Column("event", Text))
OUTBOX = Outbox(METADATA, name="next", lanes=1)
INBOX = inbox.tables(METADATA)
QUICK = Retry(attempts=2, first=0.001, cap=0.002)


@pytest.fixture
async def sessions(database):
    engine = create_async_engine(database)
    async with engine.begin() as connection:
        await connection.run_sync(METADATA.create_all)
    yield async_sessionmaker(engine, expire_on_commit=False)
    await engine.dispose()


@pytest.fixture
def sync_sessions(database, sessions):
    engine = create_engine(database.replace("+asyncpg", "+psycopg"))
    yield sessionmaker(engine)
    engine.dispose()


async def count(sessions, table) -> int:
    async with sessions() as session:
        return (await session.execute(select(func.count()).select_from(table))).scalar_one()


def consumer_of(streams, box) -> Consumer:
    return Consumer(streams.redis, streams.name, group="billing", inbox=box, retry=QUICK)


async def drained(consumer) -> None:
    await asyncio.wait_for(consumer.drain(), 20)


async def test_effect_row_and_emitted_event_commit_together(streams, sessions):
    """Once, also when the stream has the event twice and Redis has forgotten all about it."""
    event_id = await streams.add("k", 1)
    await streams.add("k", 1, event_id=event_id)
    for round in range(2):
        consumer = consumer_of(streams, SqlInbox(sessions))

        @consumer.on("changed", topic="t")
        async def handle(event: Event, session: AsyncSession) -> None:
            await session.execute(insert(EFFECTS).values(event=str(event.id)))
            OUTBOX.emit(session, "billed", topic="bills", key=event.key, data={})

        await drained(consumer)
        if round == 0:
            for key in [k async for k in streams.redis.scan_iter(f"*{streams.name}*")]:
                await streams.redis.delete(key)
            await streams.open()
            await streams.add("k", 1, event_id=event_id)
    assert await count(sessions, EFFECTS) == 1
    assert await count(sessions, OUTBOX.table) == 1
    assert await count(sessions, INBOX.handled) == 1
    assert await streams.pending("billing") == 0


async def test_a_failed_handler_leaves_nothing_behind(streams, sessions):
    """Neither its changes, nor its events, nor the row."""
    await streams.add("k", 1)
    consumer = consumer_of(streams, SqlInbox(sessions))

    @consumer.on("changed", topic="t")
    async def handle(event: Event, session: AsyncSession) -> None:
        await session.execute(insert(EFFECTS).values(event=str(event.id)))
        OUTBOX.emit(session, "billed", topic="bills", key=event.key, data={})
        raise RuntimeError("after all")

    await drained(consumer)
    for table in (EFFECTS, OUTBOX.table, INBOX.handled):
        assert await count(sessions, table) == 0
    lane = lane_of("k", streams.lanes)
    assert await streams.redis.zcard(layout.dead(streams.name, lane, "billing")) == 1


async def test_a_handler_that_commits_is_told_not_to(streams, sessions):
    """A savepoint of its own is fine."""
    await streams.add("k", 1)
    problems = []
    consumer = consumer_of(streams, SqlInbox(sessions))

    @consumer.on("changed", topic="t")
    async def handle(event: Event, session: AsyncSession) -> None:
        async with session.begin_nested():
            await session.execute(insert(EFFECTS).values(event="nested"))
        try:
            await session.commit()
        except CommitRefused as exc:
            problems.append(str(exc))
            raise

    await drained(consumer)
    assert len(problems) == QUICK.attempts
    assert "savepoints are fine" in problems[0]
    assert await count(sessions, EFFECTS) == 0


async def test_a_batch_is_one_transaction(streams, sessions):
    """And one by one when it fails: the good ones commit, the bad one is a dead letter."""
    for seq in range(1, 21):
        await streams.add(f"k{seq}", seq)
    transactions = set()
    consumer = consumer_of(streams, SqlInbox(sessions))

    @consumer.on_batch("changed", topic="t", size=100)
    async def handle(events: list[Event], session: AsyncSession) -> None:
        xid = (await session.execute(select(func.pg_current_xact_id().cast(Text)))).scalar_one()
        for event in events:
            await session.execute(insert(EFFECTS).values(event=str(event.id)))
        if any(event.seq == 7 for event in events):
            raise RuntimeError("poison")
        transactions.add(xid)

    await drained(consumer)
    assert await count(sessions, EFFECTS) == 19
    assert await count(sessions, INBOX.handled) == 19
    assert len(transactions) < 19  # one lane is handled one by one, the other at once


async def test_sync_handlers_have_sync_sessions(streams, sync_sessions, sessions):
    """In threads, with the same promises."""
    event_id = await streams.add("k", 1)
    await streams.add("k", 1, event_id=event_id)
    consumer = consumer_of(streams, SqlInbox(sync_sessions))

    @consumer.on("changed", topic="t")
    def handle(event: Event, session: Session) -> None:
        session.execute(insert(EFFECTS).values(event=str(event.id)))
        OUTBOX.emit(session, "billed", topic="bills", key=event.key, data={})

    await drained(consumer)
    assert await count(sessions, EFFECTS) == 1
    assert await count(sessions, OUTBOX.table) == 1


async def test_handlers_and_sessions_of_different_colours_are_refused(
    streams, sessions, sync_sessions
):
    async def asynchronous(session: AsyncSession) -> None: ...

    def synchronous(session: Session) -> None: ...

    with pytest.raises(BadHandler, match="sync sessions"):
        consumer_of(streams, SqlInbox(sync_sessions)).on("changed", topic="t")(asynchronous)
    with pytest.raises(BadHandler, match="sessionmaker"):
        consumer_of(streams, SqlInbox(sessions)).on("changed", topic="t")(synchronous)


async def test_in_a_loop_of_your_own_the_session_is_yours(sessions):
    """You commit, and then acknowledge; a rollback lets it be handled again."""
    box = SqlInbox(group="billing")

    @box.once(key=lambda session, event_id: event_id)
    async def handle(session: AsyncSession, event_id: str) -> str:
        await session.execute(insert(EFFECTS).values(event=event_id))
        return "billed"

    async with sessions() as session:
        assert await handle(session, "e1") == Handled("billed")
        await session.rollback()
        assert await handle(session, "e1") == Handled("billed")
        assert await handle(session, "e1") == Duplicate()
        await session.commit()
    async with sessions() as session:
        assert await handle(session, "e1") == Duplicate()
    assert await count(sessions, EFFECTS) == 1


async def test_two_at_once_wait_for_each_other(sessions):
    """The second one sees what became of the first."""
    box = SqlInbox(group="billing")
    inside, leave = asyncio.Event(), asyncio.Event()

    async def slow() -> None:
        inside.set()
        await leave.wait()

    async def never() -> None:
        raise AssertionError("it was handled already")

    async with sessions() as first, sessions() as second:
        one = asyncio.create_task(box.process(first, "e1", slow))
        await inside.wait()
        two = asyncio.create_task(box.process(second, "e1", never))
        leave.set()
        assert await one == Handled(None)
        await first.commit()
        assert await two == Duplicate()


def test_sync_code_has_the_same(sync_sessions):
    box = SqlInbox(group="billing")

    @box.once(key=lambda session, event_id: event_id)
    def handle(session: Session, event_id: str) -> int:
        return 42

    with sync_sessions() as session, session.begin():
        assert handle(session, "e1") == Handled(42)
        assert handle(session, "e1") == Duplicate()


async def test_rows_go_after_the_window(sessions):
    box = SqlInbox(sessions, group="billing", window=timedelta(days=1))
    async with sessions() as session, session.begin():
        await session.execute(
            insert(INBOX.handled).values(
                consumer="billing",
                event_id="old",
                handled_at=datetime.now(UTC) - timedelta(days=2),
            )
        )
        await session.execute(insert(INBOX.handled).values(consumer="billing", event_id="new"))
    assert await box.purge() == 1
    assert await count(sessions, INBOX.handled) == 1
