"""The public API keeps its types, as mypy sees it."""

from __future__ import annotations

from pathlib import Path

from mypy import api

PROGRAM = """
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session
from inbox import IdempotencyStore, SqlAlchemyIdempotency, command_guard

def sync(session: Session) -> None:
    records = SqlAlchemyIdempotency(session)
    reveal_type(records.get_response("k"))
    reveal_type(records.cleanup_expired())

async def later(session: AsyncSession) -> IdempotencyStore:
    records = SqlAlchemyIdempotency(session, "tenant", 60)
    reveal_type(await records.get_response("k"))
    reveal_type(await records.lock("k", "CreateOrder", "hash"))
    return records

@command_guard("CreateOrder")
async def create(session: AsyncSession, command: dict[str, int]) -> int:
    return 1

@command_guard("CreateOrder")
class Handler:
    def handle(self, command: dict[str, int]) -> int:
        return 1

reveal_type(create)
reveal_type(Handler().handle({}))
SqlAlchemyIdempotency(1)
"""


def test_either_session_has_its_own_types(tmp_path: Path) -> None:
    """Awaited or not, as the session is; guarded handlers keep their signatures."""
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    output, _, _ = api.run(["--strict", "--no-error-summary", str(program)])
    lines = [line.partition(": ")[2] for line in output.splitlines()]
    revealed = [line.partition('"')[2].strip('"') for line in lines if "Revealed type" in line]
    assert revealed == [
        "inbox.commands.ledger.StoredResponse | None",
        "int",
        "inbox.commands.ledger.StoredResponse | None",
        "inbox.commands.ledger.Locked",
        "def (session: sqlalchemy.ext.asyncio.session.AsyncSession, command: dict[str, int])"
        " -> typing.Coroutine[Any, Any, int]",
        "int",
    ]
    errors = [line for line in lines if line.startswith("error")]
    assert len(errors) == 1, output
