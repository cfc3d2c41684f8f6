"""Runs our Lua scripts, packed once and never resent."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from hashlib import sha1
from importlib import resources
from typing import Any

import hiredis
from redis.asyncio import Redis
from redis.exceptions import NoScriptError


async def run(redis: Redis, name: str, keys: Sequence[str], arguments: Sequence[Any]) -> Any:
    """The script's answer. After an error nobody knows whether it ran.

    Packed by hiredis on a connection of its own, since redis-py's own packing costs more than the
    script; and without its retries, which would run the script a second time.
    """
    source, digest = _script(name)
    tail = (len(keys), *keys, *arguments)
    pool: Any = redis.connection_pool  # partly untyped in redis-py
    connection = await pool.get_connection()
    try:
        try:
            return await _call(connection, ("EVALSHA", digest, *tail))
        except NoScriptError:  # it did not run
            return await _call(connection, ("EVAL", source, *tail))
    except BaseException:
        await connection.disconnect(nowait=True)  # an answer may yet come; nobody must read it
        raise
    finally:
        await pool.release(connection)


def text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


@cache
def _script(name: str) -> tuple[str, str]:
    source = (resources.files("projector.sink") / "lua" / f"{name}.lua").read_text("utf-8")
    return source, sha1(source.encode(), usedforsecurity=False).hexdigest()


async def _call(connection: Any, command: tuple[Any, ...]) -> Any:
    await connection.send_packed_command(hiredis.pack_command(command))
    return await connection.read_response()
