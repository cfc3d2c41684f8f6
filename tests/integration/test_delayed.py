"""Delayed events move into the log when they are due."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta

from sqlalchemy.orm import Session

from outbox import AUTO
from outbox.delayed import move_due
from support.shop import make_shop

NOW = datetime.now(UTC)


def delay(shop, session, type, minutes, **fields):
    due = NOW + timedelta(minutes=minutes)
    values = {"topic": "t", "key": "k", "data": {"n": 1}, "deliver_at": due, **fields}
    shop.events.emit(session, type, **values)


def test_what_is_due_moves_in_the_order_of_its_times(shop, backend):
    """Not before, not twice, with data and headers as they were emitted."""

    def body(session: Session) -> None:
        delay(shop, session, "second", 2, headers={"tenant": "acme"})
        delay(shop, session, "later", 60)
        delay(shop, session, "first", 1)
        session.commit()

    def move(minutes: int) -> int:
        def run(connection) -> int:
            count = move_due(connection, shop.events, now=NOW + timedelta(minutes=minutes))
            connection.commit()
            return count

        return backend.connect(run)

    backend.run(body)
    assert [move(0), move(5), move(5)] == [0, 2, 0]
    columns = ("type", "tenant", "data")
    assert backend.rows(shop.events.table, *columns) == [
        ("first", None, b'{"n":1}'),
        ("second", "acme", b'{"n":1}'),
    ]
    assert move(90) == 1
    assert backend.rows(shop.events.tables.delayed, "id") == []


def test_numbers_are_taken_when_they_are_due(shop, backend):
    """An event that was emitted later and goes out earlier has the lower number."""

    def body(session: Session) -> None:
        delay(shop, session, "delayed", 1, seq=AUTO)
        delay(shop, session, "delayed too", 2, seq=AUTO)
        shop.events.emit(session, "at once", topic="t", key="k", data=None, seq=AUTO)
        session.commit()

    def move(connection) -> None:
        move_due(connection, shop.events, now=NOW + timedelta(minutes=5))
        connection.commit()

    backend.run(body)
    backend.connect(move)
    assert backend.rows(shop.events.table, "type", "seq") == [
        ("at once", 1),
        ("delayed", 2),
        ("delayed too", 3),
    ]


def test_several_movers_move_each_event_once(psycopg):
    """They pass over what another has in hand."""
    shop = make_shop()
    psycopg.create(shop.metadata)
    with Session(psycopg.engine) as session:
        for number in range(300):
            delay(shop, session, str(number), -1, key=str(number))
        session.commit()

    def mover(_: int) -> int:
        moved = 0
        while True:
            with psycopg.engine.begin() as connection:
                count = move_due(connection, shop.events, limit=7)
            if not count:
                return moved
            moved += count

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(mover, range(4)))
    with psycopg.engine.begin() as connection:
        move_due(connection, shop.events)
    types = [row[0] for row in psycopg.rows(shop.events.table, "type")]
    assert sorted(types, key=int) == [str(number) for number in range(300)]
