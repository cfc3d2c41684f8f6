"""Events from domain methods, on SQLite, with a recorder that shows what was committed.

python examples/02_domain_events.py
"""

from sqlalchemy import create_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

from outbox import AUTO, Emits, Outbox
from outbox.testing import recording


class Base(DeclarativeBase):
    pass


events = Outbox(Base.metadata, name="bank")


class Account(Emits, Base):
    __tablename__ = "accounts"
    __seq__ = AUTO
    id: Mapped[int] = mapped_column(primary_key=True)
    balance: Mapped[int] = mapped_column(default=0)

    def deposit(self, amount: int) -> None:
        self.balance = (self.balance or 0) + amount
        self.emit("account.deposited", {"amount": amount, "balance": self.balance})


engine = create_engine("sqlite://")
Base.metadata.create_all(engine)

with recording(events) as recorder, Session(engine) as session:
    account = Account()
    account.deposit(100)  # not in a session yet: the account keeps the event
    session.add(account)
    account.deposit(20)
    session.commit()

for event in recorder.committed:
    print(event, event.data)
