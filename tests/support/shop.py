"""A small business model for the tests, made anew on a MetaData of its own each time."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from sqlalchemy import ForeignKey, MetaData
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from outbox import AUTO, Emits, Outbox


def make_shop(metadata: MetaData | None = None, **options: Any) -> SimpleNamespace:
    class Base(DeclarativeBase):
        pass

    if metadata is not None:
        Base.metadata = metadata

    events = Outbox(Base.metadata, **{"name": "shop", **options})

    class Order(Base):
        __tablename__ = "orders"
        id: Mapped[int] = mapped_column(primary_key=True)
        total: Mapped[int] = mapped_column(default=0)

    class Line(Base):
        __tablename__ = "lines"
        order_id: Mapped[int] = mapped_column(primary_key=True)
        sku: Mapped[str] = mapped_column(primary_key=True)

    class Account(Base):
        """Counts its changes; the count is the order in which its lock was held."""

        __tablename__ = "accounts"
        id: Mapped[str] = mapped_column(primary_key=True)
        kind: Mapped[str] = mapped_column(default="account")
        changes: Mapped[int] = mapped_column(default=0)
        __mapper_args__ = {  # noqa: RUF012
            "polymorphic_on": "kind",
            "polymorphic_identity": "account",
        }

    class Savings(Account):
        __tablename__ = "savings"
        id: Mapped[str] = mapped_column(ForeignKey("accounts.id"), primary_key=True)
        rate: Mapped[int] = mapped_column(default=0)
        __mapper_args__ = {"polymorphic_identity": "savings"}  # noqa: RUF012

    class Ticket(Emits, Base):
        __tablename__ = "tickets"
        __topic__ = "support"
        id: Mapped[int] = mapped_column(primary_key=True)
        state: Mapped[str] = mapped_column(default="open")

        def close(self) -> Any:
            self.state = "closed"
            return self.emit("ticket.closed", {"state": self.state})

    class Versioned(Emits, Base):
        __tablename__ = "documents"
        __seq__ = "version"
        id: Mapped[int] = mapped_column(primary_key=True)
        title: Mapped[str] = mapped_column(default="")
        version: Mapped[int] = mapped_column()
        __mapper_args__ = {"version_id_col": version}  # noqa: RUF012

    class Counted(Emits, Base):
        __tablename__ = "counted"
        __seq__ = AUTO
        id: Mapped[int] = mapped_column(primary_key=True)

    return SimpleNamespace(
        Base=Base,
        metadata=Base.metadata,
        events=events,
        Order=Order,
        Line=Line,
        Account=Account,
        Savings=Savings,
        Ticket=Ticket,
        Versioned=Versioned,
        Counted=Counted,
    )
