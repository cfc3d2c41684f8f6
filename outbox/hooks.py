"""When pending events are written: after everything else the transaction did, before COMMIT.

The moment is the connection's own `commit` (or `prepare_twophase`) event, which SQLAlchemy fires
after the last flush and right before the word goes to the server. So every lock the transaction
takes is held before an id is drawn, whatever autoflush, bulk updates, raw SQL or other listeners
came in between. `Session.before_commit` would be too early: the last flush comes after it.

A session bound to a Connection may have no COMMIT of its own (it joined an outer transaction), so
its events are written at the end of `before_commit`, into that outer transaction. If it is closed
without a commit and its changes stay, its events wait for the connection's own commit.
"""

from __future__ import annotations

import threading
from contextlib import suppress
from typing import Any
from weakref import WeakSet

from sqlalchemy import event, inspect
from sqlalchemy.engine import Connection, Engine
from sqlalchemy.exc import UnboundExecutionError
from sqlalchemy.orm import Session, SessionTransaction
from sqlalchemy.orm.unitofwork import UOWTransaction

from outbox import writer
from outbox.errors import NeverWritten, NoBind, SessionNotUsable
from outbox.pending import Bind, Buffer, buffer_of, frame_of
from outbox.versions import mapped_version

_engines: WeakSet[Engine] = WeakSet()
_listening = threading.Lock()


def install() -> None:
    """Listen on every Session, once. A session that emits nothing pays for some look-ups.

    On the class, because only class-level listeners run before those of a single session, and
    because a session's first emit may come from inside one of its own listeners.
    """
    if event.contains(Session, "before_commit", _before_commit):
        return
    event.listen(Session, "after_begin", _after_begin)
    event.listen(Session, "after_flush", _after_flush)
    event.listen(Session, "before_commit", _before_commit)
    event.listen(Session, "after_commit", _after_commit)
    event.listen(Session, "after_rollback", _after_rollback)
    event.listen(Session, "after_transaction_end", _after_transaction_end)


def emitted(session: Session, buffer: Buffer) -> None:
    """An event was added to the buffer: see to it that somebody writes it."""
    _decide(session, buffer)
    for connection in buffer.connections:
        _listen(connection.engine)
    if buffer.committing is not None:
        # A listener emitted it, while its session was already committing.
        _enlist(session, buffer)


# The transaction begins, flushes, commits or ends


def _after_begin(session: Session, _: SessionTransaction, connection: Connection) -> None:
    _attach(buffer_of(session), connection)


def _after_flush(session: Session, _: UOWTransaction) -> None:
    """A version belongs to the flush that made it: a later one may raise it again."""
    buffer = buffer_of(session)
    if not buffer.unversioned:
        return
    changed = session.new.union(session.dirty)
    for item in buffer.unversioned:
        if item.version_of in changed:
            item.seq = mapped_version(item.version_of)
    buffer.unversioned = [item for item in buffer.unversioned if item.seq is None]


def _before_commit(session: Session) -> None:
    buffer = buffer_of(session)
    if buffer.failed:
        raise SessionNotUsable("writing its events failed; roll back first")
    if buffer.committing is None:  # else a savepoint is released while the session commits
        buffer.committing = frame_of(session)
    if buffer:
        _enlist(session, buffer)


def _after_commit(session: Session) -> None:
    buffer = buffer_of(session)
    savepoint = session.get_nested_transaction()
    if savepoint is not None:
        buffer.release(savepoint)
        return
    if buffer:
        raise NeverWritten([item.event for item in buffer])
    for item in buffer.settle():
        item.outbox._committed(item)


def _after_rollback(session: Session) -> None:
    if session.get_nested_transaction() is None:
        for item in buffer_of(session).undo():
            if item.home is not None:
                item.home._take_back(item)


def _after_transaction_end(session: Session, transaction: SessionTransaction) -> None:
    buffer = buffer_of(session)
    if transaction.parent is None and _leave_to_connection(session, buffer):
        session.__dict__.pop("_oncebox_buffer")
    elif transaction.nested or transaction.parent is None:
        for item in buffer.end(transaction):
            if item.home is not None:
                item.home._take_back(item)


def _leave_to_connection(session: Session, buffer: Buffer) -> bool:
    """Whether a joined session ended without its outer transaction. Then the changes it flushed are
    committed or not by the connection, and its events must share that fate: the connection keeps
    the buffer."""
    if not buffer and not buffer.failed:
        return False
    mode = session.join_transaction_mode
    return any(
        connection is bind
        and connection.in_transaction()
        and (
            mode == "rollback_only"
            or (mode == "conditional_savepoint" and not connection.in_nested_transaction())
        )
        for bind in buffer.binds.values()
        for connection in buffer.connections
    )


# The connection commits


def _attach(buffer: Buffer, connection: Connection) -> None:
    if connection in buffer.connections:
        return
    buffer.connections.append(connection)
    # An attribute and not a weak dictionary, whose value would keep its own key alive.
    connection.__dict__.setdefault("_oncebox_buffers", []).append(buffer)
    if buffer:
        _listen(connection.engine)


def _listen(engine: Engine) -> None:
    """Once an engine. One on which nothing is emitted is left alone: listeners cost every
    transaction of an engine some microseconds."""
    if engine in _engines:
        return
    with _listening:
        if engine not in _engines:
            event.listen(engine, "commit", _on_commit)
            event.listen(engine, "prepare_twophase", _on_prepare)
            _engines.add(engine)


def _on_commit(connection: Connection) -> None:
    try:
        _write_all(connection)
    except BaseException:
        _roll_back(connection)
        raise


def _on_prepare(connection: Connection, _: object) -> None:
    _write_all(connection)  # on an error, the session rolls back by itself


def _write_all(connection: Connection) -> None:
    buffers: list[Buffer] = connection.__dict__.pop("_oncebox_buffers", [])
    for buffer in buffers:
        if buffer.failed:
            raise NeverWritten([item.event for item in buffer.written])
        _write(buffer, connection)


def _roll_back(connection: Connection) -> None:
    """SQLAlchemy takes a transaction whose commit failed for finished. Without this rollback the
    business changes would stay in the open transaction, and could yet be committed."""
    if connection.invalidated:  # cancelled or cut off: the server has rolled back
        return
    try:
        connection.connection.rollback()
    except Exception:
        connection.invalidate()


def _write(buffer: Buffer, connection: Connection) -> None:
    """Everything that goes to this connection's database."""
    if buffer.connections == [connection]:
        buffer.settle_on(connection.engine)
    for bind in (connection, connection.engine):
        items = buffer.take(bind)
        if items:
            writer.write(connection, items)


# The session's databases


def _enlist(session: Session, buffer: Buffer) -> None:
    """Make sure that the transaction has a connection to write the events on."""
    _decide(session, buffer)
    if len(buffer.connections) == 1:
        buffer.settle_on(buffer.connections[0].engine)
    for (outbox, _), bind in list(buffer.binds.items()):
        if bind is None:
            raise NoBind(outbox.table.fullname)
        connection = session.connection(bind_arguments={"bind": bind})
        _attach(buffer, connection)
        _listen(connection.engine)
        if isinstance(bind, Connection) and not session.in_nested_transaction():
            _write_joined(session, buffer, connection)


def _write_joined(session: Session, buffer: Buffer, connection: Connection) -> None:
    session.flush()
    try:
        _write(buffer, connection)
    except BaseException:
        # The session is still active here, and what was written is neither all nor nothing.
        buffer.failed = True
        raise


def _decide(session: Session, buffer: Buffer) -> None:
    """Where events go: what the session says, else where the key's object is; decided once, since
    a session that spreads its reads may answer differently each time. What neither tells is left
    open: the only connection of the transaction will be it."""
    for key, decided in buffer.binds.items():
        if decided is None:
            outbox, owner = key
            # An UPDATE: every get_bind() that routes writes knows it, and some forget INSERT.
            arguments: list[dict[str, Any]] = [{"clause": outbox.statements.routed}]
            if owner is not None:
                arguments.append({"mapper": inspect(owner)})
            buffer.binds[key] = _first_bind(session, arguments)


def _first_bind(session: Session, arguments: list[dict[str, Any]]) -> Bind | None:
    for argument in arguments:
        with suppress(UnboundExecutionError):
            return session.get_bind(**argument)
    return None
