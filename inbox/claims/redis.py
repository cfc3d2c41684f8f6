"""Claims in Redis or Valkey: one script call to an operation, by the server's clock."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import redis
import redis.asyncio

from inbox.claims import script
from inbox.claims.claim import (
    Applied,
    Claim,
    Claimed,
    ClaimOutcome,
    Done,
    Lost,
    Mismatch,
    Record,
    Running,
    SettleOutcome,
    State,
)
from inbox.claims.key import Seconds, check_claim, check_key, check_limit, outcome, seconds
from inbox.claims.loop import loop_thread
from inbox.claims.operation import AsyncStore, Operation, SyncStore
from inbox.claims.script import Call
from inbox.errors import CorruptRecord, InvalidSource, NewerRecord

COPYABLE = (redis.asyncio.ConnectionPool, redis.asyncio.BlockingConnectionPool)


class RedisStore(AsyncStore):
    """Claims for everyone who reaches the same Redis, one text a key under `prefix`.

    Takes a client for sync or for asyncio; either way the store serves both. Async code with a sync
    client waits in threads. Sync code with an async client goes through an event loop of our own
    with a pool of its own, made from the settings of the client's: connections belong to one loop.
    """

    def __init__(
        self, client: redis.Redis | redis.asyncio.Redis, prefix: str = "inbox:claims:"
    ) -> None:
        self.client = client
        operations = RedisOperations(prefix)
        if isinstance(client, redis.asyncio.Redis):
            super().__init__(
                operations,
                partial(script.run_async, client),
                lambda: _in_own_loop(operations, client),
            )
        elif isinstance(client, redis.Redis):
            run = partial(script.run, client)
            super().__init__(
                operations, partial(asyncio.to_thread, run), lambda: SyncStore(operations, run)
            )
        else:
            raise InvalidSource(
                "RedisStore needs a redis.Redis or a redis.asyncio.Redis, "
                f"not {type(client).__module__}.{type(client).__qualname__}"
            )


def _in_own_loop(operations: RedisOperations, client: redis.asyncio.Redis) -> SyncStore:
    pool = client.connection_pool
    if type(pool) not in COPYABLE:
        raise InvalidSource(
            f"the {type(pool).__name__} of an async client cannot serve sync code: "
            "give RedisStore a redis.Redis"
        )
    copied = type(pool)(
        connection_class=pool.connection_class,
        max_connections=pool.max_connections,
        **pool.connection_kwargs,
    )
    twin = redis.asyncio.Redis(connection_pool=copied)
    return SyncStore(
        operations,
        lambda call: loop_thread().run(script.run_async(twin, call)),
        lambda: loop_thread().run(copied.disconnect()),
    )


class RedisOperations:
    def __init__(self, prefix: str) -> None:
        self._prefix = prefix

    def claim(
        self, key: str, fingerprint: str, token: str, lease: Seconds
    ) -> Operation[ClaimOutcome]:
        check_claim(key, fingerprint, token)
        arguments = token, fingerprint, _microseconds("lease", lease)

        def read(kind: str, rest: list[Any]) -> ClaimOutcome:
            match kind:
                case "claimed":
                    return Claimed(Claim(key, token, int(rest[0]), fingerprint), rest[1] == b"1")
                case "running":
                    return Running(timedelta(microseconds=int(rest[0])))
                case "mismatch":
                    return Mismatch(rest[0].decode())
            return Done(_record(key, rest[0]))

        return self._operation("claim", key, arguments, read)

    def renew(self, claim: Claim, lease: Seconds) -> Operation[bool]:
        arguments = claim.token, claim.fence, _microseconds("lease", lease)
        return self._operation("renew", claim.key, arguments, _yes)

    def settle(
        self, claim: Claim, state: State, payload: bytes | None, ttl: Seconds
    ) -> Operation[SettleOutcome]:
        state, payload = outcome(state, payload)
        arguments = claim.token, claim.fence, str(state), _microseconds("ttl", ttl)
        return self._operation(
            "settle",
            claim.key,
            arguments if payload is None else (*arguments, payload),
            lambda kind, _: Applied() if kind == "applied" else Lost(),
        )

    def release(self, claim: Claim) -> Operation[bool]:
        return self._operation("release", claim.key, (claim.token, claim.fence), _yes)

    def peek(self, key: str) -> Operation[Record | None]:
        check_key(key)
        return self._operation(
            "peek", key, (), lambda kind, rest: _record(key, rest[0]) if kind == "record" else None
        )

    def forget(self, key: str) -> Operation[bool]:
        check_key(key)
        return self._operation("forget", key, (), _yes)

    def purge(self, limit: int) -> Operation[int]:
        """Redis expires the keys by itself. It is asked all the same, to see that it is there."""
        check_limit(limit)
        return Operation(Call("peek", self._prefix), lambda _: 0)

    def _operation(
        self,
        name: str,
        key: str,
        arguments: tuple[Any, ...],
        read: Callable[[str, list[Any]], Any],
    ) -> Operation[Any]:
        def reply(answer: list[Any]) -> Any:
            kind, *rest = answer
            if kind == b"corrupt":
                raise CorruptRecord(key, rest[0].decode())
            if kind == b"newer":
                raise NewerRecord(key, rest[0].decode())
            return read(kind.decode(), rest)

        return Operation(Call(name, f"{self._prefix}{key}", arguments), reply)


def _yes(kind: str, _: list[Any]) -> bool:
    return kind == "yes"


def _microseconds(field: str, duration: Seconds) -> int:
    return round(seconds(field, duration) * 1_000_000)


def _record(key: str, text: bytes) -> Record:
    """As machine.lua writes it."""
    version, state, token, fence, fingerprint, *times, _, payload = text.split(b"\0", 10)
    started, heartbeat, expires, completed = times
    return Record(
        key=key,
        state=State(state.decode()),
        token=token.decode(),
        fence=int(fence),
        fingerprint=fingerprint.decode(),
        payload=payload[1:] if payload.startswith(b"+") else None,
        started_at=_seconds(started),
        heartbeat=_seconds(heartbeat),
        completed_at=_seconds(completed) if completed else None,
        expires_at=_seconds(expires),
        version=int(version),
    )


def _seconds(microseconds: bytes) -> float:
    return int(microseconds) / 1_000_000
