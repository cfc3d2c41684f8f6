"""TCP ports on the loopback."""

import socket
import sys

LOOPBACK = "127.0.0.1"
BUS = 10_000  # a cluster node's second port lies this far above the first


class Port:
    """A free port, and on Linux kept so: bound, but not listening, it goes to no outgoing
    connection while the server is down. A client that keeps trying a port of the ephemeral
    range would otherwise end up connected to itself. Elsewhere binding it twice is refused.
    """

    def __init__(self, number: int = 0) -> None:
        self._holder = socket.socket()
        try:
            self._holder.bind((LOOPBACK, number))
        except BaseException:
            self._holder.close()
            raise
        self.number: int = self._holder.getsockname()[1]
        if sys.platform == "linux":
            # Only after the choice, which has to be exclusive: now the server may bind it too.
            self._holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        else:
            self._holder.close()

    def release(self) -> None:
        self._holder.close()


class NodePort(Port):
    """For a cluster node: the port of its bus is free too."""

    def __init__(self) -> None:
        while True:
            super().__init__()
            try:
                self._bus = Port(self.number + BUS)
            except (OSError, OverflowError):
                super().release()
            else:
                return

    def release(self) -> None:
        self._bus.release()
        super().release()
