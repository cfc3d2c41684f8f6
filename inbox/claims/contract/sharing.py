"""Several processes, restarts, and records that cannot be read."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, Literal, TypeAlias

import pytest

from inbox.claims.claim import Claim, Claimed, Running, State, new_token
from inbox.claims.contract.face import LONG, SHORT, Face, ask, gone, take, taken_over
from inbox.claims.heartbeat import holding_sync
from inbox.claims.store import ClaimStore
from inbox.errors import CorruptRecord, NewerRecord

Reopen: TypeAlias = Callable[[], ClaimStore]
Spoil: TypeAlias = Callable[[str, Literal["corrupt", "newer"]], Any]

PROCESSES = 3
ROUNDS = 5
LEASE = 0.8


def _compete(reopen: Reopen, pipe: Connection) -> None:
    """In a process of its own: claims each key that it is told of, and says whether it won."""
    store = reopen().sync
    store.peek("warm up")
    pipe.send("ready")
    while key := pipe.recv():
        outcome = store.claim(key, fingerprint="f", token=new_token(), lease=LONG)
        pipe.send(isinstance(outcome, Claimed))


def _hold(reopen: Reopen, pipe: Connection) -> None:
    """In a process of its own: claims "k", and keeps it until it is killed."""
    store = reopen().sync
    outcome = store.claim("k", fingerprint="f", token=new_token(), lease=LEASE)
    assert isinstance(outcome, Claimed)
    with holding_sync(store, outcome.claim, LEASE):
        pipe.send(outcome.claim)
        time.sleep(300)


@contextmanager
def _process(
    target: Callable[[Reopen, Connection], None], reopen: Reopen
) -> Iterator[tuple[BaseProcess, Connection]]:
    spawn = multiprocessing.get_context("spawn")
    here, there = spawn.Pipe()
    process = spawn.Process(target=target, args=(reopen, there), daemon=True)
    process.start()
    there.close()  # so that the end of the process is the end of the pipe
    try:
        yield process, here
    finally:
        process.kill()
        process.join()
        process.close()
        here.close()


class Sharing:
    async def test_of_many_processes_one_wins(self, reopen: Reopen) -> None:
        """N processes at once, one claim, round after round."""

        def rounds() -> list[int]:
            started = [_process(_compete, reopen) for _ in range(PROCESSES)]
            pipes = [context.__enter__()[1] for context in started]
            try:
                assert [pipe.recv() for pipe in pipes] == ["ready"] * PROCESSES
                return [self._round(pipes, f"k{number}") for number in range(ROUNDS)]
            finally:
                for context in started:
                    context.__exit__(None, None, None)

        assert await asyncio.to_thread(rounds) == [1] * ROUNDS

    def _round(self, pipes: list[Connection], key: str) -> int:
        for pipe in pipes:
            pipe.send(key)
        return sum(pipe.recv() for pipe in pipes)

    async def test_a_killed_process_is_replaced_after_its_lease(
        self, store: ClaimStore, reopen: Reopen
    ) -> None:
        """While it lives it keeps its claim past the lease; after SIGKILL the lease ends it."""
        with _process(_hold, reopen) as (process, pipe):
            claim: Claim = await asyncio.to_thread(pipe.recv)
            await taken_over(store, "clock", lease=1.3 * LEASE)
            await taken_over(store, "clock")  # so much time has passed
            assert isinstance(await ask(store), Running)
            assert process.pid
            os.kill(process.pid, signal.SIGKILL)
            await asyncio.to_thread(process.join)
            left = await store.peek("k")
            successor = await taken_over(store)
        assert successor.fence > claim.fence
        now = await store.peek("k")
        assert now is not None
        assert left is None or now.started_at >= left.expires_at

    async def test_records_and_fences_survive_a_restart(
        self, store: ClaimStore, reopen: Reopen
    ) -> None:
        """Another store on the same records sees them, and goes on counting."""
        holder = await take(store)
        finished = await take(store, "done")
        await store.settle(finished, State.COMPLETED, b"x", LONG)
        other = reopen().sync

        def look() -> tuple[Any, ...]:
            running = other.claim("k", fingerprint="f", token=new_token(), lease=LONG)
            settled = other.settle(holder, State.COMPLETED, b"y", SHORT)
            return running, settled, other.peek("done")

        running, _, done = await asyncio.to_thread(look)
        assert isinstance(running, Running)
        assert done == await store.peek("done")
        await gone(store)
        assert (await take(store)).fence > holder.fence

    async def test_a_record_that_cannot_be_read_lets_nobody_in(
        self, claims: Face, spoil: Spoil
    ) -> None:
        """Nobody knows whether the effect has happened: every operation but forget refuses."""
        await self._fails_closed(claims, spoil, "corrupt", CorruptRecord)

    async def test_a_record_of_a_newer_version_lets_nobody_in(
        self, claims: Face, spoil: Spoil
    ) -> None:
        """What we do not understand we do not touch."""
        await self._fails_closed(claims, spoil, "newer", NewerRecord)

    async def _fails_closed(
        self, claims: Face, spoil: Spoil, how: Literal["corrupt", "newer"], error: type[Exception]
    ) -> None:
        claim = await take(claims, lease=SHORT)
        await gone(claims)
        spoil("k", how)
        refused: list[Callable[[], Any]] = [
            lambda: ask(claims),
            lambda: ask(claims, token=claim.token),
            lambda: claims.renew(claim, LONG),
            lambda: claims.settle(claim, State.COMPLETED, b"x", LONG),
            lambda: claims.release(claim),
            lambda: claims.peek("k"),
        ]
        for attempt in refused:
            with pytest.raises(error, match="'k'"):
                await attempt()
        await claims.purge()
        with pytest.raises(error):
            await ask(claims)
        assert await claims.forget("k")
        assert (await take(claims)).fence > claim.fence
