"""Runs our Lua scripts, packed once and never resent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import hiredis
from redis.asyncio import Redis
from redis.exceptions import NoScriptError, ResponseError

from outbox.script import Script, load, text
from projector.cluster import AnyRedis, at

__all__ = ["run", "text"]

ASKING = hiredis.pack_command(("ASKING",))


async def run(
    redis: AnyRedis, script: str | Script, keys: Sequence[str], arguments: Sequence[Any]
) -> Any:
    """The script's answer; names are those of `lua/` here. After an error nobody knows whether it
    ran.

    Packed by hiredis on a connection of its own, since redis-py's own packing costs more than the
    script; and without its retries, which would run the script a second time.
    """
    if isinstance(script, str):
        script = load("projector.sink", script)
    tail = (len(keys), *keys, *arguments)
    try:
        return await _send(redis, keys[0], ("EVALSHA", script.digest, *tail))
    except NoScriptError:  # it did not run
        return await _send(redis, keys[0], ("EVAL", script.source, *tail))


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
