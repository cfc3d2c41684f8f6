"""PostgreSQL's snapshots as values: which transactions a moment sees. Pure."""

from __future__ import annotations

from dataclasses import dataclass

FIRST_XID = 3
"""PostgreSQL's first normal transaction id."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Transactions below `xmax` are over, except those in `running`; none below `xmin` runs."""

    xmin: int
    xmax: int
    running: tuple[int, ...] = ()

    @classmethod
    def parse(cls, text: str) -> Snapshot:
        """From PostgreSQL's own form, `xmin:xmax:running,running`."""
        xmin, xmax, running = text.split(":")
        return cls(int(xmin), int(xmax), tuple(map(int, running.split(",") if running else ())))

    def __str__(self) -> str:
        return f"{self.xmin}:{self.xmax}:{','.join(map(str, self.running))}"

    def sees(self, xid: int) -> bool:
        """As pg_visible_in_snapshot says it."""
        return xid < self.xmax and xid not in self.running

    def covers(self, older: Snapshot) -> bool:
        """Everything that `older` sees is seen here too."""
        if any(xid < older.xmax and xid not in older.running for xid in self.running):
            return False
        beyond = range(self.xmax, older.xmax)
        return len(beyond) <= len(older.running) and all(xid in older.running for xid in beyond)


NOTHING = Snapshot(FIRST_XID, FIRST_XID)
"""Sees no transaction at all."""
