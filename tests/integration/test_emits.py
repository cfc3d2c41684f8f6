"""Events from domain methods: `self.emit(...)` on a mapped class."""

from __future__ import annotations

import pytest
from sqlalchemy import MetaData
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from support.shop import make_shop

from outbox import AUTO, Emits, InvalidField, Outbox


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
    """Adding it anew, after a savepoint or a transaction was rolled back, emits them once."""

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
    assert [row[1] for row in rows(shop, backend)] == ["opened"]


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
