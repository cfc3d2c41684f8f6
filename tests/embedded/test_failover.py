"""More than one server: standby, replica, cluster."""

import redis.asyncio
import redis.cluster

from projector.embedded import Postgres, Valkey, valkey_cluster


def test_a_standby_follows_and_takes_over(until, monkeypatch):
    """A standby has what its primary commits; promoted, it takes writes and stays so."""
    monkeypatch.setenv("PGSSLMODE", "require")  # meant for other servers than these
    settings = {"synchronous_standby_names": "*", "synchronous_commit": "local"}
    with Postgres(settings) as primary, primary.standby() as standby:
        primary.execute("CREATE TABLE numbers AS SELECT 1 AS number")
        until(lambda: standby.execute("SELECT 1 FROM pg_class WHERE relname = 'numbers'"))
        assert standby.execute("SELECT pg_is_in_recovery()") == [(True,)]

        standby.kill()
        primary.execute("INSERT INTO numbers VALUES (2)")
        standby.start()
        until(lambda: standby.execute("SELECT * FROM numbers") == [(1,), (2,)])

        primary.kill()
        standby.restart()  # without its primary
        standby.promote()
        standby.execute("INSERT INTO numbers VALUES (3)")
        standby.restart()
        assert standby.execute("SELECT * FROM numbers") == [(1,), (2,), (3,)]
        assert standby.execute("SHOW synchronous_standby_names") == [("",)]


def test_a_replica_follows_and_takes_over(until):
    """A replica has what its primary has; promoted, it takes writes and stays so."""
    with Valkey({"appendonly": "yes"}) as primary:
        primary.execute("SET", "before", "1")
        with primary.replica() as replica:
            assert replica.execute("GET", "before") == "1"
            primary.execute("SET", "after", "2")
            until(lambda: replica.execute("GET", "after") == "2")
            primary.kill()
            replica.promote()
            replica.execute("SET", "new", "3")
            replica.restart()
            assert replica.execute("ROLE")[0] == "master"
            assert replica.execute("GET", "new") == "3"


async def test_every_node_of_a_cluster_serves_its_slots():
    """A cluster client writes to each node by the key alone."""
    with valkey_cluster(nodes=3) as cluster:
        async with redis.asyncio.RedisCluster.from_url(cluster.urls[0]) as client:
            for node in cluster.nodes:
                key = _key_of(node)
                await client.set(key, "value")
                assert node.execute("GET", key) == "value"


async def test_a_replica_of_a_cluster_takes_its_nodes_place():
    """With the data that the node had."""
    with valkey_cluster(nodes=3, replicas=True) as cluster:
        key = _key_of(cluster.nodes[1])
        cluster.nodes[1].execute("SET", key, "value")
        cluster.nodes[1].execute("WAIT", 1, 5000)
        cluster.nodes[1].kill()
        cluster.replicas[1].execute("CLUSTER", "FAILOVER", "TAKEOVER")
        assert cluster.replicas[1].execute("GET", key) == "value"
        assert cluster.replicas[1].execute("ROLE")[0] == "master"


def _key_of(node: Valkey) -> str:
    """A key in a slot that this node serves."""
    words = node.execute("CLUSTER", "NODES").splitlines()
    (mine,) = [line for line in words if "myself" in line]
    low, high = map(int, mine.split()[8].split("-"))
    keys = (f"key-{number}" for number in range(100_000))
    return next(key for key in keys if low <= node.execute("CLUSTER", "KEYSLOT", key) <= high)
