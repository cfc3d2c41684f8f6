"""The tables of the benchmarks: a business row, a plain row as wide as an event, both outboxes."""

from __future__ import annotations

from datetime import UTC, datetime
from decimal import Decimal
from uuid import UUID, uuid4

from faststream_outbox import make_outbox_table
from sqlalchemy import BigInteger, DateTime, Identity, Index, SmallInteger, Text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from outbox import Outbox, codec

SCHEMA = "oncebox_benchmark"
"""Made anew by each run, and dropped after it."""

DATA = {
    "order": 7_340_033,
    "customer": "8f14e45f-ceea-467f-a8d5-2b0e3f9d6c11",
    "currency": "EUR",
    "total": "149.90",
    "lines": [{"sku": "A-1001", "count": 2}, {"sku": "B-2002", "count": 1}],
    "placed_at": "2025-01-31T12:34:56Z",
}
PAYLOAD = codec.encode(DATA)[0]


class Base(DeclarativeBase):
    """What the application maps."""


class Order(Base):
    """The business row."""

    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(BigInteger, Identity(), primary_key=True)
    customer: Mapped[str] = mapped_column(Text)
    total: Mapped[Decimal]
    placed_at: Mapped[datetime] = mapped_column(DateTime(timezone=True))


class PlainRow(Base):
    """The columns of an event, without its guarantees: one index, no check, no server default.

    The log's xid8 is a bigint here, which is as wide, since no application has an xid of its own.
    """

    __tablename__ = "plain_row"
    xid: Mapped[int] = mapped_column(BigInteger)
    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    lane: Mapped[int] = mapped_column(SmallInteger)
    event_id: Mapped[UUID] = mapped_column(default=uuid4)
    topic: Mapped[str] = mapped_column(Text)
    type: Mapped[str] = mapped_column(Text)
    key: Mapped[str] = mapped_column(Text)
    seq: Mapped[int | None] = mapped_column(BigInteger)
    data: Mapped[bytes]
    content_type: Mapped[str] = mapped_column(Text)
    traceparent: Mapped[str | None] = mapped_column(Text)
    tracestate: Mapped[str | None] = mapped_column(Text)
    tenant: Mapped[str | None] = mapped_column(Text)
    headers: Mapped[str | None] = mapped_column(Text)
    created_at: Mapped[datetime] = mapped_column(DateTime(timezone=True))
    __table_args__ = (Index("plain_row_xid_idx", "xid", "id"),)


PEER = make_outbox_table(Base.metadata, "peer_outbox")


def make_outbox() -> Outbox:
    """A function, because it makes every session of the process listen."""
    return Outbox(Base.metadata, name="benchmark")


def order() -> Order:
    return Order(customer=DATA["customer"], total=Decimal("149.90"), placed_at=datetime.now(UTC))


def plain_row(key: str) -> PlainRow:
    """Its data is encoded already, unlike that of an event: the event is not favoured."""
    return PlainRow(
        xid=1,
        lane=1,
        topic="orders",
        type="order.placed",
        key=key,
        data=PAYLOAD,
        content_type=codec.JSON,
        created_at=datetime.now(UTC),
    )
