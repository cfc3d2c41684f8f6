"""When pending events are written: after everything else the transaction did, before COMMIT.

The moment is the connection's own `commit` (or `prepare_twophase`) event, which SQLAlchemy fires
after the last flush and right before the word goes to the server. So every lock the transaction
takes is held before an id is drawn, whatever autoflush, bulk updates, raw SQL or other listeners
came in between. `Session.before_commit` would be too early: the last flush comes after it.

A session bound to a Connection may have no COMMIT of its own (it joined an outer transaction), so
its events are written at the end of `before_commit`, into that outer transaction.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any
from weakref import WeakKeyDictionary

from sqlalchemy import event, inspect
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import UnboundExecutionError
from sqlalchemy.orm import Session, SessionTransaction

from outbox import writer
from outbox.errors import NeverWritten, NoBind
from outbox.pending import Buffer, Pending, buffer_of

_sessions: WeakKeyDictionary[Connection, Session] = WeakKeyDictionary()
_engines: WeakKeyDictionary[Engine, bool] = WeakKeyDictionary()


def install() -> None:
    """Listen on every Session, once. A session that emits nothing pays a dictionary look-up.

    On the class, because only class-level listeners run before those of a single session, and
    because a session's first emit may come from inside one of its own listeners.
    """
    if event.contains(Session, "before_commit", _before_commit):
        return
    event.listen(Session, "after_begin", _after_begin)
    event.listen(Session, "before_commit", _before_commit)
    event.listen(Session, "after_commit", _after_commit)
    event.listen(Session, "after_transaction_end", _after_transaction_end)


def emitted(session: Session, buffer: Buffer) -> None:
    """An event was added to the buffer: see to it that somebody writes it."""
    _listen(buffer)
    if buffer.committing:  # a listener emitted it, while its session was already committing
        _enlist(session, buffer)


def _after_begin(session: Session, _: SessionTransaction, connection: Connection) -> None:
    buffer = buffer_of(session)
    if connection not in buffer.connections:
        buffer.connections.append(connection)
    _sessions[connection] = session
    if buffer.items:
        _listen(buffer)


def _listen(buffer: Buffer) -> None:
    """On the engines of the transaction, once each. An engine on which nothing is emitted is left
    alone: listeners cost every transaction of an engine some microseconds."""
    for connection in buffer.connections:
        engine = connection.engine
        if engine not in _engines:
            _engines[engine] = True
            event.listen(engine, "commit", _on_commit)
            event.listen(engine, "prepare_twophase", _on_prepare)


def _before_commit(session: Session) -> None:
    buffer = buffer_of(session)
    buffer.committing = True
    if buffer.items:
        _enlist(session, buffer)


def _enlist(session: Session, buffer: Buffer) -> None:
    """Make sure that the transaction has a connection to write the events on."""
    for bind in set(_binds(session, buffer).values()):
        connection = session.connection(bind_arguments={"bind": bind})
        if isinstance(bind, Connection) and not session.in_nested_transaction():
            session.flush()
            _write(session, connection)


def _on_commit(connection: Connection) -> None:
    session = _sessions.get(connection)
    if session is None:
        return
    try:
        _write(session, connection)
    except BaseException:
        # SQLAlchemy takes a transaction whose commit failed for finished. Without this rollback
        # the business changes would stay in the open transaction, and could yet be committed.
        connection.connection.rollback()
        raise


def _on_prepare(connection: Connection, _: object) -> None:
    session = _sessions.get(connection)
    if session is not None:
        _write(session, connection)  # on an error, the session rolls back by itself


def _write(session: Session, connection: Connection) -> None:
    buffer = buffer_of(session)
    if not buffer.items:
        return
    binds = _binds(session, buffer)
    ours = (connection, connection.engine)
    writer.write(connection, buffer.take(lambda item: binds[_bind_key(item)] in ours))


def _after_commit(session: Session) -> None:
    buffer = buffer_of(session)
    savepoint = session.get_nested_transaction()
    if savepoint is not None:
        buffer.committing = False
        buffer.release(savepoint)
        return
    if buffer.items:
        raise NeverWritten([item.event for item in buffer.items])
    for item in buffer.settle():
        item.outbox._committed(item)


def _after_transaction_end(session: Session, transaction: SessionTransaction) -> None:
    buffer = buffer_of(session)
    if transaction.nested or transaction.parent is None:
        buffer.committing = False
        for item in buffer.end(transaction):
            if item.home is not None:
                item.home._take_back(item)
    if transaction.parent is None:
        buffer.connections.clear()


Bind = Engine | Connection
BindKey = tuple[object, type | None]


def _bind_key(item: Pending) -> BindKey:
    """What decides an item's database: its outbox, and the class of the object that is its key."""
    owner = item.event._key_owner
    return item.outbox, None if owner is None else type(owner)


def _binds(session: Session, buffer: Buffer) -> dict[BindKey, Bind]:
    binds: dict[BindKey, Bind] = {}
    for item in buffer.items:
        key = _bind_key(item)
        if key not in binds:
            binds[key] = _bind(session, buffer, item, key[1])
    return binds


def _bind(session: Session, buffer: Buffer, item: Pending, owner: type | None) -> Bind:
    """The database of the outbox: what the session says, else that of the key's object, else the
    only one in this transaction."""
    # An INSERT and not the table, so that a get_bind() that routes writes sends it to the primary.
    arguments: list[dict[str, Any]] = [{"clause": item.outbox.statements.plain}]
    if owner is not None:
        arguments.append({"mapper": inspect(owner)})
    for argument in arguments:
        with suppress(UnboundExecutionError):
            return session.get_bind(**argument)
    if len(buffer.connections) == 1:
        return buffer.connections[0].engine
    raise NoBind(item.outbox.table.fullname)
