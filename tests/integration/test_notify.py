"""`Outbox(notify=True)`: one notification for each transaction that has something to relay."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from uuid import uuid4

import psycopg as driver
import pytest
from sqlalchemy import make_url, text
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from outbox import AUTO, Event, Outbox
from outbox.delayed import move_due
from support.backends import Backend
from support.shop import make_shop


class Listener:
    """A connection of its own, that hears what is committed from now on."""

    def __init__(self, url: str, channel: str) -> None:
        plain = make_url(url).set(drivername="postgresql").render_as_string(hide_password=False)
        self._connection = driver.connect(plain, autocommit=True)
        self._connection.execute(f'LISTEN "{channel}"')
        self._channel = channel

    def heard(self) -> int:
        """How many since it was asked last. Notifications arrive in the order of the commits, so
        our own comes after all that were there before."""
        end = uuid4().hex
        self._connection.execute("SELECT pg_notify(%s, %s)", (self._channel, end))
        for count, notification in enumerate(self._connection.notifies(timeout=15)):
            if notification.payload == end:
                return count
        raise TimeoutError("not even our own")

    def __enter__(self) -> Listener:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()


@pytest.fixture
def notifying() -> SimpleNamespace:
    return make_shop(name=f"n{uuid4().hex[:10]}", notify=True)


@pytest.fixture
def listener(postgres: Backend, shared_postgres_url, notifying) -> Iterator[Listener]:
    postgres.create(notifying.metadata)
    with Listener(shared_postgres_url, notifying.events.channel) as listener:
        yield listener


def emit(shop: SimpleNamespace, session: Session, **fields: object) -> None:
    shop.events.emit(session, "e", **{"topic": "t", "key": "k", "data": None, **fields})


def test_several_events_and_savepoints_are_one_notification(postgres, notifying, listener):
    """However many events, numbered or not: one per transaction, at its commit."""

    def body(session: Session) -> None:
        emit(notifying, session)
        with session.begin_nested():
            emit(notifying, session, key="other", seq=AUTO)
        with suppress(ZeroDivisionError), session.begin_nested():
            emit(notifying, session)
            _ = 1 / 0
        session.flush()
        assert listener.heard() == 0
        session.commit()
        assert listener.heard() == 1
        for _ in range(2):
            emit(notifying, session)
            session.commit()
        assert listener.heard() == 2

    postgres.run(body)


def test_nothing_to_relay_notifies_nobody(postgres, notifying, listener):
    """Rolled back, nothing emitted, emitted in a savepoint that was rolled back, left out as a
    duplicate, or due later."""

    def body(session: Session) -> None:
        emit(notifying, session, seq=1)
        session.commit()
        assert listener.heard() == 1
        emit(notifying, session)
        session.flush()
        session.rollback()
        session.add(notifying.Order())
        session.commit()
        session.add(notifying.Order())
        with suppress(ZeroDivisionError), session.begin_nested():
            emit(notifying, session)
            _ = 1 / 0
        session.commit()
        emit(notifying, session, seq=1, on_duplicate="skip")
        session.commit()
        emit(notifying, session, deliver_at=datetime.now(UTC) - timedelta(minutes=1))
        session.commit()
        assert listener.heard() == 0

    postgres.run(body)

    def move(connection) -> None:
        assert move_due(connection, notifying.events) == 1
        connection.commit()

    postgres.connect(move)
    assert listener.heard() == 0  # the projector moves them, and need not tell itself


def test_it_is_off_by_default(postgres, notifying, listener):
    """The same tables and the same channel, by an outbox that was not asked to notify."""
    quiet = Outbox(name=notifying.events.name)

    def body(session: Session) -> None:
        quiet.emit(session, "e", topic="t", key="k", data=None)
        session.commit()

    postgres.run(body)
    assert listener.heard() == 0


def test_an_insert_notifies_if_told_to(postgres, notifying, listener):
    """`insert` alone does not; any number of `notify` in its transaction is one."""
    event = Event("e", topic="t", key="k", data=None)

    def body(connection) -> None:
        connection.execute(notifying.events.insert(event))
        connection.commit()
        assert listener.heard() == 0
        for _ in range(2):
            connection.execute(notifying.events.insert(event))
            connection.execute(notifying.events.notify())
        connection.commit()
        assert listener.heard() == 1
        connection.execute(notifying.events.notify())
        connection.rollback()
        assert listener.heard() == 0

    postgres.connect(body)


def test_two_sessions_in_one_transaction_are_one_notification(psycopg, shared_postgres_url):
    """Joined to one connection, each writes its own events; PostgreSQL folds the rest."""
    shop = make_shop(name=f"n{uuid4().hex[:10]}", notify=True)
    psycopg.create(shop.metadata)
    with (
        Listener(shared_postgres_url, shop.events.channel) as listener,
        psycopg.engine.connect() as connection,
    ):
        connection.begin()
        for _ in range(2):
            with Session(connection) as session:
                emit(shop, session)
                session.commit()
        assert listener.heard() == 0
        connection.commit()
        assert listener.heard() == 1


@pytest.mark.parametrize("joined", [False, True], ids=["session", "joined"])
def test_a_prepared_transaction_goes_without(psycopg, shared_postgres_url, joined):
    """PostgreSQL prepares no transaction that has notified, so its events wait for the poll."""
    shop = make_shop(name=f"n{uuid4().hex[:10]}", notify=True)
    psycopg.create(shop.metadata)
    with (
        Listener(shared_postgres_url, shop.events.channel) as listener,
        psycopg.engine.connect() as connection,
    ):
        if joined:
            transaction = connection.begin_twophase()
            with Session(connection) as session:
                emit(shop, session)
                session.commit()
            transaction.prepare()
            transaction.commit()
        else:
            with Session(psycopg.engine, twophase=True) as session:
                emit(shop, session)
                session.commit()
        assert psycopg.rows(shop.events.table, "type") == [("e",)]
        assert listener.heard() == 0


def test_a_failed_commit_notifies_nobody(postgres, notifying, listener):
    """Also when it fails after the NOTIFY was sent."""

    def body(session: Session) -> None:
        session.execute(text("CREATE TABLE late (n int UNIQUE DEFERRABLE INITIALLY DEFERRED)"))
        session.commit()
        emit(notifying, session)
        session.execute(text("INSERT INTO late VALUES (1), (1)"))
        with pytest.raises(DBAPIError):
            session.commit()
        session.rollback()
        assert listener.heard() == 0

    postgres.run(body)


def test_sqlite_has_nobody_to_notify(backend):
    """Setting and statement are taken everywhere, so that one program runs on both."""
    shop = make_shop(notify=True)
    backend.create(shop.metadata)

    def body(session: Session) -> None:
        emit(shop, session)
        session.execute(shop.events.notify())
        session.commit()

    backend.run(body)
    assert backend.rows(shop.events.table, "type") == [("e",)]


def test_a_long_name_is_cut_to_what_a_channel_takes(postgres, shared_postgres_url):
    """PostgreSQL refuses channels above 63 bytes."""
    shop = make_shop(name="n" * 255, notify=True)
    postgres.create(shop.metadata)
    with Listener(shared_postgres_url, shop.events.channel) as listener:
        postgres.run(lambda session: (emit(shop, session), session.commit()))
        assert listener.heard() == 1
