"""`projector run` as a process, and waiting for what it does."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from typing import IO

from redis.exceptions import RedisError

from support.lanes import Pipeline


@contextmanager
def projector(
    pipe: Pipeline, redis_url: str, *options: str, stderr: IO[bytes] | int = subprocess.PIPE
) -> Iterator[subprocess.Popen[bytes]]:
    """A real process; killed at the end if it still runs."""
    database = pipe.database.render_as_string(hide_password=False)
    urls = {"PROJECTOR_DATABASE_URL": database, "PROJECTOR_REDIS_URL": redis_url}
    process = subprocess.Popen(
        [sys.executable, "-m", "projector", "run", "--name", pipe.name, *options],
        env={**os.environ, **urls, "PROJECTOR_LANES": str(pipe.outbox.lanes)},
        stderr=stderr,
    )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.kill()
        process.communicate()


async def eventually(condition: Callable[[], Awaitable[bool]], seconds: float = 20) -> None:
    deadline = time.monotonic() + seconds
    while not await _holds(condition):
        if time.monotonic() > deadline:
            raise TimeoutError("it did not come to pass")
        await asyncio.sleep(0.01)


async def _holds(condition: Callable[[], Awaitable[bool]]) -> bool:
    try:
        return await condition()
    except (OSError, RedisError):  # the server we ask is on its way back
        return False


async def same(pipe: Pipeline, expected: dict[str, list[int]], topic: str = "t") -> bool:
    return await pipe.seqs(topic) == expected
