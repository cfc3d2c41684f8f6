"""A Valkey in cluster mode."""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from projector.embedded.binaries import Search
from projector.embedded.errors import EmbeddedError
from projector.embedded.ports import LOOPBACK, NodePort
from projector.embedded.server import START_SECONDS, STEP
from projector.embedded.settings import Settings
from projector.embedded.valkey import Valkey

SLOTS = 16384
DEFAULTS: Settings = {"cluster-enabled": "yes", "cluster-node-timeout": 2000}


@dataclass(frozen=True)
class Cluster:
    """Node i serves the i-th equal part of the slots, and replica i follows it, if there are
    replicas. One password for all."""

    nodes: tuple[Valkey, ...]
    replicas: tuple[Valkey, ...] = ()

    @property
    def urls(self) -> tuple[str, ...]:
        return tuple(node.url() for node in self.nodes)

    @property
    def url(self) -> str:
        """As `projector.connect.redis_of` takes it."""
        hosts = ",".join(f"{LOOPBACK}:{node.port}" for node in self.nodes)
        return f"redis+cluster://:{self.nodes[0].password}@{hosts}"


@contextmanager
def valkey_cluster(
    nodes: int = 3,
    settings: Settings | None = None,
    *,
    replicas: bool = False,
    search: Search | None = None,
) -> Iterator[Cluster]:
    """Every node answers for all slots, and has its replica if `replicas`, when the body runs.
    Blocks, as the servers do."""
    wanted = {**DEFAULTS, **(settings or {})}
    count = 2 * nodes if replicas else nodes
    members = tuple(Valkey(wanted, search=search, ports=NodePort) for _ in range(count))
    for node in members[1:]:
        node.password = members[0].password  # clients have one for the whole cluster
    with ExitStack() as stack:
        for node in members:
            stack.callback(node.close)
        with ThreadPoolExecutor(count) as threads:
            list(threads.map(Valkey.start, members))
        cluster = Cluster(members[:nodes], members[nodes:])
        _join(cluster.nodes, cluster.replicas)
        _wait(members, lambda node: _sees_all(node, count))
        _follow(cluster)
        yield cluster


def _join(nodes: Sequence[Valkey], others: Sequence[Valkey]) -> None:
    for index, node in enumerate(nodes):
        low, high = SLOTS * index // len(nodes), SLOTS * (index + 1) // len(nodes)
        node.execute("CLUSTER", "ADDSLOTS", *range(low, high))
        # Equal epochs would have to be settled between the nodes, which takes them seconds.
        node.execute("CLUSTER", "SET-CONFIG-EPOCH", index + 1)
    for node in (*nodes[1:], *others):
        node.execute("CLUSTER", "MEET", LOOPBACK, nodes[0].port)


def _follow(cluster: Cluster) -> None:
    for node, replica in zip(cluster.nodes, cluster.replicas, strict=False):
        replica.execute("CLUSTER", "REPLICATE", node.execute("CLUSTER", "MYID"))
    _wait(cluster.replicas, _is_in_step)


def _is_in_step(replica: Valkey) -> bool:
    state = replica.execute("INFO", "replication")
    return bool(state.get("master_link_status") == "up")


def _wait(nodes: Sequence[Valkey], ready: Callable[[Valkey], bool]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not all(map(ready, nodes)):
        if time.monotonic() > deadline:
            raise EmbeddedError(
                f"the {len(nodes)} nodes did not form a cluster within {START_SECONDS:.0f} s: "
                f"see {', '.join(str(node.log) for node in nodes)}"
            )
        time.sleep(STEP)


def _sees_all(node: Valkey, size: int) -> bool:
    state = node.execute("CLUSTER", "INFO").split()
    return {"cluster_state:ok", f"cluster_known_nodes:{size}"} <= set(state)
