"""Runs our Lua scripts on a Redis client of either colour."""

from __future__ import annotations

import asyncio
from functools import cache
from hashlib import sha1
from importlib import resources
from typing import Any

import hiredis
import redis.asyncio
from msgspec import Struct
from redis.exceptions import ConnectionError as Disconnected
from redis.exceptions import NoScriptError, RedisError
from redis.exceptions import TimeoutError as TimedOut

from inbox.errors import StoreUnavailable

PRELUDE = "machine"


class Call(Struct, frozen=True):
    """One run of a script on one key."""

    script: str
    key: str
    arguments: tuple[Any, ...] = ()

    def command(self, whole: bool) -> bytes:
        source, digest = _script(self.script)
        words = ("EVAL", source) if whole else ("EVALSHA", digest)
        packed: bytes = hiredis.pack_command((*words, 1, self.key, *self.arguments))
        return packed


@cache
def _script(name: str) -> tuple[str, str]:
    folder = resources.files("inbox.claims") / "lua"
    source = "".join((folder / f"{part}.lua").read_text("utf-8") for part in (PRELUDE, name))
    return source, sha1(source.encode(), usedforsecurity=False).hexdigest()


# Below the client's own methods, on a connection of its pool: replies must stay bytes whatever
# `decode_responses` says, and the client would send again up to ten times, waiting in between. Here
# a connection that was found dead is replaced once: every script may safely run twice.


def run(client: redis.Redis, call: Call) -> Any:
    """The script's answer, in bytes. After an error nobody knows whether it ran."""
    try:
        try:
            return _run(client, call)
        except Disconnected:
            return _run(client, call)
    except (RedisError, OSError) as exc:
        raise _unavailable(exc) from exc


async def run_async(client: redis.asyncio.Redis, call: Call) -> Any:
    """The same for asyncio."""
    cancellations = _cancellations()
    try:
        try:
            answer = await _run_async(client, call)
        except Disconnected:
            answer = await _run_async(client, call)
    except (RedisError, OSError) as exc:
        raise _unavailable(exc) from exc
    # redis-py sends by `wait_for`, which on Python 3.11 swallows a cancellation that comes just as
    # it ends. The caller would go on, and perhaps never stop.
    if _cancellations() > cancellations:
        raise asyncio.CancelledError
    return answer


def _cancellations() -> int:
    task = asyncio.current_task()
    return task.cancelling() if task else 0


def _run(client: redis.Redis, call: Call) -> Any:
    pool: Any = client.connection_pool
    connection = pool.get_connection()
    try:
        try:
            return _ask(connection, call.command(whole=False))
        except NoScriptError:  # it did not run
            return _ask(connection, call.command(whole=True))
    except BaseException:
        connection.disconnect()  # an answer may yet come; nobody must read it
        raise
    finally:
        pool.release(connection)


def _ask(connection: Any, command: bytes) -> Any:
    connection.send_packed_command([command])
    return connection.read_response(disable_decoding=True)


async def _run_async(client: redis.asyncio.Redis, call: Call) -> Any:
    pool: Any = client.connection_pool
    connection = await pool.get_connection()
    try:
        try:
            return await _ask_async(connection, call.command(whole=False))
        except NoScriptError:
            return await _ask_async(connection, call.command(whole=True))
    except BaseException:
        await connection.disconnect(nowait=True)
        raise
    finally:
        await pool.release(connection)


async def _ask_async(connection: Any, command: bytes) -> Any:
    await connection.send_packed_command(command)
    return await connection.read_response(disable_decoding=True)


def _unavailable(exc: Exception) -> StoreUnavailable:
    kind = "timed out" if isinstance(exc, TimedOut) else type(exc).__name__
    return StoreUnavailable("Redis", f"{kind}: {exc}" if str(exc) else kind)
