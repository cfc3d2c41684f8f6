"""Runs our Lua scripts, packed once and never resent."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from hashlib import sha1
from importlib import resources
from typing import Any

import hiredis
from redis.asyncio import Redis
from redis.exceptions import NoScriptError, ResponseError

from projector.cluster import AnyRedis, at

ASKING = hiredis.pack_command(("ASKING",))


async def run(redis: AnyRedis, name: str, keys: Sequence[str], arguments: Sequence[Any]) -> Any:
    """The script's answer. After an error nobody knows whether it ran.

    Packed by hiredis on a connection of its own, since redis-py's own packing costs more than the
    script; and without its retries, which would run the script a second time.
    """
    source, digest = _script(name)
    tail = (len(keys), *keys, *arguments)
    try:
        return await _send(redis, keys[0], ("EVALSHA", digest, *tail))
    except NoScriptError:  # it did not run
        return await _send(redis, keys[0], ("EVAL", source, *tail))


def text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


@cache
def _script(name: str) -> tuple[str, str]:
    source = (resources.files("projector.sink") / "lua" / f"{name}.lua").read_text("utf-8")
    return source, sha1(source.encode(), usedforsecurity=False).hexdigest()


async def _send(redis: AnyRedis, key: str, command: tuple[Any, ...]) -> Any:
    packed = hiredis.pack_command(command)

    async def act(client: Redis, asking: bool) -> Any:
        pool: Any = client.connection_pool  # partly untyped in redis-py
        connection = await pool.get_connection()
        try:
            if asking:
                await connection.send_packed_command(ASKING)
                await connection.read_response()
            await connection.send_packed_command(packed)
            return await connection.read_response()
        except BaseException as exc:
            if not isinstance(exc, ResponseError):
                # An answer may yet come; nobody must read it.
                await connection.disconnect(nowait=True)
            raise
        finally:
            await pool.release(connection)

    return await at(redis, key, act)
