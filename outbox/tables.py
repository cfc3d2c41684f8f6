"""The tables of an outbox, on any MetaData: what `create_all`, Alembic and the relay agree on."""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Boolean,
    CheckConstraint,
    Column,
    DateTime,
    Identity,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    SmallInteger,
    Table,
    Text,
    Uuid,
    func,
    text,
)
from sqlalchemy.schema import conv

from outbox import types

MARK = "oncebox"
"""The key in `Table.info` by which the Alembic plugin knows our tables."""


class Tables:
    """The tables of one outbox.

    log         the events, append-only; the relay reads it and never writes to it
    delayed     events with a `deliver_at`, until they are due
    seq         the last number given out per topic and key (`AUTO`)
    meta        one row: the outbox's name and its number of lanes
    checkpoint  how far each lane is published, and acknowledged by each group
    groups      the consumer groups that are known, whatever Redis remembers
    rejected    rows that could not be published for their own sake, with the cause
    paused      topics that are held back by hand
    """

    def __init__(self, metadata: MetaData, *, lanes: int, schema: str | None, prefix: str) -> None:
        types.register()
        self.metadata = metadata
        self.prefix = prefix
        self.schema = schema
        self.log = self._log(f"{prefix}outbox", lanes)
        self.delayed = self._delayed(f"{prefix}outbox_delayed")
        self.seq = self._table(
            f"{prefix}outbox_seq",
            Column("topic", Text, nullable=False),
            Column("key", Text, nullable=False),
            Column("seq", BigInteger, nullable=False),
            PrimaryKeyConstraint("topic", "key", name=conv(f"{prefix}outbox_seq_pkey")),
        )
        self.meta = self._table(
            f"{prefix}outbox_meta",
            # Always 1: two writers that find the table empty must not both write their own.
            Column(
                "singleton",
                SmallInteger,
                nullable=False,
                server_default=text("1"),
                autoincrement=False,
            ),
            Column("name", Text, nullable=False),
            Column("lanes", SmallInteger, nullable=False),
            CheckConstraint("singleton = 1", name=conv(f"{prefix}outbox_meta_singleton_check")),
            PrimaryKeyConstraint("singleton", name=conv(f"{prefix}outbox_meta_pkey")),
        )

        self.checkpoint = self._table(
            f"{prefix}outbox_checkpoint",
            Column("lane", SmallInteger, nullable=False),
            # The group that has acknowledged everything up to here; empty for what is published.
            Column("consumer", Text, nullable=False),
            Column("position", Text, nullable=False),
            _now("updated_at"),
            # The highest id that was deleted; kept in the row of what is published.
            Column("pruned_to", BigInteger, nullable=True),
            PrimaryKeyConstraint("lane", "consumer", name=conv(f"{prefix}outbox_checkpoint_pkey")),
        )
        self.groups = self._table(
            f"{prefix}outbox_groups",
            Column("topic", Text, nullable=False),
            Column("name", Text, nullable=False),
            _now("created_at"),
            PrimaryKeyConstraint("topic", "name", name=conv(f"{prefix}outbox_groups_pkey")),
        )
        self.rejected = self._table(
            f"{prefix}outbox_rejected",
            Column("row_id", BigInteger, autoincrement=False, nullable=False),
            Column("lane", SmallInteger, nullable=False),
            *_event_columns(Column("seq", BigInteger, nullable=True)),
            Column("cause", Text, nullable=False),
            _now("rejected_at"),
            # Ids of commits that a promotion lost are given out again; event ids are not.
            PrimaryKeyConstraint("row_id", "event_id", name=conv(f"{prefix}outbox_rejected_pkey")),
        )
        self.paused = self._table(
            f"{prefix}outbox_paused",
            Column("topic", Text, nullable=False),
            _now("paused_at"),
            PrimaryKeyConstraint("topic", name=conv(f"{prefix}outbox_paused_pkey")),
        )

    def all(self) -> tuple[Table, ...]:
        first = (self.log, self.delayed, self.seq, self.meta)
        return (*first, self.checkpoint, self.groups, self.rejected, self.paused)

    def _table(self, name: str, *items: Any, **options: Any) -> Table:
        # conv() keeps a naming convention of the user's MetaData from renaming what we name.
        return Table(name, self.metadata, *items, schema=self.schema, info={MARK: True}, **options)

    def _log(self, name: str, lanes: int) -> Table:
        table = self._table(
            name,
            # Declared before `id`, and so drawn before it: a row with an id below the relay's head
            # must have had its xid when the relay took its snapshot.
            Column(
                "xid",
                types.XID8().with_variant(BigInteger(), "sqlite"),
                nullable=False,
                server_default=types.current_xid(),
            ),
            # ALWAYS: with BY DEFAULT, a VALUES list of DEFAULTs draws the id first.
            # cache=1: with a larger cache, each connection hands out ids from a block of its own.
            Column(
                "id",
                BigInteger().with_variant(types.RowId(), "sqlite"),
                Identity(always=True, cache=1),
                nullable=False,
            ),
            Column("lane", SmallInteger, nullable=False),
            *_event_columns(Column("seq", BigInteger, nullable=True)),
            CheckConstraint(f"lane >= 0 AND lane < {lanes}", name=conv(f"{name}_lane_check")),
            # On SQLite the primary key is `id` alone, and comes with its type.
            PrimaryKeyConstraint("lane", "id", name=conv(f"{name}_pkey")).ddl_if(
                dialect="postgresql"
            ),
        )
        Index(conv(f"{name}_xid_idx"), table.c.xid, table.c.id)
        versioned = text("seq IS NOT NULL")
        Index(
            conv(f"{name}_seq_idx"),
            table.c.topic,
            table.c.key,
            table.c.seq,
            unique=True,
            postgresql_where=versioned,
            sqlite_where=versioned,
        )
        return table

    def _delayed(self, name: str) -> Table:
        table = self._table(
            name,
            Column(
                "id",
                BigInteger().with_variant(Integer(), "sqlite"),
                Identity(always=True),
                nullable=False,
            ),
            Column("deliver_at", DateTime(timezone=True), nullable=False),
            Column("lane", SmallInteger, nullable=False),
            # auto: take the key's next seq when the event is moved into the log
            *_event_columns(Column("auto", Boolean, nullable=False)),
            PrimaryKeyConstraint("id", name=conv(f"{name}_pkey")),
            sqlite_autoincrement=True,
        )
        Index(conv(f"{name}_deliver_at_idx"), table.c.deliver_at, table.c.id)
        return table


def _event_columns(numbered_by: Column[Any]) -> tuple[Column[Any], ...]:
    return (
        Column("event_id", Uuid, nullable=False),
        Column("topic", Text, nullable=False),
        Column("type", Text, nullable=False),
        Column("key", Text, nullable=False),
        numbered_by,
        Column("data", LargeBinary, nullable=False),
        Column("content_type", Text, nullable=False),
        Column("traceparent", Text, nullable=True),
        Column("tracestate", Text, nullable=True),
        Column("tenant", Text, nullable=True),
        Column("headers", Text, nullable=True),
        _now("created_at"),
    )


def _now(name: str) -> Column[Any]:
    return Column(name, DateTime(timezone=True), nullable=False, server_default=func.now())
