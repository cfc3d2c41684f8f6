"""The public API keeps its types, as mypy sees it."""

from __future__ import annotations

from pathlib import Path

from mypy import api

PROGRAM = """
from dataclasses import dataclass
from sqlalchemy.ext.asyncio import AsyncSession, async_scoped_session
from sqlalchemy.orm import Session, scoped_session
from outbox import AUTO, Emits, Event, Outbox

@dataclass
class Placed:
    total: int

events = Outbox(name="shop")

def write(session: Session, later: AsyncSession, scoped: scoped_session[Session],
          both: async_scoped_session[AsyncSession]) -> None:
    placed = events.emit(session, "placed", topic="t", key=1, data=Placed(1), seq=AUTO)
    reveal_type(placed)
    reveal_type(placed.data.total)
    reveal_type(placed.seq)
    reveal_type(placed.decode(Placed))
    for other in (later, scoped, both):
        events.emit(other, placed)
    reveal_type(events.emit(later, Event("x", topic="t", key="k", data=b"")))
    events.emit(session, "placed", topic="t", key=1)
    events.emit(1, placed)
"""


def test_emit_keeps_the_type_of_the_data(tmp_path: Path):
    """Any kind of session is accepted, what is no session is not, and data stays what it was."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    output, _, _ = api.run(["--strict", "--no-error-summary", str(program)])
    lines = [line.partition(": ")[2] for line in output.splitlines()]
    revealed = [line.partition('"')[2].strip('"') for line in lines if "Revealed type" in line]
    assert revealed == [
        "outbox.event.Event[program.Placed]",
        "int",
        "int | None",
        "program.Placed",
        "outbox.event.Event[bytes]",
    ]
    errors = [line for line in lines if line.startswith("error")]
    assert len(errors) == 2, output
    assert all("No overload variant" in error for error in errors)


GUARDED = """
from inbox import MemoryStore, ReplayedFailure, idempotent

@idempotent
def bare(x: int, y: str = "") -> list[int]: return [x]

@idempotent(ttl=5, store=MemoryStore(), on_duplicate="wait", key=lambda x: str(x))
async def later(x: int) -> list[int]: return [x]

class Shop:
    @idempotent
    def sell(self, x: int) -> str: return ""

    @idempotent(ttl=5)
    async def order(self, x: int) -> str: return ""

    @idempotent
    @classmethod
    def made(cls, x: int) -> str: return ""

    @idempotent(ttl=5)
    @staticmethod
    async def static(x: int) -> str: return ""

@idempotent(operation="CreateOrder")
class Handler:
    pass

async def calls(shop: Shop) -> None:
    reveal_type(bare(1, y="a"))
    reveal_type(bare.forget(1))
    reveal_type(await later(1))
    reveal_type(await later.inspect(1))
    reveal_type(shop.sell(1))
    reveal_type(await shop.order(x=1))
    reveal_type(Shop.sell(shop, 1))
    reveal_type(shop.made(1))
    reveal_type(await Shop.static(1))
    reveal_type(Handler)
    bare("1")
    bare.inspect(2, 3)
    await later(1, 2)
    shop.sell("1")
    shop.sell.forget()
    shop.made("1")

idempotent(on_duplicate="ignore")
"""


def test_a_guarded_function_keeps_its_signature(tmp_path: Path):
    """Sync or async, function or method; inspect and forget take the arguments of the call."""
    program = tmp_path / "program.py"
    program.write_text(GUARDED)
    output, _, _ = api.run(["--strict", "--no-error-summary", str(program)])
    lines = [line.partition(": ")[2] for line in output.splitlines()]
    revealed = [line.partition('"')[2].strip('"') for line in lines if "Revealed type" in line]
    assert revealed == [
        "list[int]",
        "bool",
        "list[int]",
        "inbox.guard.outcome.CallRecord | None",
        "str",
        "str",
        "str",
        "str",
        "str",
        "def () -> program.Handler",
    ]
    errors = [line for line in lines if line.startswith("error")]
    assert len(errors) == 7, output
