"""A Valkey in cluster mode."""

import time
from collections.abc import Iterator, Sequence
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
    """Masters only; node i serves the i-th equal part of the slots. One password for all."""

    nodes: tuple[Valkey, ...]

    @property
    def urls(self) -> tuple[str, ...]:
        return tuple(node.url() for node in self.nodes)


@contextmanager
def valkey_cluster(
    nodes: int = 3, settings: Settings | None = None, *, search: Search | None = None
) -> Iterator[Cluster]:
    """Every node answers for all slots when the body runs. Blocks, as the servers do."""
    wanted = {**DEFAULTS, **(settings or {})}
    members = tuple(Valkey(wanted, search=search, ports=NodePort) for _ in range(nodes))
    for node in members[1:]:
        node.password = members[0].password  # clients have one for the whole cluster
    with ExitStack() as stack:
        for node in members:
            stack.callback(node.close)
        with ThreadPoolExecutor(nodes) as threads:
            list(threads.map(Valkey.start, members))
        _join(members)
        _wait_until_ok(members)
        yield Cluster(members)


def _join(nodes: Sequence[Valkey]) -> None:
    for index, node in enumerate(nodes):
        low, high = SLOTS * index // len(nodes), SLOTS * (index + 1) // len(nodes)
        node.execute("CLUSTER", "ADDSLOTS", *range(low, high))
        # Equal epochs would have to be settled between the nodes, which takes them seconds.
        node.execute("CLUSTER", "SET-CONFIG-EPOCH", index + 1)
    for node in nodes[1:]:
        node.execute("CLUSTER", "MEET", LOOPBACK, nodes[0].port)


def _wait_until_ok(nodes: Sequence[Valkey]) -> None:
    deadline = time.monotonic() + START_SECONDS
    while not all(_sees_all(node, len(nodes)) for node in nodes):
        if time.monotonic() > deadline:
            raise EmbeddedError(
                f"the {len(nodes)} nodes did not form a cluster within {START_SECONDS:.0f} s: "
                f"see {', '.join(str(node.log) for node in nodes)}"
            )
        time.sleep(STEP)


def _sees_all(node: Valkey, size: int) -> bool:
    state = node.execute("CLUSTER", "INFO").split()
    return {"cluster_state:ok", f"cluster_known_nodes:{size}"} <= set(state)
