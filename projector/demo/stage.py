"""Puts the demo on: real servers, two projectors, three consumers; one of each is killed."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from projector import migration
from projector.connect import redis_of
from projector.demo.audit import Audit, audit
from projector.demo.shop import Base, Bill, Shop, events
from projector.embedded import servers
from projector.embedded.servers import Servers

WRITERS = 4
ORDERS_EACH = 60
PATIENCE = 50.0
LEASE = "1"
SAYS = """\
{writers} writers place orders, one transaction each, and every fourth or so rolls back.
2 projectors relay the events, 3 consumers bill them; one of each is killed on the way.
"""


async def main() -> int:
    """Run it. The exit code: 0 if every committed order was billed once, in order, and no other."""
    print("starting PostgreSQL and Valkey …", flush=True)
    async with servers() as real:
        migration.upgrade(real.database_url, events)
        engine = create_async_engine(real.database_url)
        async with engine.begin() as connection:
            await connection.run_sync(Base.metadata.create_all)
        try:
            with ExitStack() as stack:
                return await Stage(engine, real, stack).play()
        finally:
            await engine.dispose()


@dataclass(slots=True)
class Stage:
    engine: AsyncEngine
    real: Servers
    stack: ExitStack
    _told: float = 0.0

    async def play(self) -> int:
        print(SAYS.format(writers=WRITERS))
        projectors = [self._projector() for _ in range(2)]
        consumers = [self._consumer() for _ in range(3)]
        shop = Shop(self.engine)
        writing = asyncio.gather(*(shop.write(ORDERS_EACH, seed) for seed in range(WRITERS)))
        await self._until(shop, lambda bills: bills > 20)
        self._kill("a projector", projectors[0])
        await self._until(shop, lambda bills: bills > 60)
        self._kill("a consumer", consumers[0])
        await self._until(shop, lambda _: writing.done())
        await writing
        await self._parked(shop)
        await shop.repair()
        self._say("the order is repaired: " + self._command("dead", "retry", "--all"))
        await self._until(shop, lambda bills: bills >= shop.committed)
        self._say("everything is billed")
        redis = redis_of(self.real.redis_url)
        try:
            found = await audit(self.engine, redis)
        finally:
            await redis.aclose()
        return self._report(shop, found)

    def _report(self, shop: Shop, found: Audit) -> int:
        print(f"\n{found}")
        return 0 if found.good and found.committed == shop.committed and shop.rolled_back else 1

    async def _parked(self, shop: Shop) -> None:
        """Until one customer's order is a dead letter and all the others' are billed."""
        before = -1
        deadline = time.monotonic() + PATIENCE
        while time.monotonic() < deadline:
            bills = await self._bills()
            letters = self._command(
                "dead", "list", "--json", "--waiting", "--limit", "10000"
            ).splitlines()
            if letters and bills + len(letters) >= shop.committed and bills == before:
                self._say(f"one order cannot be billed: it and {len(letters) - 1} behind it wait")
                return
            before = bills
            await asyncio.sleep(0.3)
        raise TimeoutError("no order was parked")

    async def _until(self, shop: Shop, holds: Callable[[int], bool]) -> None:
        deadline = time.monotonic() + PATIENCE
        while not holds(bills := await self._bills()):
            if time.monotonic() > deadline:
                raise TimeoutError(f"stuck at {bills} bills of {shop.committed} orders")
            self._progress(f"{shop.committed} orders committed, {shop.rolled_back} rolled back, ")
            self._progress(f"{bills} billed", end=True)
            await asyncio.sleep(0.05)

    def _progress(self, words: str, end: bool = False) -> None:
        """One line that is written over; a plain file gets none of it."""
        if sys.stdout.isatty():
            print(words, end="\r" if end else "", flush=end)

    async def _bills(self) -> int:
        async with self.engine.connect() as connection:
            return (await connection.execute(select(func.count()).select_from(Bill))).scalar_one()

    def _say(self, words: str) -> None:
        print(f"{words:<78}", flush=True)

    def _kill(self, what: str, process: subprocess.Popen[bytes]) -> None:
        process.send_signal(signal.SIGKILL)
        process.wait()
        self._say(f"killed {what} (SIGKILL)")

    def _projector(self) -> subprocess.Popen[bytes]:
        options = ("--lease", LEASE, "--checkpoint", "1", "--no-trim")  # the audit reads them all
        return self._start("projector", "run", *options)

    def _consumer(self) -> subprocess.Popen[bytes]:
        return self._start("inbox", "run", "inbox.demo:billing")

    def _start(self, *command: str) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(  # noqa: S603  # our own commands
            [sys.executable, "-m", *command], env=self._environment(), stderr=subprocess.DEVNULL
        )
        self.stack.callback(_stop, process)
        return process

    def _command(self, *command: str) -> str:
        """A command of ours, as users would type it."""
        done = subprocess.run(  # noqa: S603  # our own commands
            [sys.executable, "-m", "projector", *command, "--group", "billing"],
            env=self._environment(),
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.strip()

    def _environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "PROJECTOR_DATABASE_URL": self.real.database_url,
            "PROJECTOR_REDIS_URL": self.real.redis_url,
            "PROJECTOR_NAME": events.name,
        }


def _stop(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
