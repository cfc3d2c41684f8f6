"""Runs our Lua scripts, packed once and never resent."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha1
from importlib import resources
from typing import Any

import hiredis
from redis.asyncio import Redis
from redis.exceptions import NoScriptError


@dataclass(frozen=True, slots=True)
class Script:
    source: str
    digest: str


@cache
def load(package: str, name: str) -> Script:
    """The file `lua/<name>.lua` of a package."""
    return joined((resources.files(package) / "lua" / f"{name}.lua").read_text("utf-8"))


@cache
def joined(*sources: str) -> Script:
    """One script of several texts: libraries first."""
    source = "\n".join(sources)
    return Script(source, sha1(source.encode(), usedforsecurity=False).hexdigest())


async def run(redis: Redis, script: Script, keys: Sequence[str], arguments: Sequence[Any]) -> Any:
    """The script's answer. After an error nobody knows whether it ran.

    Packed by hiredis on a connection of its own, since redis-py's own packing costs more than the
    script; and without its retries, which would run the script a second time.
    """
    tail = (len(keys), *keys, *arguments)
    pool: Any = redis.connection_pool  # partly untyped in redis-py
    connection = await pool.get_connection()
    try:
        try:
            return await _call(connection, ("EVALSHA", script.digest, *tail))
        except NoScriptError:  # it did not run
            return await _call(connection, ("EVAL", script.source, *tail))
    except BaseException:
        await connection.disconnect(nowait=True)  # an answer may yet come; nobody must read it
        raise
    finally:
        await pool.release(connection)


def text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


async def _call(connection: Any, command: tuple[Any, ...]) -> Any:
    await connection.send_packed_command(hiredis.pack_command(command))
    return await connection.read_response()
