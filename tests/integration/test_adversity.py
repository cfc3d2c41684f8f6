"""What else happens to sessions and connections in the life of a service."""

from __future__ import annotations

import asyncio
import gc
import random

import pytest
from sqlalchemy import create_engine, event, insert, select, text
from sqlalchemy.engine import Connection
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import Session
from sqlalchemy.sql.dml import Delete, Update

from outbox import KeyUnknown, NeverWritten, Outbox, SessionNotUsable
from outbox.testing import recording
from support.shop import make_shop


def emit(shop, session, type="e", **fields):
    return shop.events.emit(session, type, **{"topic": "t", "key": "k", "data": None, **fields})


def types(shop, backend) -> list[str]:
    return [row[0] for row in backend.rows(shop.events.table, "type")]


JOINED = ["conditional_savepoint", "rollback_only", "create_savepoint", "control_fully"]


@pytest.mark.parametrize("mode", JOINED)
def test_a_joined_session_that_is_closed_without_commit(shop, backend, mode):
    """Where its changes stay, its events stay; where they are undone, they are gone."""

    def body(connection: Connection) -> None:
        with connection.begin(), Session(connection, join_transaction_mode=mode) as session:
            session.execute(insert(shop.Order).values(total=1))
            emit(shop, session)

    backend.connect(body)
    orders = backend.connect(lambda c: len(c.execute(select(shop.Order)).all()))
    assert len(types(shop, backend)) == orders
    assert orders == (1 if mode in ("conditional_savepoint", "rollback_only") else 0)


def test_two_sessions_on_one_connection(shop, backend):
    """The connection's commit takes the events of both along."""

    def body(connection: Connection) -> None:
        with connection.begin():
            for name in ("one", "two"):
                with Session(connection, join_transaction_mode="rollback_only") as session:
                    session.add(shop.Order())
                    session.flush()
                    emit(shop, session, name)

    backend.connect(body)
    assert types(shop, backend) == ["one", "two"]


def test_a_joined_session_that_failed_must_roll_back(shop, backend):
    """A second commit is refused, and so is the connection's own: no event is left out."""

    def body(connection: Connection) -> None:
        outer = connection.begin()
        with Session(connection, join_transaction_mode="rollback_only") as session:
            session.add(shop.Order())
            emit(shop, session, "good")
            emit(shop, session, "orphan", key=shop.Order())
            with pytest.raises(KeyUnknown):
                session.commit()
            with pytest.raises(SessionNotUsable, match="roll back"):
                session.commit()
        with pytest.raises(NeverWritten):
            outer.commit()
        connection.rollback()
        assert connection.execute(select(shop.Order)).all() == []

    backend.connect(body)
    assert types(shop, backend) == []


def test_a_savepoint_inside_a_before_commit_listener(shop, backend):
    """An emit behind it is still written, also in a joined session."""

    def body(connection: Connection) -> None:
        with connection.begin(), Session(connection) as session:

            def listener(_: Session) -> None:
                if session.in_nested_transaction():
                    return
                with session.begin_nested():
                    session.execute(text("SELECT 1"))
                emit(shop, session, "late")

            event.listen(session, "before_commit", listener)
            emit(shop, session, "early")
            session.commit()

    backend.connect(body)
    assert types(shop, backend) == ["early", "late"]


def test_a_failing_after_commit_listener_doubles_nothing(shop, backend):
    """The events are written; the object that emitted them does not emit them again."""

    def explode(_: Session) -> None:
        raise ZeroDivisionError

    def body(session: Session) -> None:
        ticket = shop.Ticket()
        ticket.emit("opened")
        session.add(ticket)
        event.listen(Session, "after_commit", explode, insert=True)
        try:
            with pytest.raises(ZeroDivisionError):
                session.commit()
        finally:
            event.remove(Session, "after_commit", explode)
        session.close()
        session.add(ticket)
        session.commit()

    backend.run(body)
    assert types(shop, backend) == ["opened"]


def test_sessions_that_are_forgotten_give_their_connections_back(tmp_path):
    """Nothing of ours keeps a session alive that nobody closed."""
    shop = make_shop()
    engine = create_engine(
        f"sqlite:///{tmp_path}/leak.db", pool_size=1, max_overflow=0, pool_timeout=1
    )
    shop.metadata.create_all(engine)
    for number in range(4):
        session = Session(engine)
        session.execute(text("SELECT 1"))
        emit(shop, session, str(number))
        del session
        gc.collect()
    with Session(engine) as session:
        assert session.scalars(select(shop.events.table.c.type)).all() == []
    engine.dispose()


def test_the_sessions_info_is_the_users(shop, backend):
    """Sharing or clearing it touches no event."""

    def body(session: Session) -> None:
        emit(shop, session)
        other = Session(session.get_bind(), info=session.info)
        other.rollback()
        session.info.clear()
        session.commit()

    backend.run(body)
    assert types(shop, backend) == ["e"]


def test_an_outbox_that_is_made_while_a_session_is_open(backend):
    """The session began before anybody listened."""
    made = []

    def body(session: Session) -> None:
        session.execute(text("SELECT 1"))
        events = Outbox(name="late", prefix="late_")
        events.metadata.create_all(session.connection())
        events.emit(session, "e", topic="t", key="k", data=None)
        session.commit()
        made.append(events)

    backend.run(body)
    assert backend.rows(made[0].table, "type") == [("e",)]


class Routed(Session):
    """SQLAlchemy's recipe for a primary and its readers, word for word in what it tests."""

    primary = None
    readers = ()

    def get_bind(self, mapper=None, clause=None, **_):
        if self._flushing or isinstance(clause, Update | Delete):
            return self.primary
        return random.choice(self.readers)


def test_a_session_that_routes_reads_elsewhere(tmp_path):
    """Order and event are in the primary, whatever readers the transaction asked."""
    shop = make_shop()
    engines = [create_engine(f"sqlite:///{tmp_path}/{n}.db") for n in range(3)]
    for engine in engines:
        shop.metadata.create_all(engine)
    Routed.primary, *Routed.readers = engines
    for _ in range(10):
        with Routed() as session:
            session.execute(select(shop.Order)).all()
            order = shop.Order()
            session.add(order)
            emit(shop, session, key=order)
            session.commit()
    counts = []
    for engine in engines:
        with engine.connect() as connection:
            counts.append(len(connection.execute(select(shop.events.table)).all()))
        engine.dispose()
    assert counts == [10, 0, 0]


def test_many_savepoints_with_many_events(shop, backend):
    """Two thousand savepoints: the order of emission, and no time that grows with the square."""

    def body(session: Session) -> None:
        for number in range(2000):
            with session.begin_nested():
                emit(shop, session, str(number))
        session.commit()

    backend.run(body)
    assert types(shop, backend) == [str(number) for number in range(2000)]


def test_skipped_events_are_not_recorded_as_committed(shop, backend):
    """They are in the outbox once, from the first time."""

    def body(session: Session) -> None:
        emit(shop, session, "first", seq=1)
        session.commit()
        emit(shop, session, "again", seq=1, on_duplicate="skip")
        session.commit()

    with recording(shop.events) as recorder:
        backend.run(body)
    assert [made.type for made in recorder.committed] == ["first"]


@pytest.fixture
async def slow(database):
    """A shop whose outbox takes a second for each insert."""
    shop = make_shop()
    engine = create_async_engine(database)
    async with engine.begin() as connection:
        await connection.run_sync(shop.metadata.create_all)
        await connection.execute(
            text(
                "CREATE FUNCTION dawdle() RETURNS trigger LANGUAGE plpgsql AS "
                "$$ BEGIN PERFORM pg_sleep(5); RETURN NULL; END $$"
            )
        )
        await connection.execute(
            text("CREATE TRIGGER dawdle AFTER INSERT ON outbox EXECUTE FUNCTION dawdle()")
        )
    yield shop, engine
    await engine.dispose()


async def test_a_commit_that_is_cancelled_stays_cancelled(slow):
    """asyncio.timeout() around the commit gives TimeoutError, and nothing is committed."""
    shop, engine = slow
    async with AsyncSession(engine) as session:
        session.add(shop.Order())
        emit(shop, session)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await session.commit()
    async with engine.connect() as connection:
        assert (await connection.execute(select(shop.Order))).all() == []


async def test_a_connection_that_is_cut_during_commit_says_so(slow):
    """The driver's own error comes out, so that retries on it work."""
    from sqlalchemy.exc import DBAPIError

    shop, engine = slow
    async with AsyncSession(engine) as session:
        pid = await session.scalar(text("SELECT pg_backend_pid()"))
        emit(shop, session)
        committing = asyncio.create_task(session.commit())
        async with engine.connect() as connection:
            kill = text(
                "SELECT pg_terminate_backend(:pid) FROM pg_stat_activity WHERE pid = :pid "
                "AND query LIKE 'INSERT INTO outbox %'"
            )
            while not (await connection.execute(kill, {"pid": pid})).scalar():
                await connection.rollback()
                await asyncio.sleep(0.01)
        with pytest.raises(DBAPIError):
            await committing
