"""Redis Cluster: which server a key's commands go to, and what to make of a redirection.

All keys of a lane share a slot, so a lane talks to one server at a time, and a server that is away
concerns its own lanes only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from contextlib import suppress
from typing import Any, Protocol, TypeVar

from redis.asyncio import ConnectionPool, Redis, RedisCluster
from redis.asyncio.cluster import ClusterNode
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import (
    AskError,
    ClusterDownError,
    ClusterError,
    MovedError,
    RedisClusterException,
    RedisError,
)
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

REDIRECTIONS = 5
"""How often a command is sent on before the cluster counts as confused."""


class Act(Protocol[T_co]):
    """Something to do with the client of one server."""

    def __call__(self, client: Redis, asking: bool) -> Awaitable[T_co]:
        """If `asking`, each command has ASKING before it, on the same connection: its slot is on
        the way to this server."""


class Cluster(RedisCluster):
    """Sends a command once, to the server of its key.

    redis-py's own client repeats what failed, and closes the connections to every node when one is
    away. Here an error is the caller's, and the other nodes' connections live on: the slot map is
    redis-py's, the connections are ours. A redirection is followed, since it says that nothing ran.
    """

    def __init__(self, hosts: Sequence[tuple[str, int]], **options: Any) -> None:
        nodes = [ClusterNode(host, port) for host, port in hosts]
        super().__init__(
            startup_nodes=nodes, require_full_coverage=False, retry=never_again(), **options
        )
        self._seeds = dict(self.nodes_manager.startup_nodes)
        self._clients: dict[str, Redis] = {}
        self._reading = asyncio.Lock()
        self._readings = 0

    async def at(self, key: str, act: Act[T]) -> T:
        """`act` with the client of the server that has the key."""
        client, asking = await self._serving(key), False
        for _ in range(REDIRECTIONS):
            try:
                return await act(client, asking)
            except MovedError as there:
                await self._read_map()
                client, asking = self._redirected(there), False
            except AskError as there:
                client, asking = self._redirected(there), True
            except (RedisConnectionError, RedisTimeoutError, ClusterDownError):
                with suppress(RedisError):
                    await self._read_map()  # another one may serve the key by now
                raise
        raise ClusterError(f"the cluster sends the commands for {key} from node to node")

    async def execute_command(self, *args: Any, **options: Any) -> Any:
        """The key is the first argument; where it is not, the first node's redirection tells. What
        has no key is left to redis-py."""
        if len(args) < 2 or args[0] in self.command_flags or "target_nodes" in options:
            return await super().execute_command(*args, **options)

        async def act(client: Any, asking: bool) -> Any:  # partly untyped in redis-py
            if not asking:
                return await client.execute_command(*args, **options)
            async with client.client() as same:
                await same.execute_command("ASKING")
                return await same.execute_command(*args, **options)

        return await self.at(args[1], act)

    async def aclose(self) -> None:
        for client in self._clients.values():
            await client.aclose()
        self._clients.clear()
        await super().aclose()
        await self.nodes_manager.aclose()
        await self.nodes_manager.aclose("startup_nodes")

    async def _serving(self, key: str) -> Redis:
        if not self._readings:
            await self._read_map()
        try:
            node = self.get_node_from_key(key)
        except RedisClusterException as exc:
            await self._read_map()
            raise ClusterDownError(f"no node serves the slot of {key}") from exc
        assert node is not None  # only of a replica
        return self._client(node)

    def _redirected(self, there: AskError) -> Redis:
        """Maybe to a node that has no slots yet, and so is not in the map."""
        node = self.get_node(there.host, there.port)
        return self._client(node or ClusterNode(there.host, there.port, **self.connection_kwargs))

    def _client(self, node: ClusterNode) -> Redis:
        if node.name not in self._clients:
            options = {**node.connection_kwargs, "retry": never_again()}
            pool = ConnectionPool(node.connection_class, **options)
            self._clients[node.name] = Redis.from_pool(pool)
        return self._clients[node.name]

    async def _read_map(self) -> None:
        """Once for all who ask at the same time. From the nodes of the last map and, should all of
        them have been replaced, from those of the URL."""
        seen = self._readings
        async with self._reading:
            if seen != self._readings:
                return
            for name, node in self._seeds.items():
                self.nodes_manager.startup_nodes.setdefault(name, node)
            try:
                await self.nodes_manager.initialize()
            except RedisClusterException as exc:  # not a RedisError
                raise RedisConnectionError(str(exc)) from exc
            self._readings += 1
            for name in self._clients.keys() - self.nodes_manager.nodes_cache.keys():
                await self._clients.pop(name).aclose()


AnyRedis = Redis | Cluster


async def at(redis: AnyRedis, key: str, act: Act[T]) -> T:
    """`act` with the client of the server that has the key: the only one, or the cluster's."""
    return await (redis.at(key, act) if isinstance(redis, Cluster) else act(redis, False))


def never_again() -> Retry:
    """The compare decides what to repeat, never the client."""
    return Retry(NoBackoff(), 0)
