"""Orders and their events in one transaction; a rollback leaves neither.

python examples/01_transaction.py
"""

import asyncio

from sqlalchemy import select
from sqlalchemy.ext.asyncio import async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

from outbox import AUTO, Outbox
from projector.embedded import servers


class Base(DeclarativeBase):
    pass


class Order(Base):
    __tablename__ = "orders"
    id: Mapped[int] = mapped_column(primary_key=True)
    total: Mapped[int]


events = Outbox(Base.metadata, name="shop")


async def place(sessions: async_sessionmaker, total: int) -> None:
    async with sessions() as session, session.begin():
        order = Order(total=total)
        session.add(order)
        events.emit(
            session, "order.placed", topic="orders", key=order, data={"total": total}, seq=AUTO
        )
        if total > 100:
            raise ValueError("more than the customer may spend")


async def main() -> None:
    async with servers() as real:
        engine = create_async_engine(real.database_url)
        async with engine.begin() as connection:
            await connection.run_sync(Base.metadata.create_all)
        sessions = async_sessionmaker(engine)
        for total in (42, 420, 7):
            try:
                await place(sessions, total)
                print(f"order over {total}: committed")
            except ValueError as problem:
                print(f"order over {total}: rolled back, {problem}")
        log = events.table.c
        async with engine.connect() as connection:
            for row in await connection.execute(
                select(log.id, log.type, log.key, log.seq, log.data)
            ):
                print(row)
        await engine.dispose()


asyncio.run(main())
