"""`command_guard`: one effect and one answer around a handler, sync and async."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pytest
from prometheus_client import CollectorRegistry
from sqlalchemy import select, text, update
from sqlalchemy.ext.asyncio import AsyncSession
from sqlalchemy.orm import Session

from inbox import (
    CommitRefused,
    IdempotencyConflictError,
    IdempotencyRecord,
    InProgressError,
    InvalidKey,
    InvalidSource,
    NotLocked,
    SqlAlchemyIdempotency,
    command_guard,
)
from inbox.metrics import Metrics
from outbox.errors import NotEncodable
from support.desk import Desk, Order, done

DEADLINE = 15


@dataclass
class CreateOrder:
    total: int
    idempotency_key: str | None = "k"


@dataclass
class Placed:
    id: int
    total: int


class Broken(Exception):
    pass


Effect = Callable[[Any, CreateOrder], Any]


def place(session: Any, command: CreateOrder) -> Order:
    order = Order(total=command.total)
    session.add(order)
    return order


def handler(desk: Desk, effect: Effect = place, **options: Any) -> Callable[..., Any]:
    """A guarded function of the desk's kind: `await done(create(session, command))`."""
    guard = command_guard("CreateOrder", **{"dump": lambda order: {"id": order.id}, **options})
    if not desk.is_async:

        @guard
        def create(session: Session, command: CreateOrder) -> Any:
            return effect(session, command)

        return create

    @guard
    async def create_async(session: AsyncSession, command: CreateOrder) -> Any:
        return await done(effect(session, command))

    return create_async


async def call(desk: Desk, create: Callable[..., Any], command: Any = None) -> Any:
    async with desk.open() as session:
        return await done(create(session, command or CreateOrder(42)))


async def test_a_command_has_one_effect_and_one_answer(desk: Desk) -> None:
    """The guard commits both; the answer knows the id that the flush gave."""
    create = handler(desk)
    first = await call(desk, create)
    assert isinstance(first, Order)
    assert await call(desk, create) == {"id": first.id}
    assert await desk.orders() == 1
    assert await desk.records("state", "status_code", "response") == [
        ("COMPLETED", 200, {"id": first.id})
    ]


async def test_many_at_once(desk: Desk) -> None:
    """One effect, one answer for all, and every session usable."""
    create = handler(desk, dump=lambda order: order.id, load=int)

    async def one() -> int:
        async with desk.open() as session:
            answer = await done(create(session, CreateOrder(42)))
            assert (await done(session.execute(text("SELECT 1")))).scalar_one() == 1
            return getattr(answer, "id", answer)

    run = (lambda: one()) if desk.is_async else (lambda: asyncio.to_thread(asyncio.run, one()))
    answers = await asyncio.gather(*[run() for _ in range(12)])
    assert len(set(answers)) == 1
    assert await desk.orders() == 1


@pytest.mark.parametrize("level", ["REPEATABLE READ", "SERIALIZABLE"])
async def test_strict_isolation_is_waited_out(postgres_desk: Desk, level: str) -> None:
    """The guard begins anew until it sees the outcome: a fresh session never gets a refusal."""
    engine: Any = postgres_desk.engine
    desk = Desk(engine.execution_options(isolation_level=level))
    create = handler(desk, dump=lambda order: order.id)
    run = call if desk.is_async else lambda *it: asyncio.to_thread(asyncio.run, call(*it))
    answers = await asyncio.gather(*[run(desk, create) for _ in range(8)])
    assert sum(isinstance(answer, Order) for answer in answers) == 1
    assert await desk.orders() == 1


async def test_a_failure_rolls_back_first(desk: Desk) -> None:
    """Half-done work is gone, FAILED is there, the error is the handler's, and one may retry."""

    async def half(session: Any, command: CreateOrder) -> None:
        place(session, command)
        await done(session.flush())
        raise Broken

    def half_sync(session: Any, command: CreateOrder) -> None:
        place(session, command)
        session.flush()
        raise Broken

    create = handler(desk, half if desk.is_async else half_sync)
    async with desk.open() as session:
        with pytest.raises(Broken):
            await done(create(session, CreateOrder(42)))
        assert not session.in_transaction()
    assert await desk.orders() == 0
    assert await desk.records("state", "operation") == [("FAILED", "CreateOrder")]
    await call(desk, handler(desk))
    assert await desk.orders() == 1
    assert await desk.records() == [("COMPLETED",)]


async def test_a_failure_of_the_commit_is_a_failure(postgres_desk: Desk) -> None:
    """What the database refuses at the end is rolled back and marked too."""
    async with postgres_desk.open() as session:
        await done(
            session.execute(
                text("ALTER TABLE orders ADD UNIQUE (total) DEFERRABLE INITIALLY DEFERRED")
            )
        )
        await done(session.commit())
    create = handler(postgres_desk)
    await call(postgres_desk, create, CreateOrder(1, "a"))
    with pytest.raises(Exception, match="duplicate key"):
        await call(postgres_desk, create, CreateOrder(1, "b"))
    assert await postgres_desk.orders() == 1
    assert await postgres_desk.records() == [("COMPLETED",), ("FAILED",)]


async def test_a_failure_that_cannot_be_marked_keeps_the_error(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    """In a block that ends with the rollback: the handler's error is raised, the log has ours."""

    def broken(session: Any, command: CreateOrder) -> None:
        place(session, command)
        raise Broken

    create = handler(desk, broken)

    async def in_a_block() -> None:
        async with desk.open() as session:
            if desk.is_async:
                async with session.begin():
                    await create(session, CreateOrder(1))
            else:
                with session.begin():
                    create(session, CreateOrder(1))

    with caplog.at_level(logging.WARNING), pytest.raises(Broken):
        await in_a_block()
    assert "CreateOrder failed, and could not be marked so" in caplog.text
    assert await desk.records() == []
    assert await desk.orders() == 0


async def test_a_cancelled_command_leaves_nothing(asyncpg_desk: Desk) -> None:
    """That is no failure of it: it may simply be sent again."""
    started = asyncio.Event()

    async def slow(session: Any, command: CreateOrder) -> None:
        place(session, command)
        await session.flush()
        started.set()
        await asyncio.sleep(DEADLINE)

    running = asyncio.create_task(call(asyncpg_desk, handler(asyncpg_desk, slow)))
    await started.wait()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await asyncpg_desk.records() == []
    await call(asyncpg_desk, handler(asyncpg_desk))
    assert await asyncpg_desk.orders() == 1


@pytest.mark.parametrize("other", [CreateOrder(7), CreateOrder(42)])
async def test_another_request_under_the_same_key(desk: Desk, other: CreateOrder) -> None:
    """Another payload, or another operation, is a conflict, and the session is usable."""
    await call(desk, handler(desk))
    operation = "CreateOrder" if other.total == 7 else "CancelOrder"
    create: Any
    if desk.is_async:

        @command_guard(operation)
        async def create(session: AsyncSession, command: CreateOrder) -> None:
            place(session, command)

    else:

        @command_guard(operation)
        def create(session: Session, command: CreateOrder) -> None:
            place(session, command)

    async with desk.open() as session:
        with pytest.raises(IdempotencyConflictError):
            await done(create(session, other))
        assert not session.in_transaction()
    assert await desk.orders() == 1


async def test_a_handler_must_not_commit(desk: Desk) -> None:
    """It is told, before anything is committed; savepoints of its own are fine."""

    async def commits(session: Any, command: CreateOrder) -> Order:
        async with session.begin_nested():
            order = place(session, command)
        if command.total == 0:
            await session.commit()
        return order

    def commits_sync(session: Any, command: CreateOrder) -> Order:
        with session.begin_nested():
            order = place(session, command)
        if command.total == 0:
            session.commit()
        return order

    for commit in (True, False):
        create = handler(desk, commits if desk.is_async else commits_sync, commit=commit)
        with pytest.raises(CommitRefused, match="take the commit out"):
            await call(desk, create, CreateOrder(0, f"bad {commit}"))
        async with desk.open() as session:
            await done(create(session, CreateOrder(1, f"good {commit}")))
            await done(session.commit())
    assert await desk.orders() == 2


async def test_a_handler_that_rolls_back_loses_its_lock(desk: Desk) -> None:
    """What it did after that would not be guarded: it is taken back too."""

    async def rolls_back(session: Any, command: CreateOrder) -> Order:
        await done(session.rollback())
        return place(session, command)

    def rolls_back_sync(session: Any, command: CreateOrder) -> Order:
        session.rollback()
        return place(session, command)

    with pytest.raises(NotLocked):
        await call(desk, handler(desk, rolls_back if desk.is_async else rolls_back_sync))
    assert await desk.orders() == 0
    assert await desk.records() == [("FAILED",)]


async def test_in_a_transaction_of_yours(desk: Desk) -> None:
    """With commit=False everything is in a savepoint, and you commit."""
    create = handler(desk, commit=False)
    async with desk.open() as session:
        await done(create(session, CreateOrder(1, "a")))
        await done(session.rollback())
        assert await desk.orders() == 0
        assert await desk.records() == []
        session.add(Order(total=5))
        order = await done(create(session, CreateOrder(1, "a")))
        assert await done(create(session, CreateOrder(1, "a"))) == {"id": order.id}
        await done(session.commit())
    assert await desk.orders() == 2


async def test_a_failure_in_a_transaction_of_yours(desk: Desk) -> None:
    """Only the command is taken back; your work is yours to commit."""

    def broken(session: Any, command: CreateOrder) -> None:
        place(session, command)
        raise Broken

    create = handler(desk, broken, commit=False)
    async with desk.open() as session:
        session.add(Order(total=5))
        with pytest.raises(Broken):
            await done(create(session, CreateOrder(1)))
        await done(session.commit())
        assert (await done(session.scalars(select(Order.total)))).all() == [5]
    assert await desk.records() == []


async def test_work_that_was_there_before_is_committed_with_it(desk: Desk) -> None:
    """The guard commits the session, and a replay leaves an open transaction alone."""
    create = handler(desk)
    async with desk.open() as session:
        session.add(Order(total=5))
        await done(create(session, CreateOrder(1)))
        assert await desk.orders() == 2
        session.add(Order(total=6))
        await done(create(session, CreateOrder(1)))
        assert session.in_transaction()
        await done(session.commit())
    assert await desk.orders() == 3


async def test_without_a_key_it_is_simply_handled(desk: Desk) -> None:
    """Committed or rolled back as ever, and not remembered."""
    create = handler(desk)
    for _ in range(2):
        await call(desk, create, CreateOrder(1, None))

    def broken(session: Any, command: CreateOrder) -> None:
        place(session, command)
        raise Broken

    with pytest.raises(Broken):
        await call(desk, handler(desk, broken), CreateOrder(1, None))
    assert await desk.orders() == 2
    assert await desk.records() == []


async def test_without_patience(desk: Desk) -> None:
    """wait_timeout=0: refused while another transaction works on it, and the session is usable."""
    create = handler(desk, wait_timeout=0)
    async with desk.open() as holder:
        await done(SqlAlchemyIdempotency(holder).lock("k", "CreateOrder", None))
        async with desk.open() as session:
            with pytest.raises(InProgressError):
                await done(create(session, CreateOrder(42)))
            assert not session.in_transaction()
    await call(desk, create)
    assert await desk.orders() == 1


async def test_tenants(desk: Desk) -> None:
    """By name, or as the command tells."""
    create = handler(desk, tenant=lambda command: f"tenant-{command.total}")
    await call(desk, create, CreateOrder(1))
    await call(desk, create, CreateOrder(2))
    await call(desk, handler(desk, tenant="mine"), CreateOrder(3))
    assert await desk.records("tenant_id") == [("mine",), ("tenant-1",), ("tenant-2",)]


async def test_metrics(desk: Desk) -> None:
    """Each command counts by what came of it, and running it takes time."""
    registry = CollectorRegistry()
    metrics = Metrics(registry)

    def count(outcome: str) -> float:
        labels = {"door": "command", "name": "CreateOrder", "outcome": outcome}
        return registry.get_sample_value("inbox_outcomes_total", labels) or 0

    def broken(session: Any, command: CreateOrder) -> None:
        raise Broken

    create = handler(desk, metrics=metrics, wait_timeout=0.05)
    await call(desk, create)
    await call(desk, create)
    with pytest.raises(IdempotencyConflictError):
        await call(desk, create, CreateOrder(7))
    with pytest.raises(Broken):
        await call(desk, handler(desk, broken, metrics=metrics), CreateOrder(1, "broken"))
    async with desk.open() as holder:
        await done(SqlAlchemyIdempotency(holder).lock("busy", "CreateOrder", None))
        with pytest.raises(InProgressError):
            await call(desk, create, CreateOrder(1, "busy"))
    async with desk.open() as session:
        await done(SqlAlchemyIdempotency(session, ttl=0.001).lock("dead", "CreateOrder", None))
        await done(session.commit())
    await call(desk, handler(desk, metrics=metrics), CreateOrder(1, "dead"))
    outcomes = ("miss", "hit", "conflict", "failed", "wait", "busy", "takeover")
    assert [count(outcome) for outcome in outcomes] == [2, 1, 1, 1, 1, 1, 1]
    seconds = {"door": "command", "name": "CreateOrder"}
    assert registry.get_sample_value("inbox_processing_seconds_count", seconds) == 3


class Handler:
    def __init__(self, session: Any) -> None:
        self.session = session


async def test_a_handler_class(asyncpg_desk: Desk) -> None:
    """The session is the handler's; the class is the same one, with its method guarded."""

    class CreateOrderHandler(Handler):
        async def execute(self, command: CreateOrder) -> Placed:
            return await self.handle(command)

        async def handle(self, command: CreateOrder) -> Placed:
            order = place(self.session, command)
            await self.session.flush()
            return Placed(order.id, order.total)

    assert command_guard("CreateOrder")(CreateOrderHandler) is CreateOrderHandler
    for _ in range(2):
        async with asyncpg_desk.open() as session:
            handler = CreateOrderHandler(session)
            assert await handler.execute(CreateOrder(42)) == Placed(1, 42)
    assert await asyncpg_desk.orders() == 1


@pytest.mark.parametrize("name", ["handle", "execute", "__call__"])
@pytest.mark.parametrize("inherited", [False, True])
async def test_which_method_is_guarded(desk: Desk, name: str, inherited: bool) -> None:
    """handle, else execute, else __call__; also one of a base class, which stays as it was."""

    def method(self: Any, command: CreateOrder) -> None:
        place(self.session, command)

    async def method_async(self: Any, command: CreateOrder) -> None:
        place(self.session, command)

    base: Any = type("Base", (Handler,), {name: method_async if desk.is_async else method})
    guarded: Any = type("Guarded", (base,), {}) if inherited else base
    command_guard("CreateOrder")(guarded)
    for _ in range(2):
        async with desk.open() as session:
            await done(getattr(guarded(session), name)(CreateOrder(42)))
    assert await desk.orders() == 1
    assert await desk.records() == [("COMPLETED",)]
    assert (getattr(base, name) is getattr(guarded, name)) is not inherited


def test_a_class_without_such_a_method() -> None:
    """Is refused where it is decorated."""
    with pytest.raises(TypeError, match="handle, execute, __call__"):

        @command_guard("CreateOrder")
        class Nothing:
            pass


async def test_where_the_key_is_found(desk: Desk) -> None:
    """key=, the argument idempotency_key, the command's attribute, or its item."""
    key_of = handler(desk, key=lambda command: f"order-{command.total}")
    await call(desk, key_of, CreateOrder(1))
    await call(
        desk,
        handler(desk, lambda s, c: place(s, CreateOrder(**c))),
        {"total": 2, "idempotency_key": "item"},
    )
    create: Any
    if desk.is_async:

        @command_guard("CreateOrder")
        async def create(
            session: Any, idempotency_key: str | None, command: dict[str, int]
        ) -> None:
            place(session, CreateOrder(**command))

    else:

        @command_guard("CreateOrder")
        def create(session: Any, idempotency_key: str | None, command: dict[str, int]) -> None:
            place(session, CreateOrder(**command))

    for _ in range(2):
        async with desk.open() as session:
            await done(create(session, command={"total": 3}, idempotency_key="argument"))
    assert await desk.records("idempotency_key") == [("argument",), ("item",), ("order-1",)]
    assert await desk.orders() == 3


async def test_where_the_session_is_found(desk: Desk) -> None:
    """session=, an argument of any name that is one, or the handler's attribute."""
    create: Any
    if desk.is_async:

        @command_guard("CreateOrder")
        async def create(command: CreateOrder, database: Any) -> None:
            place(database, command)

        @command_guard("CreateOrder", session=lambda command, unit: unit["session"])
        async def create_in(command: CreateOrder, unit: dict[str, Any]) -> None:
            place(unit["session"], command)

    else:

        @command_guard("CreateOrder")
        def create(command: CreateOrder, database: Any) -> None:
            place(database, command)

        @command_guard("CreateOrder", session=lambda command, unit: unit["session"])
        def create_in(command: CreateOrder, unit: dict[str, Any]) -> None:
            place(unit["session"], command)

    async with desk.open() as session:
        await done(create(CreateOrder(1, "a"), session))
        await done(create(CreateOrder(1, "a"), database=session))
        await done(create_in(CreateOrder(1, "b"), {"session": session}))
    assert await desk.orders() == 2


async def test_calls_that_cannot_be_guarded(desk: Desk) -> None:
    """No key to be found, no session, one of the wrong kind, what cannot be hashed: before all."""
    create = handler(desk)
    async with desk.open() as session:
        with pytest.raises(InvalidKey, match="say where it is with key="):
            await done(create(session, {"total": 1}))
        with pytest.raises(InvalidSource, match="has no session"):
            await done(create(None, CreateOrder(1)))
        wrong = Session() if desk.is_async else AsyncSession()
        with pytest.raises(InvalidSource, match="an async handler needs an AsyncSession"):
            await done(create(wrong, CreateOrder(1)))
        with pytest.raises(NotEncodable):
            await done(create(session, CreateOrder(object())))  # type: ignore[arg-type]
        with pytest.raises(InvalidKey, match="1 to 64 characters"):
            await done(create(session, CreateOrder(1, "x" * 65)))
    with pytest.raises(InvalidKey, match="operation"):
        command_guard("")
    assert await desk.orders() == 0


async def test_an_answer_that_cannot_be_saved_is_a_failure(desk: Desk) -> None:
    """Before the commit: there is no effect whose answer nobody could give again."""
    with pytest.raises(NotEncodable):
        await call(desk, handler(desk, dump=None))
    assert await desk.orders() == 0


class Told:
    def to_dict(self) -> dict[str, int]:
        return {"told": 1}


@pytest.mark.parametrize(
    ("annotation", "result", "replayed"),
    [
        (Placed, Placed(1, 2), Placed(1, 2)),
        (list[Placed], [Placed(1, 2)], [Placed(1, 2)]),
        (None, None, None),
        (Any, Placed(1, 2), {"id": 1, "total": 2}),
        ("Nowhere", Placed(1, 2), {"id": 1, "total": 2}),
        (Told, Told(), {"told": 1}),
    ],
)
async def test_what_a_replay_returns(
    asyncpg_desk: Desk, annotation: Any, result: Any, replayed: Any
) -> None:
    """The type that the handler says it returns; of a to_dict() the dict."""

    async def create(session: AsyncSession, command: CreateOrder) -> Any:
        return result

    create.__annotations__["return"] = annotation
    guarded = command_guard("CreateOrder")(create)
    assert await call(asyncpg_desk, guarded) is result
    assert await call(asyncpg_desk, guarded) == replayed


async def test_a_replay_does_not_depend_on_the_first_call(desk: Desk) -> None:
    """Status and expiry are those that were saved; a record of yesterday is as good as none."""
    create = handler(desk, status_code=201, ttl=3600)
    await call(desk, create)
    assert await desk.records("status_code") == [(201,)]
    async with desk.open() as session:
        past = datetime(2020, 1, 1, tzinfo=UTC)
        await done(session.execute(update(IdempotencyRecord).values(expires_at=past)))
        await done(session.commit())
    await call(desk, create)
    assert await desk.orders() == 2
