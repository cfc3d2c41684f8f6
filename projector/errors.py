"""What can go wrong in the projector. Every error carries its data as attributes."""

from __future__ import annotations

from collections.abc import Sequence


class ProjectorError(Exception):
    """The base of every error of this package."""


class GroupHasLetters(ProjectorError):
    """A group was not dropped: its dead letters, and what waits behind them, would go with it."""

    def __init__(self, group: str, dead: int, waiting: int, parked: int) -> None:
        super().__init__(
            f"group {group!r} was not dropped: it has {dead} dead letters, and {waiting} events "
            f"wait behind them ({parked} parked keys); look at them with `projector dead list "
            f"--group {group}`, or drop it with --force and lose them"
        )
        self.group = group
        self.dead = dead
        self.waiting = waiting
        self.parked = parked


class MigrationError(ProjectorError):
    """The tables could not be brought into the database, or out of it; nothing was changed."""


class TablesDiffer(MigrationError):
    """There are tables, but not as the outbox needs them; nothing was changed."""

    def __init__(self, differences: Sequence[str]) -> None:
        count = f"{len(differences)} difference{'s' if len(differences) > 1 else ''}"
        lines = "".join(f"\n  - {difference}" for difference in differences)
        super().__init__(
            f"the tables in this database are not what the outbox needs ({count}); "
            f"mend them, or use other tables (schema, prefix); nothing was changed:{lines}"
        )
        self.differences = tuple(differences)


class TablesIncomplete(MigrationError):
    """Some of the outbox's tables exist, others do not, and no migration of ours made them."""

    def __init__(self, missing: Sequence[str]) -> None:
        super().__init__(
            f"some of the outbox's tables exist, but {', '.join(missing)} "
            f"{'is' if len(missing) == 1 else 'are'} missing: finish your own migration or "
            "metadata.create_all, or drop the others; nothing was changed"
        )
        self.missing = tuple(missing)
