"""Events from domain methods: `self.emit(...)` on a mapped class."""

from __future__ import annotations

import pytest
from sqlalchemy import MetaData, select
from sqlalchemy.exc import IntegrityError, SAWarning
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from outbox import AUTO, Emits, InvalidField, Outbox, SessionNotUsable
from support.shop import make_shop


def rows(shop, backend):
    return backend.rows(shop.events.table, "topic", "type", "key")


def test_a_domain_method_emits(shop, backend):
    """Topic and key come from the class; the key is the primary key that the flush gives."""

    def body(session: Session) -> None:
        ticket = shop.Ticket()
        session.add(ticket)
        made = ticket.close()
        session.commit()
        assert made.data == {"state": "closed"}
        assert made.key == str(ticket.id)

    backend.run(body)
    assert rows(shop, backend) == [("support", "ticket.closed", "1")]


def test_the_defaults_can_be_overridden_at_the_call(shop, backend):
    """Topic, key, seq and headers."""

    def body(session: Session) -> None:
        ticket = shop.Ticket()
        session.add(ticket)
        ticket.emit("x", topic="other", key="key", seq=AUTO, headers={"tenant": "acme"})
        shop.Counted().emit("never added")
        session.commit()

    backend.run(body)
    assert backend.rows(shop.events.table, "topic", "key", "seq", "tenant") == [
        ("other", "key", 1, "acme")
    ]


def test_the_topic_defaults_to_the_table(shop, backend):
    """And `__seq__ = AUTO` numbers every event of the class."""

    def body(session: Session) -> None:
        counted = shop.Counted()
        session.add(counted)
        events = [counted.emit("x"), counted.emit("y")]
        session.commit()
        assert [event.seq for event in events] == [1, 2]

    backend.run(body)
    assert rows(shop, backend) == [("counted", "x", "1"), ("counted", "y", "1")]


def test_an_object_without_a_session_keeps_its_events(shop, backend):
    """They are emitted when the object is added, in the order they were made."""

    def body(session: Session) -> None:
        ticket = shop.Ticket()
        ticket.emit("opened")
        ticket.close()
        session.add(ticket)
        session.commit()
        session.commit()

    backend.run(body)
    assert [row[1] for row in rows(shop, backend)] == ["opened", "ticket.closed"]


def test_a_rolled_back_object_has_its_events_again(shop, backend):
    """Adding it anew, after a savepoint or a transaction was rolled back, emits them once; also
    those from the time it was new in a session."""

    def body(session: Session) -> None:
        ticket = shop.Ticket()
        ticket.emit("opened")
        with session.begin_nested() as savepoint:
            session.add(ticket)
            ticket.emit("inside")
            savepoint.rollback()
        session.add(ticket)
        session.rollback()
        session.add(ticket)
        session.commit()

    backend.run(body)
    assert [row[1] for row in rows(shop, backend)] == ["opened", "inside"]


def test_a_rolled_back_change_of_a_stored_object_is_gone(shop, backend):
    """The object is as the database has it, and so are its events."""

    def body(session: Session) -> None:
        ticket = shop.Ticket()
        session.add(ticket)
        session.commit()
        ticket.close()
        session.rollback()
        ticket.emit("kept")
        session.commit()
        assert ticket.state == "open"

    backend.run(body)
    assert [row[1] for row in rows(shop, backend)] == ["kept"]


def test_an_expunged_object_takes_its_events_along(shop, backend):
    """No row, no event; added later, both."""

    def body(session: Session) -> None:
        ticket = shop.Ticket(id=1)
        ticket.emit("opened")
        session.add(ticket)
        session.expunge(ticket)
        session.commit()
        assert rows_now(session, shop) == []
        session.add(ticket)
        session.commit()

    backend.run(body)
    assert [row[1] for row in rows(shop, backend)] == ["opened"]


def rows_now(session: Session, shop) -> list[str]:
    return list(session.scalars(select(shop.events.table.c.type)))


def test_events_of_an_object_wait_for_a_session_that_takes_them(shop, backend):
    """Adding it to a session that must be rolled back first is in vain, and loses nothing."""

    def body(session: Session) -> None:
        session.add(shop.Order(id=1))
        session.commit()
        session.add(shop.Order(id=1))
        with pytest.raises(IntegrityError):
            session.flush()
        ticket = shop.Ticket()
        ticket.emit("opened")
        session.add(ticket)
        with pytest.warns(SAWarning, match="non-active"):
            session.rollback()
        session.add(ticket)
        session.commit()

    backend.run(body)
    assert [row[1] for row in rows(shop, backend)] == ["opened"]


def test_a_detached_object_cannot_emit(shop, backend):
    """Nobody would ever write the event; the error says what to do."""

    def body(session: Session) -> None:
        ticket = shop.Ticket()
        session.add(ticket)
        session.commit()
        session.expunge(ticket)
        with pytest.raises(SessionNotUsable, match="detached"):
            ticket.emit("x")

    backend.run(body)


def test_one_event_without_a_number_in_a_numbered_class(shop, backend):
    """seq=None at the call overrides `__seq__`."""

    def body(session: Session) -> None:
        counted = shop.Counted()
        session.add(counted)
        counted.emit("plain", seq=None)
        session.commit()

    backend.run(body)
    assert backend.rows(shop.events.table, "seq") == [(None,)]


def test_changes_of_a_loaded_object(shop, backend):
    """An expired object gives its key without a query."""

    def body(session: Session) -> None:
        ticket = shop.Ticket(id=7)
        session.add(ticket)
        session.commit()
        ticket.emit("touched")
        session.commit()
        session.delete(ticket)
        ticket.emit("deleted")
        session.commit()

    backend.run(body)
    assert rows(shop, backend) == [("support", "touched", "7"), ("support", "deleted", "7")]


def test_a_class_without_an_outbox_says_so():
    """The error tells what to do."""

    class Base(DeclarativeBase):
        pass

    class Lonely(Emits, Base):
        __tablename__ = "lonely"
        id: Mapped[int] = mapped_column(primary_key=True)

    with pytest.raises(InvalidField, match="__outbox__"):
        Lonely().emit("x")


def test_an_outbox_with_tables_of_its_own_is_named_on_the_class(backend):
    """`__outbox__` wins over the one on the class's MetaData."""
    shop = make_shop()
    own = Outbox(MetaData(), name="own", prefix="own_")

    class Special(Emits, shop.Base):
        __tablename__ = "special"
        __outbox__ = own
        id: Mapped[int] = mapped_column(primary_key=True)

    backend.create(shop.metadata)
    backend.create(own.metadata)

    def body(session: Session) -> None:
        special = Special()
        session.add(special)
        special.emit("x")
        session.commit()

    backend.run(body)
    assert backend.rows(own.table, "type") == [("x",)]
    assert backend.rows(shop.events.table, "type") == []
