"""Which client a URL gives, and which URLs are refused."""

from __future__ import annotations

import pytest
from redis.asyncio import SSLConnection

from projector.cluster import Cluster
from projector.connect import BadUrl, redis_of


def test_a_cluster_is_asked_at_all_its_hosts():
    """With a login, TLS and options of redis-py, and the usual port unless told."""
    client = redis_of("rediss+cluster://me:se%40cret@one:7000,two,[::1]:7001?socket_timeout=3")
    assert isinstance(client, Cluster)
    nodes = [(node.host, node.port) for node in client.nodes_manager.startup_nodes.values()]
    assert nodes == [("one", 7000), ("two", 6379), ("::1", 7001)]
    options = client.connection_kwargs
    assert (options["username"], options["password"]) == ("me", "se@cret")
    assert options["socket_timeout"] == 3
    assert options["connection_class"] is SSLConnection


@pytest.mark.parametrize("url", ["redis://h:7000/2", "redis+cluster://h", "redis+sentinel://h/s"])
def test_no_client_resends_by_itself(url):
    """The compare decides what to repeat."""
    client = redis_of(url)
    retry = client.retry if isinstance(client, Cluster) else client.get_retry()
    assert retry.get_retries() == 0


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("redis+cluster://", "name its hosts"),
        ("redis+cluster://:secret@", "name its hosts"),
        ("redis+cluster://one,,two", "name its hosts"),
        ("redis+cluster://one:port", "no hosts"),
        ("redis+cluster://one/3", "no other database"),
        ("redis+sentinel://one", "name the service"),
    ],
)
def test_a_url_that_cannot_be_used_says_why(url, problem):
    """Without showing the password."""
    with pytest.raises(BadUrl, match=problem) as caught:
        redis_of(url)
    assert "secret" not in str(caught.value)
