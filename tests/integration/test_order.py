"""Id order is the order in which a key's lock was held, whatever came between emit and commit."""

from __future__ import annotations

import random
import threading
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from uuid import UUID

from sqlalchemy import event, select, text, update
from sqlalchemy.orm import Session

from support.shop import make_shop

KEYS = ["a", "b"]


def by_bulk_update(shop, session, key):
    change = update(shop.Account).where(shop.Account.id == key)
    change = change.values(changes=shop.Account.changes + 1).returning(shop.Account.changes)
    changes = session.execute(change, execution_options={"synchronize_session": False}).scalar_one()
    return lambda: changes


def by_raw_sql(shop, session, key):
    statement = text("UPDATE accounts SET changes = changes + 1 WHERE id = :key RETURNING changes")
    changes = session.execute(statement, {"key": key}).scalar_one()
    return lambda: changes


def by_locked_object(shop, session, key):
    account = session.get(shop.Account, key, with_for_update={"of": shop.Account})
    account.changes += 1
    return lambda: account.changes


def by_the_last_flush(shop, session, key):
    """The lock is taken by the flush inside commit() itself."""
    account = session.get(shop.Account, key)
    account.changes = shop.Account.changes + 1
    return seen_in_the_last_flush(session, key)


def by_joined_inheritance(shop, session, key):
    """Two tables in the last flush, and the lock is the base table's."""
    savings = session.get(shop.Savings, key)
    savings.rate += 1
    savings.changes = shop.Account.changes + 1
    return seen_in_the_last_flush(session, key)


def seen_in_the_last_flush(session, key):
    seen = []
    statement = text("SELECT changes FROM accounts WHERE id = :key")

    def look(*_):
        seen.append(session.connection().execute(statement, {"key": key}).scalar_one())

    event.listen(session, "after_flush", look)
    return lambda: seen[-1]


WAYS = [by_bulk_update, by_raw_sql, by_locked_object, by_the_last_flush, by_joined_inheritance]


def test_id_order_is_the_order_of_the_keys_locks(psycopg):
    """Writers that emit first and lock later, in every way SQLAlchemy offers.

    `changes` is counted under the row's lock, so it says in which order transactions held it; the
    events of a key, by id, must show the same order.
    """
    shop = make_shop()
    psycopg.create(shop.metadata)
    with Session(psycopg.engine) as session:
        session.add_all([shop.Savings(id=key, kind="savings") for key in KEYS])
        session.commit()
    held: dict[UUID, int] = {}

    def writer(seed: int) -> int:
        chance = random.Random(seed)
        commits = 0
        for _ in range(30):
            key, way = chance.choice(KEYS), chance.choice(WAYS)
            with Session(psycopg.engine, expire_on_commit=False) as session:
                if chance.random() < 0.5:
                    session.execute(text("SELECT pg_current_xact_id()"))  # an early xid
                made = shop.events.emit(session, way.__name__, topic="t", key=key, data=None)
                if chance.random() < 0.5:
                    session.flush()
                    time.sleep(chance.random() / 500)
                changes = way(shop, session, key)
                if chance.random() < 0.1:
                    session.rollback()
                    continue
                session.commit()
                held[made.id] = changes()
                commits += 1
        return commits

    with ThreadPoolExecutor(12) as pool:
        commits = sum(pool.map(writer, range(12)))

    order: dict[str, list[int]] = defaultdict(list)
    seen = set()
    for key, event_id, type in psycopg.rows(shop.events.table, "key", "event_id", "type"):
        order[key].append(held[event_id])
        seen.add(type)
    assert sum(map(len, order.values())) == commits
    assert seen == {way.__name__ for way in WAYS}
    for changes in order.values():
        assert changes == sorted(changes)


def test_an_event_emitted_early_gets_its_id_late(psycopg):
    """A emits, then waits for the row that B holds; B's event has the lower id."""
    shop = make_shop()
    psycopg.create(shop.metadata)
    with Session(psycopg.engine) as session:
        session.add(shop.Account(id="a"))
        session.commit()
    emitted = threading.Event()

    def first() -> None:
        with Session(psycopg.engine) as session:
            shop.events.emit(session, "A", topic="t", key="a", data=None)
            session.flush()
            emitted.set()
            by_bulk_update(shop, session, "a")
            session.commit()

    with Session(psycopg.engine) as session, ThreadPoolExecutor(1) as pool:
        by_bulk_update(shop, session, "a")
        waiting = pool.submit(first)
        assert emitted.wait(10)
        wait_for_a_lock(psycopg)
        shop.events.emit(session, "B", topic="t", key="a", data=None)
        session.commit()
        waiting.result(10)
    assert psycopg.rows(shop.events.table, "type") == [("B",), ("A",)]


def wait_for_a_lock(backend) -> None:
    blocked = text(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
        "AND wait_event_type = 'Lock'"
    )
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        if backend.connect(lambda connection: connection.execute(blocked).scalar_one()):
            return
        time.sleep(0.005)
    raise TimeoutError("no transaction is waiting for a lock")


def test_two_phase_sessions_write_before_prepare(psycopg):
    """The rows are in the prepared transaction, and go the way it goes."""
    shop = make_shop()
    psycopg.create(shop.metadata)
    with Session(psycopg.engine, twophase=True) as session:
        session.add(shop.Order())
        shop.events.emit(session, "prepared", topic="t", key="k", data=None)
        session.prepare()
        assert psycopg.rows(shop.events.table, "type") == []
        session.commit()
        session.add(shop.Order())
        shop.events.emit(session, "undone", topic="t", key="k", data=None)
        session.prepare()
        session.rollback()
        shop.events.emit(session, "committed", topic="t", key="k", data=None)
        session.commit()
    assert psycopg.rows(shop.events.table, "type") == [("prepared",), ("committed",)]
    with Session(psycopg.engine) as session:
        assert len(session.scalars(select(shop.Order)).all()) == 1
