"""An event is written if, and only if, its transaction commits."""

from __future__ import annotations

from contextlib import suppress
from types import SimpleNamespace

import pytest
from sqlalchemy import event as sa_event
from sqlalchemy import select, text, update
from sqlalchemy.orm import Session

from outbox import AUTO, Event, SessionNotUsable
from support.backends import Backend


def emit(shop: SimpleNamespace, session: Session, type: str, **fields: object) -> Event[object]:
    return shop.events.emit(session, type, **{"topic": "t", "key": "k", "data": None, **fields})


def types(shop: SimpleNamespace, backend: Backend) -> list[str]:
    return [row[0] for row in backend.rows(shop.events.table, "type")]


def test_a_commit_writes_the_event_with_the_change(shop, backend):
    """Order and event are there together; the event's key is the order's new primary key."""

    def body(session: Session) -> Event[object]:
        order = shop.Order(total=42)
        session.add(order)
        made = emit(shop, session, "order.placed", topic="orders", key=order, data={"total": 42})
        session.commit()
        assert made.key == str(order.id)
        return made

    made = backend.run(body)
    columns = ("event_id", "topic", "type", "key", "seq", "data", "content_type")
    assert backend.rows(shop.events.table, *columns) == [
        (made.id, "orders", "order.placed", made.key, None, b'{"total":42}', "application/json")
    ]
    assert backend.connect(lambda c: c.execute(select(shop.Order.total)).scalars().all()) == [42]


def test_a_rollback_leaves_no_trace(shop, backend):
    """Neither change nor event, and nothing is carried over into the session's next transaction."""

    def body(session: Session) -> None:
        session.add(shop.Order())
        emit(shop, session, "lost")
        session.flush()
        session.rollback()
        emit(shop, session, "kept")
        session.commit()
        session.commit()

    backend.run(body)
    assert types(shop, backend) == ["kept"]


def test_an_emit_alone_is_written(shop, backend):
    """A session with no other change still commits its event."""

    def body(session: Session) -> None:
        emit(shop, session, "alone")
        session.commit()

    backend.run(body)
    assert types(shop, backend) == ["alone"]


def test_events_keep_the_order_of_emission(shop, backend):
    """Ids grow in the order of the calls, also when several statements came between."""

    def body(session: Session) -> None:
        for number in range(5):
            emit(shop, session, f"e{number}")
            session.add(shop.Order())
            session.flush()
        session.commit()

    backend.run(body)
    assert types(shop, backend) == [f"e{number}" for number in range(5)]


def test_a_released_savepoint_hands_its_events_up(shop, backend):
    """An inner release keeps, an inner rollback drops only its own."""

    def body(session: Session) -> None:
        emit(shop, session, "outer-1")
        with session.begin_nested():
            session.add(shop.Order())
            emit(shop, session, "released")
        with suppress(ZeroDivisionError), session.begin_nested():
            session.add(shop.Order())
            emit(shop, session, "dropped")
            _ = 1 / 0
        emit(shop, session, "outer-2")
        session.commit()

    backend.run(body)
    assert types(shop, backend) == ["outer-1", "released", "outer-2"]


def test_nested_savepoints(shop, backend):
    """A savepoint that was released into one that rolls back is gone with it."""

    def body(session: Session) -> None:
        first = session.begin_nested()
        emit(shop, session, "one")
        second = session.begin_nested()
        emit(shop, session, "two")
        second.commit()
        third = session.begin_nested()
        emit(shop, session, "three")
        third.rollback()
        emit(shop, session, "one-more")
        first.rollback()
        fourth = session.begin_nested()
        emit(shop, session, "four")
        fourth.commit()
        session.commit()

    backend.run(body)
    assert types(shop, backend) == ["four"]


def test_a_savepoint_that_is_closed_drops_its_events(shop, backend):
    """close() rolls a savepoint back without an event of its own; its events must not stay."""

    def body(session: Session) -> None:
        savepoint = session.begin_nested()
        session.execute(text("SELECT 1"))
        emit(shop, session, "dropped")
        savepoint.close()
        emit(shop, session, "kept")
        session.commit()

    backend.run(body)
    assert types(shop, backend) == ["kept"]


def test_commit_with_an_open_savepoint(shop, backend):
    """Committing the transaction object releases what is open, and writes all of it."""

    def body(session: Session) -> None:
        root = session.begin()
        session.begin_nested()
        emit(shop, session, "inner")
        root.commit()

    backend.run(body)
    assert types(shop, backend) == ["inner"]


@pytest.mark.parametrize("autoflush", [True, False])
@pytest.mark.parametrize("expire_on_commit", [True, False])
def test_session_options_change_nothing(shop, backend, autoflush, expire_on_commit):
    """With autoflush off and either expire_on_commit, a late key is known at commit."""

    def body(session: Session) -> None:
        order = shop.Order()
        session.add(order)
        made = emit(shop, session, "placed", key=order)
        session.execute(select(shop.Order)).all()
        session.commit()
        assert made.key == "1"

    backend.run(body, autoflush=autoflush, expire_on_commit=expire_on_commit)
    assert backend.rows(shop.events.table, "key") == [("1",)]


def test_a_session_closed_without_commit_writes_nothing(shop, backend):
    """Also when it is used again afterwards."""

    def body(session: Session) -> None:
        session.add(shop.Order())
        session.flush()
        emit(shop, session, "lost")
        session.close()
        emit(shop, session, "kept")
        session.commit()

    backend.run(body)
    assert types(shop, backend) == ["kept"]


def test_a_failed_flush_carries_nothing_over(shop, backend):
    """After the error and the rollback, only the new event goes out."""

    def body(session: Session) -> None:
        session.add(shop.Order(id=1))
        session.commit()
        session.add(shop.Order(id=1))
        emit(shop, session, "lost")
        with pytest.raises(Exception, match=r"(?i)unique|duplicate"):
            session.commit()
        with pytest.raises(SessionNotUsable, match="roll back"):
            emit(shop, session, "too early")
        session.rollback()
        emit(shop, session, "kept")
        session.commit()

    backend.run(body)
    assert types(shop, backend) == ["kept"]


def test_listeners_may_emit(shop, backend):
    """before_commit, before_flush and after_flush listeners, of a session that did nothing else."""

    def body(session: Session) -> None:
        def before_commit(_: Session) -> None:
            emit(shop, session, "before_commit")

        sa_event.listen(session, "before_commit", before_commit)
        session.commit()
        emit(shop, session, "first")
        session.commit()
        sa_event.remove(session, "before_commit", before_commit)

        def before_flush(*_: object) -> None:
            emit(shop, session, "before_flush")

        sa_event.listen(session, "before_flush", before_flush)
        session.add(shop.Order())
        session.commit()

    backend.run(body)
    assert types(shop, backend) == ["before_commit", "first", "before_commit", "before_flush"]


def test_an_emit_after_the_commit_is_refused(shop, backend):
    """In after_commit nothing can be written any more: an error, not a lost event."""

    def body(session: Session) -> None:
        problems = []

        def after_commit(_: Session) -> None:
            with pytest.raises(SessionNotUsable) as caught:
                emit(shop, session, "too late")
            problems.append(caught.value)

        sa_event.listen(session, "after_commit", after_commit)
        emit(shop, session, "in time")
        session.commit()
        assert len(problems) == 1

    backend.run(body)
    assert types(shop, backend) == ["in time"]


def test_changes_of_late_listeners_come_before_the_events(shop, backend):
    """The INSERT into the outbox is the last statement, whatever a listener flushes or executes."""
    statements: list[str] = []

    def record(conn, cursor, statement, parameters, context, executemany):
        words = statement.replace('"', "").split()
        statements.append(words[0] if len(words) < 3 else f"{words[0]} {words[2]}")

    def body(session: Session) -> None:
        emit(shop, session, "first")

        def before_commit(_: Session) -> None:
            session.execute(update(shop.Order).values(total=2))
            session.add(shop.Order(total=3))

        sa_event.listen(session, "before_commit", before_commit)
        session.add(shop.Order(total=1))
        session.flush()
        session.execute(update(shop.Order).values(total=5))
        session.execute(text("UPDATE orders SET total = 6"))
        session.add(shop.Order(total=1))
        session.commit()

    sa_event.listen(backend.sync_engine, "before_cursor_execute", record)
    backend.run(body)
    assert statements.count("INSERT orders") == 3
    assert statements.count("INSERT outbox") == 1
    assert statements[-1] == "INSERT outbox"


def test_a_thousand_events_are_a_handful_of_statements(shop, backend):
    """One transaction, a thousand events with and without numbers: few statements."""
    count = 0

    def record(conn, cursor, statement, parameters, context, executemany):
        nonlocal count
        count += statement != "BEGIN"

    def body(session: Session) -> None:
        session.add(shop.Order())
        for number in range(1000):
            emit(shop, session, "bulk", key=number % 3, seq=AUTO if number % 2 else None)
        session.commit()

    def plain(session: Session) -> None:
        for _ in range(1000):
            emit(shop, session, "plain")
        session.commit()

    backend.run(body)  # meets the database
    sa_event.listen(backend.sync_engine, "before_cursor_execute", record)
    backend.run(plain)
    assert count <= 2
    count = 0
    backend.run(body)
    # SQLite takes a statement per key, and inserts with RETURNING in pages of a few dozen rows.
    assert count <= (3 if backend.is_postgres else 60)
    assert len(types(shop, backend)) == 3000


def test_two_outboxes_in_one_session(shop, backend):
    """Each event goes to its own tables, in the same transaction."""
    from outbox import Outbox

    other = Outbox(name="audit", prefix="audit_")
    backend.create(other.metadata)

    def body(session: Session) -> None:
        emit(shop, session, "one")
        other.emit(session, "two", topic="t", key="k", data=None)
        emit(shop, session, "three")
        session.commit()

    backend.run(body)
    assert types(shop, backend) == ["one", "three"]
    assert backend.rows(other.table, "type") == [("two",)]


def test_a_failing_commit_writes_nothing(shop, backend):
    """When the events cannot be written, the business change is not committed either."""

    def body(session: Session) -> None:
        session.add(shop.Order(total=1))
        emit(shop, session, "first", seq=1)
        session.commit()
        session.add(shop.Order(total=2))
        emit(shop, session, "second", seq=1)
        with pytest.raises(Exception, match="repeats seq 1"):
            session.commit()
        session.rollback()
        session.add(shop.Order(total=3))
        session.commit()
        assert session.scalars(select(shop.Order.total)).all() == [1, 3]

    backend.run(body)
    assert types(shop, backend) == ["first"]
