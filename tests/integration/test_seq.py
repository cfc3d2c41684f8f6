"""seq: the key's own version, given by the caller, by the toolkit, or by a mapped column."""

from __future__ import annotations

import random
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy.orm import Session

from outbox import AUTO, DuplicateSeq, Outbox, VersionSeqError
from support.shop import make_shop


def emit(shop, session, type="e", **fields):
    return shop.events.emit(session, type, **{"topic": "t", "key": "k", "data": None, **fields})


def test_auto_counts_each_key_from_one(shop, backend):
    """Per topic and key, across transactions; the event knows its number after the commit."""

    def body(session: Session) -> None:
        first = [emit(shop, session, key=key, seq=AUTO) for key in "abab"]
        other = emit(shop, session, topic="u", key="a", seq=AUTO)
        unversioned = emit(shop, session, key="a")
        session.commit()
        second = emit(shop, session, key="a", seq=AUTO)
        session.commit()
        assert [event.seq for event in first] == [1, 1, 2, 2]
        assert (other.seq, unversioned.seq, second.seq) == (1, None, 3)

    backend.run(body)
    assert backend.rows(shop.events.table, "topic", "key", "seq") == [
        ("t", "a", 1),
        ("t", "b", 1),
        ("t", "a", 2),
        ("t", "b", 2),
        ("u", "a", 1),
        ("t", "a", None),
        ("t", "a", 3),
    ]


def test_a_rollback_leaves_no_hole(shop, backend):
    """A number that was taken and rolled back is given out again; so is a savepoint's."""

    def body(session: Session) -> None:
        emit(shop, session, seq=AUTO)
        session.commit()
        emit(shop, session, seq=AUTO)
        session.rollback()
        with session.begin_nested() as savepoint:
            emit(shop, session, seq=AUTO)
            savepoint.rollback()
        event = emit(shop, session, seq=AUTO)
        session.commit()
        assert event.seq == 2

    backend.run(body)
    assert backend.rows(shop.events.table, "seq") == [(1,), (2,)]


def test_a_seq_of_your_own(shop, backend):
    """It is written as given, and may start anywhere."""

    def body(session: Session) -> None:
        for seq in (7, 0, 8):
            assert emit(shop, session, seq=seq).seq == seq
        session.commit()

    backend.run(body)
    assert backend.rows(shop.events.table, "seq") == [(7,), (0,), (8,)]


def test_a_repeated_seq_names_the_event(shop, backend):
    """Against what is stored, and within one transaction; the right one of several is named."""

    def body(session: Session) -> None:
        emit(shop, session, "stored", key="a", seq=1)
        session.commit()
        emit(shop, session, "fine", key="b", seq=1)
        culprit = emit(shop, session, "culprit", key="a", seq=1)
        with pytest.raises(DuplicateSeq) as caught:
            session.commit()
        assert (caught.value.event_id, caught.value.key, caught.value.seq) == (culprit.id, "a", 1)
        session.rollback()
        emit(shop, session, "fine", key="c", seq=1)
        culprit = emit(shop, session, "culprit", key="c", seq=1)
        with pytest.raises(DuplicateSeq) as caught:
            session.commit()
        assert caught.value.event_id == culprit.id
        session.rollback()

    backend.run(body)
    assert backend.rows(shop.events.table, "type") == [("stored",)]


def test_a_repeated_seq_can_be_skipped(shop, backend):
    """With on_duplicate="skip" the others are written, and errors elsewhere stay errors."""

    def body(session: Session) -> None:
        emit(shop, session, "stored", seq=1)
        session.commit()
        emit(shop, session, "skipped", seq=1, on_duplicate="skip")
        emit(shop, session, "next", seq=2, on_duplicate="skip")
        emit(shop, session, "auto", key="other", seq=AUTO)
        emit(shop, session, "plain")
        session.commit()
        emit(shop, session, "skipped", seq=1, on_duplicate="skip")
        emit(shop, session, "error", seq=2)
        with pytest.raises(DuplicateSeq, match="error"):
            session.commit()

    backend.run(body)
    assert [row[0] for row in backend.rows(shop.events.table, "type")] == [
        "stored",
        "next",
        "auto",
        "plain",
    ]


def test_sixteen_writers_share_their_keys(psycopg):
    """Contiguous numbers per key, no holes after rollbacks, no deadlock, ids in seq order."""
    shop = make_shop()
    psycopg.create(shop.metadata)
    keys = [f"key-{number}" for number in range(6)]
    deadlocks: list[BaseException] = []

    def writer(seed: int) -> None:
        chance = random.Random(seed)
        with Session(psycopg.engine) as session:
            for _ in range(25):
                for key in chance.choices(keys, k=chance.randint(1, 5)):
                    emit(shop, session, key=key, seq=AUTO)
                if chance.random() < 0.2:
                    session.flush()
                    session.rollback()
                    continue
                try:
                    session.commit()
                except Exception as exc:
                    deadlocks.append(exc)
                    raise

    with ThreadPoolExecutor(16) as pool:
        list(pool.map(writer, range(16)))
    assert deadlocks == []
    seqs: dict[str, list[int]] = defaultdict(list)
    for key, seq in psycopg.rows(shop.events.table, "key", "seq"):
        seqs[key].append(seq)
    assert set(seqs) == set(keys)
    for numbers in seqs.values():
        assert numbers == list(range(1, len(numbers) + 1))


def test_writers_that_take_their_keys_crosswise_do_not_deadlock(psycopg):
    """Two transactions emit for a and b in opposite order: the second waits, then both commit."""
    shop = make_shop()
    psycopg.create(shop.metadata)

    def writer(keys: str) -> None:
        for _ in range(100):
            with Session(psycopg.engine) as session:
                for key in keys:
                    emit(shop, session, key=key, seq=AUTO)
                session.commit()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(writer, ["ab", "ba", "abc", "cba"]))
    counts = defaultdict(list)
    for key, seq in psycopg.rows(shop.events.table, "key", "seq"):
        counts[key].append(seq)
    assert {key: len(seqs) for key, seqs in counts.items()} == {"a": 400, "b": 400, "c": 200}


def test_the_seq_can_be_the_mapped_version(shop, backend):
    """__seq__ = "version": the number that the flush gave the object."""

    def body(session: Session) -> None:
        document = shop.Versioned(title="a")
        session.add(document)
        created = document.emit("document.created")
        session.commit()
        document.title = "b"
        changed = document.emit("document.changed")
        session.commit()
        assert (created.seq, changed.seq) == (1, 2)

    backend.run(body)
    assert backend.rows(shop.events.table, "topic", "seq") == [("documents", 1), ("documents", 2)]


def test_each_flush_gives_its_own_version(shop, backend):
    """Two changes, two flushes, one transaction: each event has the version of its flush."""

    def body(session: Session) -> None:
        document = shop.Versioned(title="a")
        session.add(document)
        created = document.emit("created")
        session.flush()
        document.title = "b"
        changed = document.emit("changed")
        session.flush()
        session.expire_all()
        session.commit()
        assert (created.seq, changed.seq) == (1, 2)

    backend.run(body)


def test_auto_after_a_number_by_hand_says_so(shop, backend):
    """Mixing them on one key is an error that names the event, also with on_duplicate="skip"."""

    def body(session: Session) -> None:
        emit(shop, session, "by hand", seq=1)
        session.commit()
        culprit = emit(shop, session, "auto", seq=AUTO, on_duplicate="skip")
        with pytest.raises(DuplicateSeq, match="by hand") as caught:
            session.commit()
        assert caught.value.event_id == culprit.id

    backend.run(body)


def test_two_outboxes_do_not_deadlock(psycopg):
    """Crosswise emits into two outboxes queue: their tables' names decide who comes first."""
    one, two = make_shop(), Outbox(name="two", prefix="two_")
    psycopg.create(one.metadata)
    psycopg.create(two.metadata)

    def writer(crosswise: bool) -> None:
        for _ in range(60):
            with Session(psycopg.engine) as session:
                outboxes = [one.events, two]
                for outbox in reversed(outboxes) if crosswise else outboxes:
                    outbox.emit(session, "e", topic="t", key="k", data=None, seq=AUTO)
                session.commit()

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(writer, [True, False] * 2))
    for table in (one.events.table, two.table):
        assert [row[0] for row in psycopg.rows(table, "seq")] == list(range(1, 241))


def test_one_event_per_version(shop, backend):
    """A second event of the same version, and one without a change, are clear errors."""

    def body(session: Session) -> None:
        document = shop.Versioned(title="a")
        session.add(document)
        document.emit("created")
        document.emit("created.too")
        with pytest.raises(DuplicateSeq, match=r"created\.too"):
            session.commit()
        session.rollback()
        document = shop.Versioned(title="b")
        session.add(document)
        document.emit("created")
        session.commit()
        document.emit("unchanged")
        with pytest.raises((DuplicateSeq, VersionSeqError), match="seq"):
            session.commit()

    backend.run(body, expire_on_commit=False)
    assert backend.rows(shop.events.table, "type") == [("created",)]


def test_no_versioned_event_on_delete(shop, backend):
    """Deleting does not raise the version, and the error says so."""

    def body(session: Session) -> None:
        document = shop.Versioned(title="a")
        session.add(document)
        session.commit()
        document.emit("document.deleted")
        session.delete(document)
        with pytest.raises(VersionSeqError, match="deleted"):
            session.commit()

    backend.run(body)


def test_a_class_without_a_version_column_says_so_at_the_call(shop, backend):
    """Asking for the version of an unversioned class fails when the event is emitted."""

    def body(session: Session) -> None:
        ticket = shop.Ticket()
        session.add(ticket)
        with pytest.raises(VersionSeqError, match="no version_id_col"):
            ticket.emit("x", seq="version")
        session.commit()

    backend.run(body)
