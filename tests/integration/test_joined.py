"""Sessions on a connection of the caller's: joined, in savepoints, and with several binds."""

from __future__ import annotations

import pytest
from sqlalchemy import create_engine, select
from sqlalchemy.engine import Connection
from sqlalchemy.orm import Session

from outbox import DuplicateSeq, Event, NeverWritten, NoBind
from support.shop import make_shop

MODES = ["conditional_savepoint", "rollback_only", "create_savepoint", "control_fully"]


def emit(shop, session, type, **fields):
    return shop.events.emit(session, type, **{"topic": "t", "key": "k", "data": None, **fields})


def types(shop, connection: Connection) -> list[str]:
    return list(connection.execute(select(shop.events.table.c.type)).scalars())


@pytest.mark.parametrize("mode", MODES)
def test_a_joined_session_writes_into_the_outer_transaction(shop, backend, mode):
    """After session.commit() the row is there, and the outer rollback takes it away again."""

    def body(connection: Connection) -> None:
        outer = connection.begin()
        with Session(connection, join_transaction_mode=mode) as session:
            session.add(shop.Order())
            made = emit(shop, session, "joined")
            session.commit()
            assert made.key == "k"
        assert types(shop, connection) == ["joined"]
        if mode != "control_fully":
            outer.rollback()

    backend.connect(body)
    expected = [("joined",)] if mode == "control_fully" else []
    assert backend.rows(shop.events.table, "type") == expected


@pytest.mark.parametrize("mode", MODES)
def test_a_connection_without_a_transaction(shop, backend, mode):
    """A session on an idle connection commits for itself."""

    def body(connection: Connection) -> None:
        with Session(connection, join_transaction_mode=mode) as session:
            emit(shop, session, "own")
            session.commit()

    backend.connect(body)
    assert backend.rows(shop.events.table, "type") == [("own",)]


def test_a_savepoint_of_the_outer_transaction_decides(shop, backend):
    """Events of a joined session follow the savepoints of the connection they were written on."""

    def body(connection: Connection) -> None:
        with connection.begin():
            for name in ("kept", "dropped"):
                savepoint = connection.begin_nested()
                with Session(connection, join_transaction_mode="create_savepoint") as session:
                    session.add(shop.Order())
                    emit(shop, session, name)
                    session.commit()
                savepoint.commit() if name == "kept" else savepoint.rollback()

    backend.connect(body)
    assert backend.rows(shop.events.table, "type") == [("kept",)]


def test_a_joined_session_with_savepoints_of_its_own(shop, backend):
    """Inner rollbacks drop only their own events here too."""

    def body(connection: Connection) -> None:
        with connection.begin(), Session(connection) as session:
            emit(shop, session, "one")
            with session.begin_nested():
                emit(shop, session, "two")
            session.begin_nested()
            emit(shop, session, "dropped")
            session.get_nested_transaction().rollback()
            session.commit()

    backend.connect(body)
    assert backend.rows(shop.events.table, "type") == [("one",), ("two",)]


def test_an_error_while_joined_leaves_a_session_that_can_roll_back(shop, backend):
    """The error comes out of commit(), rollback() works, and the outer transaction is undone."""

    def body(connection: Connection) -> None:
        with Session(connection) as session:
            emit(shop, session, "first", seq=1)
            session.commit()
        outer = connection.begin()
        with Session(connection, join_transaction_mode="rollback_only") as session:
            session.add(shop.Order())
            emit(shop, session, "again", seq=1)
            with pytest.raises(DuplicateSeq):
                session.commit()
            session.rollback()
        assert not outer.is_active
        assert connection.execute(select(shop.Order)).all() == []

    backend.connect(body)


def test_binds_by_class(shop, backend):
    """A factory that binds only mapped classes still finds the outbox's database."""

    def by_key(session: Session) -> None:
        order = shop.Order()
        session.add(order)
        emit(shop, session, "by key", key=order)
        session.commit()

    def by_connection(session: Session) -> None:
        session.add(shop.Order())
        session.flush()
        emit(shop, session, "by connection")
        session.commit()

    def by_table(session: Session) -> None:
        emit(shop, session, "by table")
        session.commit()

    engine = backend.engine
    binds = {shop.Order: engine}
    for body in (by_key, by_connection):
        _run(backend, body, binds)
    _run(backend, by_table, {**binds, shop.events.table: engine})
    assert [row[0] for row in backend.rows(shop.events.table, "type")] == [
        "by key",
        "by connection",
        "by table",
    ]
    with pytest.raises(NoBind, match=r"add events\.table"):
        _run(backend, by_table, binds)


def _run(backend, body, binds) -> None:
    backend.run(body, bind=None, binds=binds)


def test_two_databases_in_one_session(tmp_path):
    """Each outbox is written in the database that it is bound to."""
    one, two = make_shop(), make_shop()
    engines = [create_engine(f"sqlite:///{tmp_path}/{name}.db") for name in ("one", "two")]
    for shop, engine in zip((one, two), engines, strict=True):
        shop.metadata.create_all(engine)
    binds = {one.Order: engines[0], one.events.table: engines[0]}
    binds |= {two.Order: engines[1], two.events.table: engines[1]}
    with Session(binds=binds) as session:
        session.add_all([one.Order(), two.Order()])
        emit(one, session, "one")
        emit(two, session, "two")
        session.commit()
    for shop, engine, name in zip((one, two), engines, ("one", "two"), strict=True):
        with engine.connect() as connection:
            assert types(shop, connection) == [name]
        engine.dispose()


def test_the_callers_own_commit_takes_the_events_along(shop, backend):
    """What a joined session flushed is committed by the connection; so are its events."""

    def body(connection: Connection) -> None:
        outer = connection.begin()
        with Session(connection, join_transaction_mode="rollback_only") as session:
            session.add(shop.Order())
            session.flush()
            emit(shop, session, "taken along")
            outer.commit()

    backend.connect(body)
    assert backend.rows(shop.events.table, "type") == [("taken along",)]


def test_a_commit_that_fails_undoes_the_callers_transaction(shop, backend):
    """The connection is left clean: no half of the transaction can be committed later."""

    def body(connection: Connection) -> None:
        connection.execute(shop.events.insert(Event("e", topic="t", key="k", data=None, seq=1)))
        connection.commit()
        outer = connection.begin()
        with Session(connection, join_transaction_mode="rollback_only") as session:
            session.add(shop.Order())
            session.flush()
            emit(shop, session, "again", seq=1)
            with pytest.raises(DuplicateSeq):
                outer.commit()
        connection.rollback()  # SQLAlchemy sends no ROLLBACK here: it thinks the commit was sent
        assert connection.execute(select(shop.Order)).all() == []

    backend.connect(body)


def test_a_joined_session_knows_late_keys(shop, backend):
    """What the session has yet to flush is flushed before its events are written."""

    def body(connection: Connection) -> None:
        with connection.begin(), Session(connection) as session:
            order = shop.Order()
            session.add(order)
            made = emit(shop, session, "placed", key=order)
            session.commit()
            assert made.key == str(order.id)

    backend.connect(body)
    assert backend.rows(shop.events.table, "key") == [("1",)]


def test_events_are_never_lost_in_silence(shop, backend):
    """A joined session's transaction object, committed with a savepoint open, cannot write."""

    def body(connection: Connection) -> None:
        outer = connection.begin()
        with Session(connection, join_transaction_mode="rollback_only") as session:
            root = session.begin()
            session.begin_nested()
            session.add(shop.Order())
            emit(shop, session, "stranded")
            with pytest.raises(NeverWritten, match="stranded"):
                root.commit()
        outer.rollback()

    backend.connect(body)
    assert backend.rows(shop.events.table, "type") == []
